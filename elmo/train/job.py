"""A training job: the model, its text and settings, and when to measure it."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from elmo.data.characters import Characters
from elmo.data.shards import Shards
from elmo.data.stream import WindowStream
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.folders import Flag
from elmo.io.location import Location
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import Softmax
from elmo.settings import PRECISIONS, CheckpointSettings, TrainingSettings
from elmo.train.perplexity import MAX_HELDOUT_TOKENS, HeldOutText, OnWindow, PerplexityEvaluator
from elmo.train.step import WorkerGroup

# If the settings do not say how often to measure held-out text: the share of training's arithmetic
# that measuring may take, and the bounds of the number of measurements. They affect which weights
# are kept: if you change them, raise the versions of the stages pretrain and finetune.
MEASURED_SHARE, MIN_MEASUREMENTS, MAX_MEASUREMENTS = 0.1, 3, 50


@dataclass(frozen=True)
class TrainingJob:
    """A training job: the model, its data and settings, and the folder for its checkpoints and
    curves.

    If the file `stop_flag` exists, training saves a checkpoint and stops. Use a new file name each
    time you start the job. `on_window` is called during an evaluation on held-out text, with the
    number of tokens read so far and the number to read.
    """

    bilm: BiLM
    softmax: Softmax
    vocabulary: Vocabulary
    characters: Characters
    shards: Shards
    settings: TrainingSettings
    folder: Location
    checkpointing: CheckpointSettings
    stop_flag: Flag | Path | None = None
    on_window: OnWindow = lambda measured_tokens, tokens: None

    def __post_init__(self) -> None:
        """Raise `ElmoError` for the precision `auto` and for 0 epochs: these must be chosen before,
        the same for all workers."""
        if self.settings.precision not in PRECISIONS:
            raise ElmoError(
                "training.precision auto: choose float32 or bfloat16 before training, as "
                "elmo.train.machine_speed.choose_faster_precision does"
            )
        if not self.settings.epochs:
            raise ElmoError(
                "training.epochs 0: choose a number before training, as "
                "TrainingSettings.with_chosen_epochs does"
            )

    def measurement_steps(self, steps: int) -> range:
        """Return the steps, out of about `steps`, after which the held-out perplexity is measured,
        except the last one.

        They are `settings.evaluate_every` apart. If that is 0, there are 3 to 50 measurements,
        including the last, so that measuring takes about a tenth of the arithmetic of training.
        """
        settings, shape = self.settings, self.bilm.shape
        if settings.evaluate_every:
            return range(settings.evaluate_every, sys.maxsize, settings.evaluate_every)
        words = len(self.softmax.weight)
        word_count = words if settings.softmax == "full" else min(settings.samples, words)
        lstm_cost = 9 * shape.layers * shape.cells * shape.projection  # per token and direction
        # Per direction; a backward pass costs twice as much as a forward pass.
        step_cost = (
            3 * settings.rows * settings.window * (lstm_cost + word_count * shape.projection)
        )
        tokens = self.shards.tokens("heldout")
        measured_tokens = min(tokens, settings.evaluate_tokens or tokens, MAX_HELDOUT_TOKENS)
        measurement_cost = max(1, measured_tokens) * (lstm_cost + words * shape.projection)
        measurement_count = int(MEASURED_SHARE * steps * step_cost / measurement_cost)
        interval = math.ceil(
            steps / min(max(measurement_count, MIN_MEASUREMENTS), MAX_MEASUREMENTS)
        )
        return range(interval, steps - interval // 2, interval)

    def modules(self) -> dict[str, torch.nn.Module]:
        """Return the trained modules by the prefix of their parameters: `bilm` and `softmax`."""
        return {"bilm": self.bilm, "softmax": self.softmax}

    def stream(
        self, split: str, workers: WorkerGroup, *, epochs: int, seed: int | None
    ) -> WindowStream:
        """Return the text of a split, `train` or `heldout`, as windows for `epochs` epochs.

        A batch has `settings.rows` rows (parallel streams of text), divided among the workers. The
        windows have only this worker's rows. `seed` determines the order of the text; None keeps
        the order.
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
            own_rows=workers.own_rows(self.settings.rows),
        )

    def heldout(self, workers: WorkerGroup) -> HeldOutText:
        """Return the held-out split for this worker, with an evaluator of the model. It is read as
        in training, but in its own order."""
        evaluator = PerplexityEvaluator(
            self.bilm,
            self.softmax,
            self.vocabulary,
            precision=getattr(torch, self.settings.precision),
            sum_over_workers=workers.sum_over_workers,
        )
        stream = self.stream("heldout", workers, epochs=1, seed=None)
        reset = self.settings.reset == "sentence"
        return HeldOutText(stream, evaluator, reset=reset, on_window=self.on_window)
