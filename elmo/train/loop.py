"""The training loop in plain torch; the caller decides where work is stored and what is reported.

Shapes: L layers, S directions, B rows, P projection, C cells, W either of these two.
"""

import math
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elmo.data.characters import Characters
from elmo.data.shards import Shards
from elmo.data.stream import StreamPosition, WindowStream, prefetch
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.folders import Flag
from elmo.io.location import Location
from elmo.model.weights import is_finite
from elmo.nn.bilm import BiLM
from elmo.nn.cell import repays_compiling
from elmo.nn.device import exact_float32
from elmo.nn.lstm import LSTMState
from elmo.nn.memory import keep_freed_memory
from elmo.nn.softmax import Softmax
from elmo.settings import PRECISIONS, CheckpointSettings, TrainingSettings
from elmo.train.checkpoints import (
    Checkpoint,
    CheckpointFolder,
    TrainingProgress,
    restore_tensors,
    state_tensors,
)
from elmo.train.curves import Curves, StepSums
from elmo.train.optimizer import Optimizer
from elmo.train.perplexity import (
    HeldOutText,
    NotFinite,
    Perplexity,
    PerplexityEvaluator,
)
from elmo.train.step import (
    WORD_MATRIX,
    StepFigures,
    StepInput,
    Stepper,
    WorkerGroup,
)

_LOOK = 1.0  # seconds between two looks for the flag that stops a run
REPORT_STEPS = 10
AGREE_STEPS = 10  # steps after which workers agree whether to stop, at most
# Where the settings don't say how often held-out text is measured: the share of the arithmetic of
# training that it may take, and the bounds of how often. They decide which weights are kept: who
# changes them raises the versions of the stages pretrain and finetune.
MEASURING, LEAST_MEASURED, MOST_MEASURED = 0.1, 3, 50
SOUND = 0.5  # nats above the lowest mean loss up to which the weights count as sound
Reporter = Callable[[str, dict[str, float]], None]


@dataclass(frozen=True)
class TrainingJob:
    """A training job: the model, its data and settings, and the folder for its checkpoints and
    curves.

    `lr_of` multiplies the learning rate of parameters by name (0 freezes one). `stop` is a file:
    when it exists, training saves a checkpoint and stops, on whatever machine it runs. Give it a
    new name each time the job is started.
    """

    bilm: BiLM
    softmax: Softmax
    vocabulary: Vocabulary
    characters: Characters
    shards: Shards
    settings: TrainingSettings
    folder: Location
    lr_of: dict[str, float]
    checkpointing: CheckpointSettings
    stop: Flag | Path | None = None

    def __post_init__(self) -> None:
        """Raise `ElmoError` for what must be chosen beforehand, the same for all workers: the
        precision `auto`, and 0 rows."""
        if self.settings.precision not in PRECISIONS:
            raise ElmoError(
                "training.precision auto: choose one of the two before training, as "
                "elmo.train.machine_speed.faster_precision does"
            )
        if not self.settings.rows:
            raise ElmoError(
                "training.rows 0: choose a number before training, as "
                "TrainingSettings.with_chosen_rows does"
            )

    def measured_after(self, steps: int) -> range:
        """Return the steps after which the held-out perplexity is measured, besides the last, of a
        training of about `steps` steps.

        They are `settings.evaluate_every` apart or, if that is 0, so many that measuring takes
        about a tenth of the arithmetic of training: 3 to 50 measurements, the last included.
        """
        settings, shape = self.settings, self.bilm.config
        if settings.evaluate_every:
            return range(settings.evaluate_every, sys.maxsize, settings.evaluate_every)
        words = len(self.softmax.weight)
        compared = words if settings.softmax == "full" else min(settings.samples, words)
        lstm = shape.lstm_multiplications
        # In one direction; the backward pass has twice as many as the forward pass.
        step = 3 * settings.rows * settings.window * (lstm + compared * shape.projection)
        tokens = self.shards.tokens("heldout")
        read = min(tokens, settings.evaluate_tokens or tokens)
        measurement = max(1, read) * (lstm + words * shape.projection)
        times = int(MEASURING * steps * step / measurement)
        every = math.ceil(steps / min(max(times, LEAST_MEASURED), MOST_MEASURED))
        return range(every, steps - every // 2, every)

    def modules(self) -> dict[str, torch.nn.Module]:
        """Return the trained modules, by the prefix of their parameters' names: `bilm` and
        `softmax`."""
        return {"bilm": self.bilm, "softmax": self.softmax}

    def stream(
        self, split: str, workers: WorkerGroup, *, epochs: int, seed: int | None
    ) -> WindowStream:
        """Return the text of a split, `train` or `heldout`, as windows for `epochs` epochs.

        A batch has `settings.rows` rows, parallel streams of text, which the workers share out; the
        windows have this worker's rows only. `seed` determines the order of the text; None keeps it
        as it is.
        """
        return WindowStream(
            self.shards,
            self.vocabulary,
            self.characters.encode,
            split=split,
            rows=self.settings.rows,
            window=self.settings.window,
            block_sentences=self.settings.block_sentences,
            epochs=epochs,
            seed=seed,
            mine=workers.own_rows(self.settings.rows),
        )

    def heldout(self, workers: WorkerGroup) -> HeldOutText:
        """Return the held-out split as seen by this worker, with what measures the model's
        perplexity on it. It is read as in training, in its own order."""
        evaluator = PerplexityEvaluator(
            self.bilm,
            self.softmax,
            self.vocabulary,
            precision=getattr(torch, self.settings.precision),
            total=workers.sum_over_workers,
        )
        stream = self.stream("heldout", workers, epochs=1, seed=None)
        return HeldOutText(stream, evaluator, reset=self.settings.reset == "sentence")


def fit(job: TrainingJob, *, workers: WorkerGroup, report: Reporter) -> TrainingProgress:
    """Train for all epochs and leave the best weights in the job's model and softmax; each worker
    calls it.

    The joint log likelihood of both directions is maximised (section 3.1 of the paper). After an
    interruption at any point, a new call resumes from the newest checkpoint and reaches the same
    result. SIGTERM, SIGINT and the `stop` flag save a checkpoint and raise `KeyboardInterrupt`.
    `report(kind, figures)` is called with `machine` at the start, `train` every few steps and
    `heldout` after each evaluation, on the first worker.
    """
    keep_freed_memory()
    # Decided by the job alone, so that a resumed training rounds as before.
    tokens = job.shards.tokens("train") * job.settings.epochs
    job.bilm.lstm.compiled = repays_compiling(tokens, job.bilm.config.cells)
    return _Fit(job, workers, report).run()


def heldout_perplexity(job: TrainingJob, *, workers: WorkerGroup) -> Perplexity:
    """Return the perplexity of a job's model on the whole held-out split, read as in training. All
    workers must call it together, and get the same."""
    return job.heldout(workers).perplexity()[0]


class _Fit:
    def __init__(self, job: TrainingJob, workers: WorkerGroup, report: Reporter) -> None:
        self.job, self.workers, self.settings = job, workers, job.settings
        self.report = report if workers.rank == 0 else _silent
        self.parameters: dict[str, torch.Tensor] = {}
        for prefix, module in job.modules().items():
            module.to(workers.device).train()
            for name, parameter in module.named_parameters(prefix):
                parameter.requires_grad_(job.lr_of.get(name) != 0)
                self.parameters[name] = parameter.data
        if all(job.lr_of.get(name) == 0 for name in self.parameters):
            raise ElmoError("every layer is frozen: there is nothing to train")
        self.stream = job.stream(
            "train", workers, epochs=job.settings.epochs, seed=job.settings.seed
        )
        self.positions = self.stream.predictions_per_epoch * job.settings.epochs
        self.steps = math.ceil(self.positions / (job.settings.rows * job.settings.window))
        self.measured_after = job.measured_after(self.steps)
        self.optimizer = self._optimizer(job.settings, self.steps)
        self.stepper = Stepper(
            job.bilm,
            job.softmax,
            self.optimizer,
            job.settings,
            workers,
        )
        self.checkpoints = CheckpointFolder(job.folder / "checkpoints", keep=job.checkpointing.keep)
        self.curves = Curves(job.folder)
        self.heldout = job.heldout(workers)
        self.speed = _Speed()
        self.saved = time.monotonic()
        self.newest: int | None = None  # the step of the newest checkpoint
        self.unread: StepFigures | None = None  # what a step showed, not read yet
        self.ask_at = 0  # the step after which all workers next agree on what to do
        self.asked = 0, time.monotonic()  # after which step they last did, and when

    def run(self) -> TrainingProgress:
        stop = self.job.stop if self.workers.rank == 0 else None  # one looks for all
        with exact_float32(self.workers.device), _interruptible(stop) as interrupted:
            progress, state = self._begin()
            if not progress.finished:
                self.report("machine", {"step": progress.step})
                self._train(progress, state, interrupted)
        if self.workers.size > 1:
            dist.barrier()  # the first worker has written what the others read
        last = progress.step
        if progress.best_step is not None and progress.best_step != last:
            last = progress.best_step
            if best := self._chosen(last):
                self._restore(best, self.checkpoints.path(last))
        self.optimizer.catch_up_all(step=last)
        return progress

    def _train(
        self, progress: TrainingProgress, state: LSTMState, interrupted: Callable[[], bool]
    ) -> None:
        """Take the remaining steps, and update `progress`."""
        windows = prefetch(self._prepared(progress.position, progress.step))
        position_after: Callable[[], StreamPosition] | None = None
        try:
            if progress.due:
                progress.due = not self._evaluate(progress, interrupted)
            if progress.due:
                raise KeyboardInterrupt
            for prepared, position_after in iter(()) if self._enough(progress) else windows:
                measured, state = self.stepper.step(prepared, state, step=progress.step)
                self._show(progress)  # the step before, while this one is computed
                self.unread = measured
                progress.step += 1
                progress.tokens += measured.predictions
                evaluated = progress.step in self.measured_after
                if evaluated:
                    self._show(progress)
                    progress.due = not self._evaluate(progress, interrupted)
                stopping, late = self._asked(progress.step, interrupted, now=evaluated)
                if evaluated or late or stopping:
                    self._show(progress)
                    progress.position = position_after()
                    self._save(progress, state)
                if stopping or progress.due:
                    self.checkpoints.wait()
                    raise KeyboardInterrupt
                if self._enough(progress):
                    break
            self._show(progress)
            if position_after is not None:
                progress.position = position_after()
            done = progress.step in self.measured_after
            progress.finished = done or self._evaluate(progress, interrupted)
            self._save(progress, state)
            self.checkpoints.wait()
        except (FloatingPointError, NotFinite):
            raise self._diverged(progress) from None
        finally:
            windows.close()
        if not progress.finished:
            raise KeyboardInterrupt

    def _prepared(
        self, position: StreamPosition, step: int
    ) -> Iterator[tuple[StepInput, Callable[[], StreamPosition]]]:
        """Yield the windows from a position and step onwards, each prepared for its step."""
        for number, (window, position_after) in enumerate(self.stream.windows(position), step):
            yield self.stepper.prepare(window, step=number), position_after

    def _begin(self) -> tuple[TrainingProgress, LSTMState]:
        """Start anew, resume from the newest checkpoint, or start from another training's
        checkpoint."""
        checkpoint = self._chosen(
            self.checkpoints.recover_newest() if self.workers.rank == 0 else None
        )
        carry = None
        if checkpoint is not None:
            progress, carry = checkpoint.progress, checkpoint.tensors
            self._restore(checkpoint, self.checkpoints.path(progress.step))
            self.newest = progress.step
        elif self.settings.start_from:
            progress, carry = self._start_from(self.settings.start_from)
        else:
            progress = TrainingProgress(0, 0, self.stream.first_position())
        if self.workers.rank == 0:
            self.curves.resume(progress.step)
        rows = self.settings.rows
        whole = self.job.bilm.lstm.zero_state(rows)
        if carry is not None:
            # Copies: a tensor of a mapped file is not aligned, and a product may then round apart.
            whole = LSTMState(carry["carry.h"].clone(), carry["carry.c"].clone())
        mine = self.workers.own_rows(rows)
        state = whole.select_rows(slice(mine[0], mine[-1] + 1))
        return progress, LSTMState(*(part.to(self.workers.device) for part in state))

    def _chosen(self, step: int | None) -> Checkpoint | None:
        """Return the checkpoint that the first worker chose, or None; it is the same on all
        workers.

        Other machines may not see it at once, so each worker waits for exactly that checkpoint.
        """
        first = self.workers.rank == 0
        choice = [-1.0] + 8 * [0.0]
        if first and step is not None:
            digest = Checkpoint.digest(self.checkpoints.path(step))
            choice = [float(step), *(float(int(digest[k : k + 8], 16)) for k in range(0, 64, 8))]
        choice = self.workers.sum_over_workers(choice if first else 9 * [0.0])
        if choice[0] < 0:
            return None
        digest = "".join(f"{int(part):08x}" for part in choice[1:])
        checkpoint = self.checkpoints.wait_for(int(choice[0]), digest)
        lacking = [float(checkpoint is None and k == self.workers.rank) for k in self.workers.ranks]
        lacking = self.workers.sum_over_workers(lacking)
        if any(lacking):
            raise ElmoError(
                f"{self.checkpoints.path(int(choice[0]))}: worker {lacking.index(1.0)} of "
                f"{self.workers.size} does not see this checkpoint of the first worker; the folder "
                "must be on storage that all machines share"
            )
        return checkpoint

    def _restore(self, checkpoint: Checkpoint, source: Location) -> None:
        restore_tensors(checkpoint.tensors, self.job.modules(), self.optimizer.slots, source=source)

    def _start_from(self, folder: str) -> tuple[TrainingProgress, dict[str, torch.Tensor]]:
        """Take over the weights, the position in the text and, if the optimizer is of the same
        kind, its state."""
        source = Location(folder)
        checkpoint = Checkpoint.load(source)
        progress, theirs, ours = checkpoint.progress, checkpoint.settings, self.settings
        if checkpoint.corpus != self.job.shards.digest:
            raise ElmoError(f"training.start_from: {folder} was trained on other shards")
        for name in ("seed", "rows", "window", "block_sentences", "softmax"):
            if getattr(theirs, name) != getattr(ours, name):
                raise ElmoError(
                    f"training.start_from: {folder} has {name} {getattr(theirs, name)}, this run "
                    f"{getattr(ours, name)}; only optimizer settings may differ"
                )
        if progress.finished:
            raise ElmoError(f"training.start_from: {folder} is the end of a training")
        before = self._optimizer(theirs, checkpoint.steps)
        restore_tensors(checkpoint.tensors, self.job.modules(), before.slots, source=source)
        before.catch_up_all(step=progress.step)  # with the learning rates of then
        for name, slot in self.optimizer.slots.items():
            if name.endswith(".taken"):
                slot.fill_(progress.step)
            elif name in before.slots:
                slot.copy_(before.slots[name])
        started = TrainingProgress(
            progress.step, progress.tokens, progress.position, means=progress.means
        )
        return started, checkpoint.tensors

    def _optimizer(self, settings: TrainingSettings, steps: int) -> Optimizer:
        sampled = settings.softmax == "sampled" and isinstance(self.job.softmax, Softmax)
        return Optimizer(
            settings.optimizer,
            self.parameters,
            steps=steps,
            lr_of=self.job.lr_of,
            word_matrix=WORD_MATRIX if sampled else (),
        )

    def _asked(self, step: int, interrupted: Callable[[], bool], *, now: bool) -> tuple[bool, bool]:
        """Return whether any worker should stop, and whether the first worker's clock wants a
        checkpoint.

        All workers must agree on both, for which they wait for each other: `now`, or about every
        second, but at least every ten steps.
        """
        if self.workers.size > 1 and step < self.ask_at and not now:
            return False, False
        clock = time.monotonic()
        late = clock - self.saved >= 60 * self.job.checkpointing.minutes
        steps_a_second = (step - self.asked[0]) / max(1e-9, clock - self.asked[1])
        mine = [float(late), min(AGREE_STEPS, steps_a_second)]
        mine = mine if self.workers.rank == 0 else [0.0, 0.0]
        stopping, due, apart = self.workers.sum_over_workers([float(interrupted()), *mine])
        self.asked, self.ask_at = (step, clock), step + max(1, int(apart))
        return stopping > 0, due > 0

    def _save(self, progress: TrainingProgress, state: LSTMState) -> None:
        tensors = state_tensors(self.job.modules(), self.optimizer.slots)
        # Nothing that is not finite may become what training resumes from.
        broken = not all(is_finite(value) for value in tensors.values())
        if self.workers.sum_over_workers([float(broken)])[0] > 0:
            raise FloatingPointError
        whole = self._all_rows(state)
        self.saved, self.newest = time.monotonic(), progress.step
        if self.workers.rank == 0:
            self.curves.flush()  # before the checkpoint, which its rows belong to
            tensors |= {"carry.h": whole.h_LSBP, "carry.c": whole.c_LSBC}
            checkpoint = Checkpoint(
                tensors, progress, self.settings, self.steps, self.job.shards.digest
            )
            self.checkpoints.save(
                checkpoint,
                keep_steps=(progress.best_step, progress.sound_step, progress.tried_step),
            )

    def _all_rows(self, state: LSTMState) -> LSTMState:
        """Gather the rows of all workers, in order, on the first worker."""
        if self.workers.size == 1:
            return state
        counts = [
            len(WorkerGroup(rank, self.workers.size).own_rows(self.settings.rows))
            for rank in range(self.workers.size)
        ]
        whole = []
        for part_LSBW in state:
            L, S, B, W = part_LSBW.shape
            padded_LSBW = part_LSBW.new_zeros(L, S, max(counts), W)
            padded_LSBW[:, :, :B] = part_LSBW
            gathered = [torch.empty_like(padded_LSBW) for _ in counts]
            dist.all_gather(gathered, padded_LSBW)
            cut = [each[:, :, :n] for each, n in zip(gathered, counts, strict=True)]
            whole.append(torch.cat(cut, 2))
        return LSTMState(*whole)

    def _enough(self, progress: TrainingProgress) -> bool:
        return 0 < self.settings.patience <= progress.stale

    def _evaluate(self, progress: TrainingProgress, interrupted: Callable[[], bool]) -> bool:
        """Evaluate the held-out perplexity; return false if that was interrupted."""
        try:
            with self.optimizer.temporarily_caught_up(step=progress.step):
                measured, whole = self.heldout.perplexity(
                    tokens=self.settings.evaluate_tokens,
                    interrupted=lambda: (
                        self.workers.sum_over_workers([float(interrupted())])[0] > 0
                    ),
                )
        except KeyboardInterrupt:
            return False
        if progress.best is None or measured.average < progress.best:
            progress.best, progress.best_step, progress.stale = measured.average, progress.step, 0
            progress.figures = measured.to_dict() if whole else None
        else:
            progress.stale += 1
        figures = {name: getattr(measured, name) for name in ("forward", "backward", "average")}
        row = {"step": progress.step, "tokens": progress.tokens, **figures}
        self._add("heldout.tsv", row)
        self.report("heldout", row)
        self.speed.restart()
        return True

    def _show(self, progress: TrainingProgress) -> None:
        """Add the newest step not yet read to the running means; write and report them every few
        steps.

        `progress` is as after that step.
        """
        measured, self.unread = self.unread, None
        if measured is None:
            return
        progress.means.add(
            nats=sum(measured.nats_by_direction),
            predictions=measured.predictions,
            norm=measured.gradient_norm,
            clipped=measured.clipped,
        )
        self.speed.add(measured.predictions)
        if progress.step % REPORT_STEPS:
            return
        means, progress.means = progress.means, StepSums()
        self._judge(progress, means)
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "lr": self.settings.optimizer.learning_rate_at(progress.step - 1, self.steps),
            **means.curve_row(),
        }
        self._add("train.tsv", row)
        left = max(0, self.positions - progress.tokens)
        live = {"tokens_per_second": self.speed.rate, "seconds_left": left / self.speed.rate}
        self.report("train", row | live | _memory(self.workers.device))

    def _judge(self, progress: TrainingProgress, means: StepSums) -> None:
        """Raise an error if the loss is far above chance.

        If the loss is near the lowest, the newest checkpoint from before these steps counts as
        sound, and the next one is to be judged.
        """
        nats = means.nats_per_prediction
        if nats > 10 + 2 * math.log(len(self.job.vocabulary)):
            raise FloatingPointError
        progress.lowest = nats if progress.lowest is None else min(nats, progress.lowest)
        if progress.tried_step is not None and nats <= progress.lowest + SOUND:
            progress.sound_step = progress.tried_step
        progress.tried_step = self.newest

    def _add(self, name: str, row: dict[str, float]) -> None:
        if self.workers.rank == 0:
            self.curves.add(name, row)

    def _diverged(self, progress: TrainingProgress) -> ElmoError:
        if self.workers.rank == 0:
            self.curves.flush()
        self.checkpoints.wait()
        kept = set(self.checkpoints.steps()) & {progress.sound_step, progress.best_step}
        what_to_do = "lower optimizer.lr or optimizer.clip"
        if kept:
            good = self.checkpoints.path(max(step for step in kept if step is not None))
            what_to_do += (
                f"; to continue from the last checkpoint before the trouble, set "
                f"training.start_from to {good} as well"
            )
        else:
            what_to_do += " (there is no checkpoint from before the trouble)"
        return ElmoError(
            f"training diverged after step {progress.step}: a loss, gradient or weight is not "
            f"finite, or the loss far above chance; {what_to_do}"
        )


class _Speed:
    """Tokens per second, excluding the time of evaluations."""

    def __init__(self) -> None:
        self.tokens, self.seconds, self.since = 0, 0.0, time.monotonic()

    def add(self, tokens: int) -> None:
        now = time.monotonic()
        self.tokens += tokens
        self.seconds += now - self.since
        self.since = now

    def restart(self) -> None:
        self.since = time.monotonic()

    @property
    def rate(self) -> float:
        return self.tokens / max(1e-9, self.seconds)


@contextmanager
def _interruptible(stop: Flag | Path | None) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM or SIGINT has arrived or the `stop` flag exists.

    A thread looks for the flag, since at a URL that takes a request, for which no step should wait.
    """
    came, ended = threading.Event(), threading.Event()

    def watch() -> None:
        assert stop is not None
        while not (came.is_set() or ended.wait(_LOOK)):
            with suppress(ElmoError, OSError):  # a store that does not answer is asked again
                if stop.exists():
                    came.set()

    old: list[tuple[signal.Signals, Any]] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            old.append((number, signal.signal(number, lambda *_: came.set())))
    if stop is not None and stop.exists():
        came.set()
    if stop is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield came.is_set
    finally:
        ended.set()
        for number, handler in old:
            signal.signal(number, handler)


def _memory(device: torch.device) -> dict[str, float]:
    memory = {"peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if device.type == "cuda":
        memory["peak_device_memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
    return memory


def _silent(kind: str, figures: dict[str, float]) -> None:
    """Ignore a report: workers other than the first report nothing."""
