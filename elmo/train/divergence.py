"""Training that diverges: how that is noticed, and which checkpoint to continue from."""

import math

from elmo.errors import ElmoError
from elmo.train.checkpoints import CheckpointFolder, TrainingProgress

SOUND = 0.5  # nats above the lowest mean loss up to which the weights count as sound


def judge_loss(progress: TrainingProgress, nats: float, *, words: int, newest: int | None) -> None:
    """Raise `FloatingPointError` if the mean loss of the last steps, in nats, is far above chance
    among so many words.

    If the loss is near the lowest, the newest checkpoint from before these steps counts as sound,
    and the one of step `newest` is to be judged next.
    """
    if nats > 10 + 2 * math.log(words):
        raise FloatingPointError
    progress.lowest = nats if progress.lowest is None else min(nats, progress.lowest)
    if progress.tried_step is not None and nats <= progress.lowest + SOUND:
        progress.sound_step = progress.tried_step
    progress.tried_step = newest


def divergence_error(progress: TrainingProgress, checkpoints: CheckpointFolder) -> ElmoError:
    """Return the error that says that training diverged, and which checkpoint to continue from."""
    kept = set(checkpoints.steps()) & {progress.sound_step, progress.best_step}
    what_to_do = "lower optimizer.lr or optimizer.clip"
    if kept:
        good = checkpoints.path(max(step for step in kept if step is not None))
        what_to_do += (
            f"; to continue from the last good checkpoint, set "
            f"training.start_from to {good} as well"
        )
    else:
        what_to_do += " (no earlier checkpoint is known to be good)"
    return ElmoError(
        f"training diverged after step {progress.step}: a loss, gradient or weight is not "
        f"finite, or the loss is far above chance; {what_to_do}"
    )
