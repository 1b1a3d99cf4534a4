"""The training loop in plain torch; the caller chooses the folder for work and the reporter.

Shapes: L layers, S directions, B rows, P projection, C cells.
"""

import math
import resource
import time
from collections.abc import Callable

import torch

from elmo.data.stream import StreamPosition
from elmo.errors import ElmoError
from elmo.model.weights import is_finite
from elmo.nn.cell import is_worth_compiling
from elmo.nn.device import exact_float32
from elmo.nn.lstm import LSTMState
from elmo.nn.softmax import Softmax
from elmo.train.agreement import StopAndSave, gather_rows, interruptible, is_true_on_any_worker
from elmo.train.checkpoints import (
    Checkpoint,
    CheckpointFolder,
    TrainingProgress,
    restore_tensors,
    state_tensors,
)
from elmo.train.curves import Curves, StepSums
from elmo.train.job import TrainingJob
from elmo.train.optimizer import Optimizer
from elmo.train.perplexity import NotFinite, Perplexity
from elmo.train.step import WORD_MATRIX, StepFigures, Stepper, WorkerGroup

REPORT_STEPS = 10
Reporter = Callable[[str, dict[str, float]], None]
StopCheck = Callable[[], bool]


def fit(job: TrainingJob, *, workers: WorkerGroup, report: Reporter) -> TrainingProgress:
    """Train for all epochs and leave the best weights in the job's model and softmax; every worker
    calls this.

    Training maximises the joint log likelihood of both directions (section 3.1 of the paper). After
    an interruption at any point, a new call resumes from the newest checkpoint and gets the same
    result. On SIGTERM, SIGINT or the flag `stop_flag`, it saves a checkpoint and raises
    `KeyboardInterrupt`. On the first worker, `report(kind, figures)` is called with `machine` at
    the start, `train` every few steps and `heldout` after each evaluation.
    """
    # This depends only on the job, so that resumed training rounds as before.
    tokens = job.shards.tokens("train") * job.settings.epochs
    job.bilm.lstm.compiled = is_worth_compiling(tokens, job.bilm.shape.cells)
    training = _Training(job, workers, report if workers.rank == 0 else lambda *_: None)
    stop_flag = job.stop_flag if workers.rank == 0 else None  # the first worker checks it for all
    with exact_float32(workers.device), interruptible(stop_flag) as is_interrupted:
        progress, state = training.start_or_resume()
        if not progress.finished:
            training.report("machine", {"step": progress.step})
            _take_steps(training, progress, state, is_interrupted)
    training.restore_best(progress)
    return progress


def heldout_perplexity(job: TrainingJob, *, workers: WorkerGroup) -> Perplexity:
    """Return the perplexity of a job's model on the held-out split, read as in training; of a long
    split, about 200,000 tokens are read. All workers must call this together."""
    return job.heldout(workers).perplexity()[0]


def _take_steps(
    training: "_Training", progress: TrainingProgress, state: LSTMState, is_interrupted: StopCheck
) -> None:
    """Take the remaining steps, and update `progress`."""
    settings, checkpoints = training.job.settings, training.checkpoints
    stop_and_save = StopAndSave(training.workers, minutes=training.job.checkpointing.minutes)
    position_after: Callable[[], StreamPosition] | None = None
    windows = training.stepper.read_steps(training.stream, progress.position, step=progress.step)
    try:
        if progress.due:
            progress.due = not training.measure(progress, is_interrupted)
        if progress.due:
            raise KeyboardInterrupt
        while not 0 < settings.patience <= progress.stale:
            if (window := next(windows, None)) is None:
                break
            step_input, position_after = window
            figures, state = training.stepper.step(step_input, state, step=progress.step)
            training.report_last_step(progress)  # while this step is computed
            training.pending_figures = figures
            progress.step += 1
            progress.tokens += figures.predictions
            is_measured = progress.step in training.measurement_steps
            if is_measured:
                training.report_last_step(progress)
                progress.due = not training.measure(progress, is_interrupted)
            should_stop, is_save_due = stop_and_save.agree(
                progress.step, is_interrupted, is_urgent=is_measured
            )
            if is_measured or is_save_due or should_stop:
                training.report_last_step(progress)
                progress.position = position_after()
                training.save(progress, state)
                stop_and_save.note_checkpoint()
            if should_stop or progress.due:
                checkpoints.wait()
                raise KeyboardInterrupt
        training.report_last_step(progress)
        if position_after is not None:
            progress.position = position_after()
        is_measured = progress.step in training.measurement_steps
        progress.finished = is_measured or training.measure(progress, is_interrupted)
        training.save(progress, state)
        checkpoints.wait()
    except (FloatingPointError, NotFinite):
        if training.workers.rank == 0:
            training.curves.flush()
        checkpoints.wait()
        raise ElmoError(
            f"training diverged after step {progress.step}: a loss, gradient or weight is not "
            "finite, or the loss is far above chance; lower optimizer.lr or optimizer.clip"
        ) from None
    finally:
        windows.close()
    if not progress.finished:
        raise KeyboardInterrupt


class _Training:
    """The state of training on one worker: text, model, optimizer, checkpoints and curves."""

    def __init__(self, job: TrainingJob, workers: WorkerGroup, report: Reporter) -> None:
        self.job, self.workers, self.report = job, workers, report
        self.parameters: dict[str, torch.Tensor] = {}
        for prefix, module in job.modules().items():
            module.to(workers.device).train().requires_grad_()
            for name, parameter in module.named_parameters(prefix):
                self.parameters[name] = parameter.data
        settings = job.settings
        self.stream = job.stream("train", workers, epochs=settings.epochs, seed=settings.seed)
        self.total_predictions = self.stream.predictions_per_epoch * settings.epochs
        self.steps = math.ceil(self.total_predictions / (settings.rows * settings.window))
        self.measurement_steps = job.measurement_steps(self.steps)
        is_sampled = settings.softmax == "sampled" and isinstance(job.softmax, Softmax)
        self.optimizer = Optimizer(
            settings.optimizer,
            self.parameters,
            steps=self.steps,
            word_matrix=WORD_MATRIX if is_sampled else (),
        )
        self.stepper = Stepper(job.bilm, job.softmax, self.optimizer, settings, workers)
        self.checkpoints = CheckpointFolder(job.folder / "checkpoints", keep=job.checkpointing.keep)
        self.curves = Curves(job.folder)  # only the first worker writes them
        self.heldout = job.heldout(workers)
        self.speed = _Speed()
        self.pending_figures: StepFigures | None = None  # the last step's, not read yet

    def start_or_resume(self) -> tuple[TrainingProgress, LSTMState]:
        """Start anew, or resume from the newest checkpoint, which only the first worker reads."""
        rows = self.job.settings.rows
        state = self.job.bilm.lstm.zero_state(rows)
        progress = self.workers.call_on_first_worker(lambda: self._read_newest(state))
        slots = self.optimizer.slots if progress.step else {}
        self.workers.copy_from_first(state_tensors(self.job.modules(), slots).values())
        self.workers.copy_from_first(state)
        own_rows = self.workers.own_rows(rows)
        return progress, state.select_rows(slice(own_rows[0], own_rows[-1] + 1))

    def _read_newest(self, state: LSTMState) -> TrainingProgress:
        """Read the newest checkpoint, if any, into the model and the `state` of all rows; return
        the progress."""
        progress = TrainingProgress(0, 0, self.stream.first_position())
        if (checkpoint := self.checkpoints.recover_newest()) is not None:
            progress = checkpoint.progress
            self._restore(checkpoint)
            for name, state_tensor in zip(("carry.h", "carry.c"), state, strict=True):
                state_tensor.copy_(checkpoint.tensors[name])
        self.curves.resume(progress.step)
        return progress

    def report_last_step(self, progress: TrainingProgress) -> None:
        """Add the pending figures to the running means; write and report these every few steps.

        `progress` is the progress after the pending step.
        """
        figures, self.pending_figures = self.pending_figures, None
        if figures is None:
            return
        progress.means.add(
            nats=sum(figures.nats_by_direction),
            predictions=figures.predictions,
            norm=figures.gradient_norm,
            was_clipped=figures.was_clipped,
        )
        self.speed.add(figures.predictions)
        if progress.step % REPORT_STEPS:
            return
        means, progress.means = progress.means, StepSums()
        if means.nats_per_prediction > 10 + 2 * math.log(len(self.job.vocabulary)):
            raise FloatingPointError  # far above chance
        row = {
            "step": progress.step,
            "tokens": progress.tokens,
            "lr": self.job.settings.optimizer.learning_rate_at(progress.step - 1, self.steps),
            **means.curve_row(),
        }
        self.curves.add("train.tsv", row)
        rate, tokens_left = self.speed.rate, max(0, self.total_predictions - progress.tokens)
        speed = {"tokens_per_second": rate, "seconds_left": tokens_left / rate}
        self.report("train", row | speed | _peak_memory(self.workers.device))

    def measure(self, progress: TrainingProgress, is_interrupted: StopCheck) -> bool:
        """Measure the held-out perplexity; return false if that was interrupted."""
        try:
            with self.optimizer.temporarily_caught_up(step=progress.step):
                perplexity, is_whole = self.heldout.perplexity(
                    tokens=self.job.settings.evaluate_tokens,
                    is_interrupted=lambda: is_true_on_any_worker(self.workers, is_interrupted()),
                )
        except KeyboardInterrupt:
            return False
        if progress.best is None or perplexity.average < progress.best:
            progress.best, progress.best_step, progress.stale = perplexity.average, progress.step, 0
            progress.figures = perplexity.to_dict() if is_whole else None
        else:
            progress.stale += 1
        figures = {name: getattr(perplexity, name) for name in ("forward", "backward", "average")}
        row = {"step": progress.step, "tokens": progress.tokens, **figures}
        self.curves.add("heldout.tsv", row)
        self.report("heldout", row)
        self.speed.restart()
        return True

    def save(self, progress: TrainingProgress, state: LSTMState) -> None:
        """Write a checkpoint; raise `FloatingPointError` if a weight is not finite."""
        tensors = state_tensors(self.job.modules(), self.optimizer.slots)
        # Training must never resume from values that are not finite.
        is_broken = not all(is_finite(value) for value in tensors.values())
        if is_true_on_any_worker(self.workers, is_broken):
            raise FloatingPointError
        all_rows = gather_rows(state, self.workers, rows=self.job.settings.rows)
        if self.workers.rank == 0:
            self.curves.flush()  # before the checkpoint that its rows belong to
            tensors |= {"carry.h": all_rows.h_LSBP, "carry.c": all_rows.c_LSBC}
            self.checkpoints.save(Checkpoint(tensors, progress), best_step=progress.best_step)

    def restore_best(self, progress: TrainingProgress) -> None:
        """Load the weights with the best measurement into the model and softmax."""
        final_step = progress.step
        if progress.best_step is not None and progress.best_step != final_step:
            final_step = progress.best_step
            self.workers.call_on_first_worker(
                lambda: self._restore(self.checkpoints.load(final_step))
            )
            tensors = state_tensors(self.job.modules(), self.optimizer.slots)
            self.workers.copy_from_first(tensors.values())
        self.optimizer.catch_up_all(step=final_step)

    def _restore(self, checkpoint: Checkpoint) -> None:
        source = self.checkpoints.path(checkpoint.progress.step)
        restore_tensors(checkpoint.tensors, self.job.modules(), self.optimizer.slots, source=source)


class _Speed:
    """Tokens per second, excluding the time of measurements."""

    def __init__(self) -> None:
        self.tokens, self.seconds, self.counted_until = 0, 0.0, time.monotonic()

    def add(self, tokens: int) -> None:
        time_now = time.monotonic()
        self.tokens += tokens
        self.seconds += time_now - self.counted_until
        self.counted_until = time_now

    def restart(self) -> None:
        self.counted_until = time.monotonic()

    @property
    def rate(self) -> float:
        return self.tokens / max(1e-9, self.seconds)


def _peak_memory(device: torch.device) -> dict[str, float]:
    memory = {"peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if device.type == "cuda":
        memory["peak_device_memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
    return memory
