"""The training loop: plain torch, told where to keep its work and what to report to."""

import csv
import math
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elmo.adaptive import AnySoftmax
from elmo.bilm import BiLM
from elmo.characters import Characters
from elmo.errors import ElmoError
from elmo.evaluation import Evaluator, Perplexity
from elmo.lstm import State
from elmo.optimizer import Optimizer
from elmo.precision import gflops
from elmo.resume import Checkpoints, restore, state_of
from elmo.settings import Training
from elmo.shards import Shards
from elmo.step import Measured, Stepper, Workers
from elmo.stream import Position, Stream, Window, prefetched
from elmo.vocabulary import Vocabulary

REPORT_STEPS = 10
STOP = "stop"
CURVES = {
    "train.tsv": ("step", "tokens", "perplexity", "lr", "gradient_norm", "clipped"),
    "heldout.tsv": ("step", "tokens", "forward", "backward", "average"),
}
Report = Callable[[str, dict[str, float]], None]


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and how. `folder` holds the work in progress of this very job.

    `lr_of` multiplies the learning rate of parameters by name (0 freezes one).
    """

    bilm: BiLM
    softmax: AnySoftmax
    vocabulary: Vocabulary
    characters: Characters
    shards: Shards
    settings: Training
    folder: Path
    lr_of: dict[str, float]


@dataclass
class Progress:
    """How far a job is: all that a checkpoint holds beside the tensors."""

    step: int
    tokens: int
    position: Position
    best: float
    best_step: int | None
    stale: int
    pending: list[float]
    due: bool = False  # the held-out perplexity of this step is still to be taken

    @property
    def finished(self) -> bool:
        """Whether the stream has ended or patience has run out."""
        return self.position.get("finished", False)


def fit(job: Job, *, workers: Workers, report: Report) -> Progress:
    """Train until the epochs are over; leave the best weights in the job's model and softmax.

    Called again after a kill at any instant it goes on from the newest checkpoint and ends as if
    nothing had happened. SIGTERM, SIGINT and a file named `stop` in the job's folder (a driver's
    way to reach workers elsewhere) save a checkpoint and raise `KeyboardInterrupt`.
    `report(kind, figures)` hears `train` every few steps, `heldout` after each evaluation, and once
    at the start `machine`: how fast this one multiplies matrices.
    """
    return _Fit(job, workers, report).run()


class _Fit:
    def __init__(self, job: Job, workers: Workers, report: Report) -> None:
        self.job, self.workers, self.settings = job, workers, job.settings
        self.report = report if workers.rank == 0 else _silent
        for module in (job.bilm, job.softmax):
            module.to(workers.device).train()
        named = [(f"bilm.{n}", p) for n, p in job.bilm.named_parameters()]
        named += [(f"softmax.{n}", p) for n, p in job.softmax.named_parameters()]
        for name, parameter in named:
            parameter.requires_grad_(job.lr_of.get(name) != 0)
        if not any(parameter.requires_grad for _, parameter in named):
            raise ElmoError("every layer is frozen: there is nothing to train")
        self.parameters = {name: parameter.data for name, parameter in named}
        self.optimizer = Optimizer(job.settings.optimizer, self.parameters)
        self.stepper = Stepper(
            job.bilm, job.softmax, self.optimizer, job.settings, workers, lr_of=job.lr_of
        )
        self.checkpoints = Checkpoints(job.folder / "checkpoints", keep=job.settings.keep)
        mine = workers.mine(job.settings.rows)
        self.stream = self._stream("train", job.settings.epochs, job.settings.seed, mine)
        self.positions = self.stream.tokens * job.settings.epochs
        per_step = job.settings.rows * job.settings.window
        self.steps = math.ceil(self.positions / per_step)
        self.speed = _Speed()

    def run(self) -> Progress:
        progress, state = self._begin()
        if not progress.finished:
            self.report("machine", {"step": progress.step, **gflops(self.workers.device)})
            with _interruptible(self.workers, self.job.folder / STOP) as interrupted:
                progress = self._train(progress, state, interrupted)
        if self.workers.size > 1:
            dist.barrier()  # the first worker has written what the others read
        if progress.best_step is not None and progress.best_step != progress.step:
            tensors, _ = self.checkpoints.load(progress.best_step)
            restore(tensors, self._modules(), self.optimizer.slots)
        return progress

    def _train(self, progress: Progress, state: State, interrupted: Callable[[], bool]) -> Progress:
        if progress.due:
            progress.due = not self._evaluate(progress, interrupted)
        if progress.due:
            raise KeyboardInterrupt
        ended = self._enough(progress)
        windows = prefetched(iter(()) if ended else self.stream.windows(progress.position))
        after = progress.position
        for window, after in windows:
            try:
                measured, state = self.stepper.step(
                    window, state, step=progress.step, steps=self.steps
                )
                progress.step += 1
                progress.tokens += measured.predictions
                progress.position = after
                self._show(progress, measured)
            except FloatingPointError:
                windows.close()
                raise self._diverged(progress) from None
            evaluated = progress.step % self.settings.evaluate_every == 0
            if evaluated:
                progress.due = not self._evaluate(progress, interrupted)
            stopping = interrupted()
            due = progress.step % self.settings.checkpoint_every == 0
            if evaluated or due or stopping:
                self._save(progress, state)
            if stopping:
                self.checkpoints.wait()
                windows.close()
                raise KeyboardInterrupt
            if self._enough(progress):
                break
        windows.close()
        done = progress.step % self.settings.evaluate_every == 0
        done = done or self._evaluate(progress, interrupted)
        progress.position = after | {"finished": done}
        self._save(progress, state)
        self.checkpoints.wait()
        if not done:
            raise KeyboardInterrupt
        return progress

    def _begin(self) -> tuple[Progress, State]:
        """Start, or go on from the newest checkpoint."""
        rows = self.settings.rows
        if self.workers.size > 1:
            dist.barrier()
        found = self.checkpoints.newest()
        whole = self.job.bilm.lstm.zero_state(rows)
        if found is None:
            progress = Progress(0, 0, self.stream.begin(), math.inf, None, 0, [0.0] * 5)
        else:
            tensors, value = found
            restore(tensors, self._modules(), self.optimizer.slots)
            # Copies: a tensor of a mapped file is not aligned, and a product may then round apart.
            whole = State(tensors["carry.h"].clone(), tensors["carry.c"].clone())
            kept = {name: value[name] for name in Progress.__dataclass_fields__ if name in value}
            progress = Progress(**(kept | {"best": float(value["best"])}))
        if self.workers.rank == 0:
            for name, columns in CURVES.items():
                _cut_curve(self.job.folder / name, columns, progress.step)
        mine = self.workers.mine(rows)
        state = whole.rows(slice(mine[0], mine[-1] + 1))
        return progress, State(*(part.to(self.workers.device) for part in state))

    def _save(self, progress: Progress, state: State) -> None:
        whole = self._all_rows(state)
        if self.workers.rank == 0:
            tensors = state_of(self._modules(), self.optimizer.slots)
            tensors |= {"carry.h": whole.h_LSBP, "carry.c": whole.c_LSBC}
            value = vars(progress) | {"best": str(progress.best), "rows": self.settings.rows}
            self.checkpoints.save(progress.step, tensors, value, best=progress.best_step)

    def _all_rows(self, state: State) -> State:
        """Every worker's rows, in order, on the first worker."""
        if self.workers.size == 1:
            return state
        counts = [
            len(Workers(rank, self.workers.size).mine(self.settings.rows))
            for rank in range(self.workers.size)
        ]
        whole = []
        for part in state:
            L, S, _, width = part.shape
            padded = part.new_zeros(L, S, max(counts), width)
            padded[:, :, : part.shape[2]] = part
            every = [torch.empty_like(padded) for _ in counts]
            dist.all_gather(every, padded)
            whole.append(torch.cat([p[:, :, :n] for p, n in zip(every, counts, strict=True)], 2))
        return State(*whole)

    def _enough(self, progress: Progress) -> bool:
        return 0 < self.settings.patience <= progress.stale

    def _evaluate(self, progress: Progress, interrupted: Callable[[], bool]) -> bool:
        """Take the held-out perplexity; false where that was interrupted."""
        try:
            found = heldout_perplexity(self.job, workers=self.workers, interrupted=interrupted)
        except KeyboardInterrupt:
            return False
        better = found.average < progress.best
        if better:
            progress.best, progress.best_step, progress.stale = found.average, progress.step, 0
        else:
            progress.stale += 1
        figures = {name: getattr(found, name) for name in ("forward", "backward", "average")}
        row = {"step": progress.step, "tokens": progress.tokens, **figures}
        if self.workers.rank == 0:  # a run killed since may have written this row
            _cut_curve(self.job.folder / "heldout.tsv", CURVES["heldout.tsv"], progress.step - 1)
        self._write("heldout.tsv", row)
        self.report("heldout", row)
        self.speed.restart()
        return True

    def _show(self, progress: Progress, measured: Measured) -> None:
        """Add a step to the running means; write and report them every few steps."""
        now = (*measured.nats, measured.predictions, measured.norm, float(measured.clipped))
        progress.pending = [old + new for old, new in zip(progress.pending, now, strict=True)]
        self.speed.add(measured.predictions)
        if progress.step % REPORT_STEPS:
            return
        forward, backward, count, norm, clipped = progress.pending
        progress.pending = [0.0] * 5
        nats = (forward + backward) / 2 / count
        if nats > 10 + 2 * math.log(len(self.job.vocabulary)):
            raise FloatingPointError
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "perplexity": math.exp(nats),
            "lr": self.settings.optimizer.lr_at(progress.step - 1, self.steps),
            "gradient_norm": norm / REPORT_STEPS,
            "clipped": clipped / REPORT_STEPS,
        }
        self._write("train.tsv", row)
        left = max(0, self.positions - progress.tokens)
        live = {"tokens_per_second": self.speed.rate, "seconds_left": left / self.speed.rate}
        self.report("train", row | live | _memory(self.workers.device))

    def _write(self, name: str, row: dict[str, float]) -> None:
        if self.workers.rank == 0:
            with (self.job.folder / name).open("a", newline="") as file:
                csv.writer(file, delimiter="\t", lineterminator="\n").writerow(
                    [f"{row[column]:.10g}" for column in CURVES[name]]
                )

    def _diverged(self, progress: Progress) -> ElmoError:
        self.checkpoints.wait()
        steps = self.checkpoints.steps()
        last = "it has no checkpoint yet"
        if steps:
            last = f"its last good checkpoint is step {steps[-1]} in {self.checkpoints.folder}"
        return ElmoError(
            f"training diverged after step {progress.step}: a loss or gradient is not finite, or "
            f"the loss far above chance; {last}; lower optimizer.lr or optimizer.clip"
        )

    def _modules(self) -> dict[str, torch.nn.Module]:
        return {"bilm": self.job.bilm, "softmax": self.job.softmax}

    def _stream(self, split: str, epochs: int, seed: int | None, mine: list[int]) -> Stream:
        return job_stream(self.job, split, epochs=epochs, seed=seed, mine=mine)


def job_stream(job: Job, split: str, *, epochs: int, seed: int | None, mine: list[int]) -> Stream:
    """The stream of one split of a job's shards."""
    return Stream(
        job.shards,
        job.vocabulary,
        job.characters.encode,
        split=split,
        rows=job.settings.rows,
        window=job.settings.window,
        block_sentences=job.settings.block_sentences,
        epochs=epochs,
        seed=seed,
        mine=mine,
    )


def heldout_perplexity(
    job: Job, *, workers: Workers, interrupted: Callable[[], bool] | None = None
) -> Perplexity:
    """The perplexity of a job's model on the held-out split, read as in training.

    Where `interrupted` is given it is asked at each window, and a yes raises `KeyboardInterrupt`.
    """
    mine = workers.mine(job.settings.rows)
    stream = job_stream(job, "heldout", epochs=1, seed=None, mine=mine)
    precision = getattr(torch, job.settings.precision)
    evaluator = Evaluator(
        job.bilm, job.softmax, job.vocabulary, precision=precision, total=workers.total
    )

    def windows() -> Iterator[Window]:
        for window, _ in prefetched(stream.windows(stream.begin())):
            if interrupted is not None and interrupted():
                raise KeyboardInterrupt
            yield window

    return evaluator.perplexity(windows(), reset=job.settings.reset == "sentence")


class _Speed:
    """Tokens a second, without the time that evaluations take."""

    def __init__(self) -> None:
        self.tokens, self.seconds, self.since = 0, 0.0, time.monotonic()

    def add(self, tokens: int) -> None:
        now = time.monotonic()
        self.tokens, self.seconds, self.since = (
            self.tokens + tokens, self.seconds + now - self.since, now,
        )  # fmt: skip

    def restart(self) -> None:
        self.since = time.monotonic()

    @property
    def rate(self) -> float:
        return self.tokens / max(1e-9, self.seconds)


@contextmanager
def _interruptible(workers: Workers, stop: Path) -> Iterator[Callable[[], bool]]:
    """Yield whether SIGTERM or SIGINT came, to any worker, or the file `stop` is there."""
    came = threading.Event()
    old: list[tuple[signal.Signals, Any]] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            old.append((number, signal.signal(number, lambda *_: came.set())))
    try:
        yield lambda: workers.total([float(came.is_set() or stop.exists())])[0] > 0
    finally:
        for number, handler in old:
            signal.signal(number, handler)


def _cut_curve(path: Path, columns: tuple[str, ...], step: int) -> None:
    """Start a curve, or drop what was written after the checkpoint that training goes on from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    kept = [line for line in lines if line.count("\t") == len(columns) - 1]
    kept = [line for line in kept if int(line.split("\t")[0]) <= step]
    path.write_text("".join(f"{line}\n" for line in ["\t".join(columns), *kept]))


def _memory(device: torch.device) -> dict[str, float]:
    found = {"peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if device.type == "cuda":
        found["peak_device_memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
    return found


def _silent(kind: str, figures: dict[str, float]) -> None:
    """Workers other than the first report nothing."""
