"""The training loop of all task models: early stopping on dev, with the best weights kept.

Interrupted training resumes at the epoch where it stopped. The random numbers of an epoch depend
only on the seed and the epoch, so the result has the same bytes as without an interruption.
"""

import math
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from elmo.data.characters import check_token_lists
from elmo.data.stream import prefetch
from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.io.records import Sha256, check_sha256, read_record
from elmo.model.weights import load_weights, save_weights, strip_prefix
from elmo.nn.device import exact_float32
from elmo.nn.threads import one_thread
from elmo.settings import MAX_SENTENCE_TOKENS
from elmo.tasks.examples import Example, Question, Tokens, attention_pairs, token_count
from elmo.tasks.features import LinearModels, ModelShares
from elmo.tasks.labels import LabelModel
from elmo.tasks.metrics import Scores, Tally, main_score, paired_bootstrap
from elmo.tasks.model import TaskModel
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors

T = TypeVar("T")
MAX_ATTENTION_PAIRS = 1 << 26  # token pairs in a batch: about 2.5 GB when only predicting
CHECKPOINT_FILE = "checkpoint.json"
NETWORK_ALONE = ModelShares(1.0, 0.0, 0.0)
# The first choice is used unless another is significantly better on dev. The shares of the linear
# models are multiplied by their fitted weights.
SHARE_CHOICES = (
    ModelShares(0.5, 1.0, 1.0, 1.0),
    ModelShares(1.0, 0.5, 0.5, 0.5),
    ModelShares(0.0, 1.0, 1.0, 1.0),
    ModelShares(1.0, 1.0, 0.0, 0.0),
    NETWORK_ALONE,
)
BATCHES_PER_POOL = 50  # examples of this many batches are sorted by length together
ReportEpoch = Callable[[str, dict[str, float]], None]


def report_nothing(kind: str, figures: dict[str, float]) -> None:
    """Ignore a report."""


class TaskProgress(msgspec.Struct):
    """The progress of a task's training: the number of finished epochs and steps, the learning
    rate, and the best dev score, which was reached in epoch `best_epoch`.

    `stale` counts the epochs since; `curve` has the loss, learning rate and dev scores of each
    epoch.
    """

    epoch: int = 0
    step: int = 0
    lr: float = 0.0
    best: float = -1.0
    best_epoch: int = 0
    stale: int = 0
    curve: list[dict[str, float]] = []


class TaskCheckpoint(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `checkpoint.json`: the progress, and the SHA-256 of `state.safetensors`."""

    progress: TaskProgress
    sha256: Sha256


def fit_task(
    model: TaskModel,
    train: Sequence[Any],
    dev: Sequence[Any],
    *,
    vectors: Vectors | None,
    settings: TaskSettings,
    seed: int,
    checkpoints_folder: Path,
    report: ReportEpoch,
) -> TaskProgress:
    """Train `model` on `train` and leave in it the weights of the epoch with the best score on
    `dev`; return the progress.

    `vectors` returns the ELMo layers of sentences (None: without ELMo). Training resumes from the
    checkpoints in `checkpoints_folder`. `report("epoch", figures)` is called after each epoch; if
    training resumes, first for each earlier epoch.
    """
    if settings.class_weights == "balanced":
        cast(LabelModel, model).balance_classes(train)
    training = _TaskTraining(model, settings, checkpoints_folder)
    progress = training.resume()
    for figures in progress.curve:
        report("epoch", figures)
    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), one_thread(), exact_float32(device):
        while progress.epoch < settings.epochs and progress.stale < settings.patience:
            torch.manual_seed(
                int(np.random.SeedSequence([seed, progress.epoch]).generate_state(1)[0])
            )
            rng = np.random.default_rng([seed, progress.epoch])
            loss = training.train_epoch(
                progress, random_batches(train, settings.batch_size, rng), vectors
            )
            with training.averaged_weights():
                predictions = predict_all(model, dev, vectors, settings.batch_size)
                scores = model.tally(dev, predictions).scores()
            progress.epoch += 1
            figures = {"epoch": progress.epoch, "loss": loss, "lr": progress.lr, **scores}
            _record_score(progress, scores, settings)
            progress.curve.append(figures)
            training.save(progress)
            report("epoch", figures)
    training.load_best(progress)
    return progress


def fit_linear_models(
    model: TaskModel,
    train: Sequence[Any],
    *,
    vectors: Vectors | None,
    settings: TaskSettings,
    static: Vectors | None = None,
) -> LinearModels:
    """Fit linear models of the features, vectors and `static` vectors of `train` to the labels of
    `model`; return them on its device."""
    linear = LinearModels(settings.features, len(model.labels), static=static)
    weights = model.class_weights if isinstance(model, LabelModel) else None
    linear.fit(train, model.labels, vectors, weights)
    return linear.to(next(model.parameters()).device)


def add_linear_models(
    model: TaskModel,
    linear: LinearModels,
    dev: Sequence[Any],
    *,
    vectors: Vectors | None,
    settings: TaskSettings,
) -> tuple[Scores, ModelShares, Scores]:
    """Attach `linear` to the trained `model`, with the first of `SHARE_CHOICES` unless another
    scores significantly higher on `dev`. Return the scores on dev, the shares, and the scores of
    the network alone.
    """
    tallies: dict[ModelShares, Tally] = {}
    weights_and_sources = zip(linear.model_weights, (True, vectors, linear.static), strict=True)
    weights = [0.0 if source is None else weight for weight, source in weights_and_sources]
    for network, *linear_shares in SHARE_CHOICES:
        products = (share * weight for share, weight in zip(linear_shares, weights, strict=True))
        linear.shares = shares = ModelShares(network, *products)
        model.linear = linear if shares != NETWORK_ALONE else None
        guesses = predict_all(model, dev, vectors, settings.batch_size)
        tallies[shares] = model.tally(dev, guesses)
    default, *_ = tallies
    best = max(tallies, key=lambda shares: main_score(tallies[shares].scores()))
    if best != default and paired_bootstrap([tallies[best]], [tallies[default]])[0] <= 0:
        best = default
    linear.shares = best
    model.linear = linear if best != NETWORK_ALONE else None
    return tallies[best].scores(), best, tallies[NETWORK_ALONE].scores()


def predict_all(
    model: TaskModel,
    examples: Sequence[Any],
    vectors: Vectors | None,
    batch_size: int,
    *,
    with_scores: bool = False,
) -> list[Any]:
    """Predict all examples, in batches of at most `batch_size` of similar length. Return the
    results of `model.predict` or, if `with_scores`, of `model.answer`, in the order of the
    examples.

    `vectors` returns the ELMo layers of sentences (None: without ELMo).
    """
    was_training = model.training
    model.eval()
    predict = model.answer if with_scores else model.predict
    predictions: list[Any] = [None] * len(examples)
    order = sorted(range(len(examples)), key=lambda k: -token_count(examples[k]))
    row_batches = _batch(order, examples, batch_size)
    batches = [[examples[k] for k in rows] for rows in row_batches]
    device = next(model.parameters()).device
    with closing(batches_with_vectors(batches, vectors)) as reader, exact_float32(device):
        for rows, (batch, batch_vectors) in zip(row_batches, reader, strict=True):
            for row, prediction in zip(rows, predict(batch, batch_vectors), strict=True):
                predictions[row] = prediction
    model.train(was_training)
    return predictions


def batches_with_vectors(
    batches: Sequence[Sequence[Any]], vectors: Vectors | None
) -> Generator[tuple[Sequence[Any], Vectors | None], None, None]:
    """Yield each batch with a callable like `vectors` that has its sentences in memory (None if
    `vectors` is None). Meanwhile, another thread reads the vectors of the next batches."""
    if vectors is None:
        yield from ((batch, None) for batch in batches)
        return

    def read_batches() -> Iterator[tuple[Sequence[Any], Vectors]]:
        for batch in batches:
            sentences = list(dict.fromkeys(s for example in batch for s in example.sentences if s))
            vector_by_tokens = dict(zip(sentences, vectors(sentences), strict=True))
            yield batch, partial(_look_up, vector_by_tokens)

    yield from prefetch(read_batches())


def _look_up(vector_by_tokens: Mapping[Tokens, Any], sentences: Sequence[Tokens]) -> list[Any]:
    return [vector_by_tokens[sentence] for sentence in sentences]


def random_batches(examples: Sequence[T], size: int, rng: np.random.Generator) -> list[list[T]]:
    """Return all examples in random batches of at most `size` examples of similar length; batches
    of long texts are smaller."""
    order = rng.permutation(len(examples))
    batches: list[list[T]] = []
    for start in range(0, len(order), size * BATCHES_PER_POOL):
        pool = order[start : start + size * BATCHES_PER_POOL]
        sorted_pool = sorted(pool, key=lambda k: token_count(examples[k]))  # type: ignore[arg-type]
        batches += [[examples[k] for k in rows] for rows in _batch(sorted_pool, examples, size)]
    return [batches[k] for k in rng.permutation(len(batches))]


def check_examples(examples: Sequence[Example]) -> None:
    """Raise `ElmoError` for a value that is no example, and for a text without tokens. Also raise
    it if attention or the vectors of a text would not fit in memory.

    A question without tokens is allowed; it has no answer.
    """
    for example in examples:
        if not isinstance(example, Example):
            raise ElmoError(
                f"must be an example, found {example!r:.60}; for texts, call task(texts)"
            )
        check_token_lists(example.sentences)
        is_empty = not example.sentences or not all(example.sentences)
        if is_empty and not isinstance(example, Question):
            raise ElmoError(f"{example.source}: has a text without tokens; leave it out")
        if attention_pairs(example) > MAX_ATTENTION_PAIRS:
            limit = math.isqrt(MAX_ATTENTION_PAIRS)
            raise ElmoError(
                f"{example.source}: has {math.isqrt(attention_pairs(example)):,} tokens, more than "
                f"{limit:,}; memory grows with their square: cut it into shorter texts"
            )
        max_length = max(map(len, example.sentences), default=0)
        if max_length > MAX_SENTENCE_TOKENS:
            raise ElmoError(
                f"{example.source}: has a sentence of {max_length:,} tokens, more than "
                f"{MAX_SENTENCE_TOKENS:,}; cut it into sentences"
            )


def _batch(rows: Sequence[int], examples: Sequence[Any], size: int) -> list[list[int]]:
    """Split rows into batches of `size`, or fewer if their attention would need too much memory."""
    batches: list[list[int]] = []
    for start in range(0, len(rows), size):
        batch: list[int] = []
        max_pairs = 0
        for row in rows[start : start + size]:
            max_pairs = max(max_pairs, attention_pairs(examples[row]))
            if batch and (len(batch) + 1) * max_pairs > MAX_ATTENTION_PAIRS:
                batches.append(batch)
                batch, max_pairs = [], attention_pairs(examples[row])
            batch.append(row)
        batches.append(batch)
    return batches


def _record_score(progress: TaskProgress, scores: Scores, settings: TaskSettings) -> None:
    """Record whether an epoch is the best so far; without improvement the learning rate may be
    halved.

    While the score still equals that of the first epoch, patience does not count: the model may
    still predict one label for all examples.
    """
    metric, score = next(iter(scores.items()))
    first_score = progress.curve[0][metric] if progress.curve else score
    if score > progress.best:
        progress.best, progress.best_epoch, progress.stale = score, progress.epoch, 0
        return
    if score == progress.best == first_score < 1:
        return
    progress.stale += 1
    if settings.halve_after and progress.stale % settings.halve_after == 0:
        progress.lr /= 2


class _TaskTraining:
    """The optimizer, the moving average of the weights, and the checkpoints of one training."""

    def __init__(self, model: TaskModel, settings: TaskSettings, work: Path) -> None:
        self.model, self.settings, self.work = model, settings, work
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if settings.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.parameters, settings.lr)
        else:
            self.optimizer = torch.optim.Adadelta(self.parameters, settings.lr, rho=0.95, eps=1e-6)
        self.average = [p.detach().clone() for p in self.parameters] if settings.average else []

    def train_epoch(
        self, progress: TaskProgress, batches: Sequence[Sequence[Any]], vectors: Vectors | None
    ) -> float:
        """Take one step per batch; return the mean loss of the batches."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = progress.lr
        loss_sum = 0.0
        # The loss of the previous step is read while the next step is computed.
        pending_losses: list[Tensor] = []
        with closing(batches_with_vectors(batches, vectors)) as reader:
            for batch, batch_vectors in reader:
                loss = self.model.loss(batch, batch_vectors)
                self.optimizer.zero_grad()
                torch.autograd.backward(loss + self.model.inputs.l2())
                if self.settings.gradient_norm:
                    nn.utils.clip_grad_norm_(self.parameters, self.settings.gradient_norm)
                self.optimizer.step()
                progress.step += 1
                self._update_average(progress.step)
                loss_sum += sum(_finite_number(loss, progress.epoch) for loss in pending_losses)
                pending_losses = [loss.detach()]
        loss_sum += sum(_finite_number(loss, progress.epoch) for loss in pending_losses)
        return loss_sum / len(batches)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Replace the module's weights by their moving average for the duration of the context."""
        self._swap_weights()
        try:
            yield
        finally:
            self._swap_weights()

    def _swap_weights(self) -> None:
        for parameter, average in zip(self.parameters, self.average, strict=False):
            original = parameter.detach().clone()
            parameter.data.copy_(average)
            average.copy_(original)

    def resume(self) -> TaskProgress:
        """Continue from the newest checkpoint, or begin; return the progress."""
        for epoch in reversed(_saved_epochs(self.work)):
            try:
                return self._restore(epoch)
            except ElmoError as error:
                print(f"warning: {error}; resuming from the checkpoint before it", file=sys.stderr)
                shutil.rmtree(_epoch_folder(self.work, epoch))
        return TaskProgress(lr=self.settings.lr)

    def save(self, progress: TaskProgress) -> None:
        """Write a checkpoint and delete the others, except that of the best epoch."""
        tensors = {f"module.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in enumerate(self.average)}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
        with new_folder(Location(_epoch_folder(self.work, progress.epoch))) as folder:
            checkpoint = TaskCheckpoint(
                progress, save_weights(folder / "state.safetensors", tensors)
            )
            write_json(folder / CHECKPOINT_FILE, msgspec.to_builtins(checkpoint))
        for epoch in _saved_epochs(self.work):
            if epoch not in (progress.epoch, progress.best_epoch):
                shutil.rmtree(_epoch_folder(self.work, epoch), ignore_errors=True)

    def load_best(self, progress: TaskProgress) -> None:
        """Load the weights of the best epoch into the module: their moving average, if any."""
        self._restore(progress.best_epoch)
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=False):
                parameter.copy_(average)
        self.model.eval()

    def _restore(self, epoch: int) -> TaskProgress:
        checkpoint = read_record(_epoch_folder(self.work, epoch) / CHECKPOINT_FILE, TaskCheckpoint)
        path = _epoch_folder(self.work, epoch) / "state.safetensors"
        check_sha256(path, checkpoint.sha256)
        tensors = load_weights(path)
        self.model.load_state_dict(strip_prefix(tensors, "module."))
        for index, average in enumerate(self.average):
            average.copy_(tensors[f"average.{index}"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in strip_prefix(tensors, "optimizer.").items():
            index_text, key = name.split(".")
            state.setdefault(int(index_text), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        return checkpoint.progress

    def _update_average(self, step: int) -> None:
        """Move the average towards the weights, faster in the first steps."""
        decay = min(self.settings.average, (1 + step) / (10 + step))
        with torch.no_grad():
            for average, parameter in zip(self.average, self.parameters, strict=False):
                average.lerp_(parameter, 1 - decay)


def _epoch_folder(work: Path, epoch: int) -> Path:
    return work / f"epoch-{epoch:05d}"


def _saved_epochs(work: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("epoch-")) for p in work.glob("epoch-*"))


def _finite_number(loss: Tensor, epoch: int) -> float:
    """Return a loss as a Python number; raise `ElmoError` if it is not finite."""
    value = loss.item()
    if not math.isfinite(value):
        raise ElmoError(f"the loss is {value} in epoch {epoch + 1}; lower lr or gradient_norm")
    return value
