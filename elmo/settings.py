"""The settings of the network, of training and of a store, checked when they are constructed.

This module does not import torch. The range of a setting is part of its field's type and stated
nowhere else; `check_value` reads it there, both for these settings and for those in `params.yaml`,
which has the defaults.
"""

import math
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from numbers import Integral
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from elmo.errors import BadSettings, ElmoError

NonNegativeInt = Annotated[int, Meta(ge=0, le=2**31)]
PositiveInt = Annotated[int, Meta(ge=1, le=2**31)]
Seed = Annotated[int, Meta(ge=0, le=2**31)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=1e6)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e6)]
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PrecisionChoice = Literal["auto", "float32", "bfloat16"]
Dtype = Literal["float16", "float32"]
Codec = Literal["none", "zstd"]
# With `epochs: 0`, training takes at least MIN_AUTO_STEPS steps, but reads the text at most
# MAX_AUTO_EPOCHS times. If you change these, raise the versions of the stages pretrain and
# finetune.
MIN_AUTO_STEPS, MAX_AUTO_EPOCHS = 400, 4
MAX_LAYERS = 256  # LSTM layers in each direction
MAX_CHARACTERS = 1024  # characters of a token that the char-CNN reads
MAX_SENTENCE_TOKENS = 32_768  # tokens of a sentence, whose vectors must fit in memory
MAX_LINE_BYTES = 16 << 20  # bytes of one line, record or value of a text; memory grows with it


def list_stop_signals() -> list[signal.Signals]:
    """Return the stop signals that this process does not ignore: nohup makes it ignore SIGHUP, and
    a shell makes a background process ignore SIGINT."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return [signum for signum in signals if signal.getsignal(signum) != signal.SIG_IGN]


def check_value(name: str, value: Any, type_: Any) -> Any:
    """Return `value` converted to `type_`, a type that may state a range; if it does not fit, raise
    `BadSettings`, which says what the setting `name` must be."""
    try:
        return msgspec.convert(value, type=type_)
    except (msgspec.ValidationError, ValueError):
        raise BadSettings(f"{name} must be {describe_type(type_)}, found {_quote(value)}") from None


def is_whole_number(value: object) -> bool:
    """Tell whether a value is an integer of Python or NumPy; a boolean is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    """Raise `BadSettings` unless the argument `name` is a whole number of 1 or more."""
    if not is_whole_number(value) or value < 1:
        raise BadSettings(f"{name} must be a whole number of 1 or more, found {value!r:.80}")


def check_iterable(name: str, value: Any) -> Iterator[Any]:
    """Return an iterator of the argument `name`; raise `BadSettings` unless it is iterable."""
    try:
        return iter(value)
    except TypeError:
        message = f"{name} must be a list or another iterable, found {value!r:.80}"
        raise BadSettings(message) from None


def check_instance(name: str, value: object, type_: type) -> None:
    """Raise `BadSettings` unless the argument `name` is an instance of a class."""
    if not isinstance(value, type_):
        raise BadSettings(f"{name} must be a {type_.__name__}, found {value!r:.80}")


def check_fields(settings: Any) -> None:
    """Raise `BadSettings` if a field of a dataclass does not fit its type."""
    for name, field_type in field_types(settings.__class__).items():
        check_value(name, getattr(settings, name), field_type)


@cache
def field_types(type_: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by name, with its range (`Annotated`)."""
    return get_type_hints(type_, include_extras=True)


def describe_type(type_: Any) -> str:
    """Describe the values that a type allows, such as "a whole number of at least 1", for a
    message."""
    words_by_type = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if get_origin(type_) in (Union, UnionType):
        return " or ".join(
            "null" if arg is type(None) else describe_type(arg) for arg in get_args(type_)
        )
    if get_origin(type_) is Literal:
        return "one of " + ", ".join(map(str, get_args(type_)))
    if get_origin(type_) is tuple:
        return "a list"
    if get_origin(type_) is not Annotated:
        return words_by_type.get(type_, f"a {getattr(type_, '__name__', type_)}")
    base, *metadata = get_args(type_)
    meta = next(item for item in metadata if isinstance(item, Meta))
    if meta.description is not None:
        return meta.description
    bounds = [
        f"{word} {bound:,}" if isinstance(bound, int) else f"{word} {bound:g}"
        for word, bound in (
            ("of at least", meta.ge),
            ("above", meta.gt),
            ("at most", meta.le),
            ("below", meta.lt),
        )
        if bound is not None
    ]
    if get_origin(base) is tuple and meta.min_length:
        entries = "entry" if meta.min_length == 1 else "entries"
        bounds.append(f"of at least {meta.min_length} {entries}")
    return " ".join([describe_type(base), " and ".join(bounds)]).strip()


def _quote(value: Any) -> str:
    """Return a value as short text on one line, for a message."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "…"


@dataclass(frozen=True)
class NetworkSettings:
    """The settings of a bidirectional language model's network."""

    char_dim: Annotated[int, Meta(ge=1, le=2**14)]
    """The width of a character vector."""
    filters: Annotated[
        tuple[
            tuple[
                Annotated[int, Meta(ge=1, le=MAX_CHARACTERS)], Annotated[int, Meta(ge=1, le=2**17)]
            ],
            ...,
        ],
        Meta(min_length=1, max_length=256, description="a list of 1 to 256 pairs"),
    ]
    """The filters of the char-CNN: pairs of a width in characters and the number of filters."""
    activation: Literal["relu", "tanh"]
    """The activation after the filters."""
    highways: Annotated[int, Meta(ge=0, le=64)]
    """The number of highway layers after the filters."""
    cells: Annotated[int, Meta(ge=1, le=2**17)]
    """The number of cells of each LSTM, in each layer and direction."""
    projection: Annotated[int, Meta(ge=1, le=2**17)]
    """The width to which each LSTM's output is projected. A token vector is twice as wide."""
    layers: Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
    """The number of LSTM layers in each direction. A token has one more vector than layers."""
    cell_clip: PositiveFloat | None
    """The bound on each number of the LSTM's cell state; null: none."""
    projection_clip: PositiveFloat | None
    """The bound on each number of the LSTM's output; null: none."""
    skip: bool
    """Whether layers from the second on add their input to their output."""


@dataclass(frozen=True)
class OptimizerSettings:
    """The settings of the optimizer: adagrad, as in 2018, or adamw."""

    name: Literal["adagrad", "adamw"]
    """The optimizer. The recipe of 2018 is adagrad with lr 0.2, accumulator 1 and epsilon 0."""
    lr: PositiveFloat
    """The highest learning rate, reached at the end of the warm-up."""
    warmup_steps: NonNegativeInt
    """The number of steps in which the learning rate rises linearly from near 0 to `lr`."""
    decay: Literal["constant", "linear", "cosine"]
    """The learning-rate schedule from the end of the warm-up to the last step."""
    final_lr: Fraction
    """The share of `lr` that is left at the last step. `constant` ignores it."""
    clip: NonNegativeFloat
    """The bound on the norm of all gradients together, before the update; 0: none."""
    accumulator: NonNegativeFloat
    """The initial value of Adagrad's sums of squared gradients. AdamW ignores it."""
    beta1: BelowOne
    """AdamW's decay rate for the mean of past gradients. Adagrad ignores it."""
    beta2: BelowOne
    """AdamW's decay rate for the mean of past squared gradients. Adagrad ignores it."""
    epsilon: Fraction
    """A number added to the divisor of an update, so that it is never 0."""
    weight_decay: Fraction
    """The share of each weight that AdamW subtracts per step, times the learning rate. Biases are
    excluded."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epsilon == 0 and (self.name == "adamw" or self.accumulator == 0):
            raise BadSettings(
                "epsilon 0 divides by 0 for weights without a gradient yet; set it above 0, such "
                "as 1e-8, or use adagrad with an accumulator above 0"
            )
        if self.name == "adamw" and not self.beta1**2 < self.beta2:
            raise BadSettings(
                f"adamw needs beta1² < beta2, found {self.beta1} and {self.beta2}; change one"
            )

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate at `step`, counted from 0, of a training of `steps` steps."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return self.lr
        progress = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        share = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.lr * (self.final_lr + (1 - self.final_lr) * share)


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a biLM's training. A step reads `rows` parallel streams of text, `window`
    tokens of each, in each direction."""

    seed: Seed
    """The seed of the random numbers: initial weights, order of the text, dropout and samples."""
    epochs: NonNegativeInt
    """The number of passes over the training text. 0: the smallest number that gives 400 steps, but
    at most 4."""
    rows: Annotated[int, Meta(ge=1, le=2**16)]
    """The number of parallel streams of text in a step. More rows use a processor better; fewer
    give more updates."""
    window: Annotated[int, Meta(ge=1, le=2**12)]
    """The number of tokens of each row in a step, in each direction. Gradients flow no further
    back."""
    block_sentences: PositiveInt
    """The number of consecutive sentences that stay together when the text is shuffled."""
    reset: Literal["sentence", "never"]
    """`sentence` sets the LSTM state to zero at the start of each sentence; `never` keeps it, as in
    2018."""
    precision: PrecisionChoice
    """The precision of matrix products. bfloat16 is several times as fast on hardware that supports
    it, and many times slower elsewhere. `auto` times both before training, so results differ
    between machines."""
    softmax: Literal["sampled", "full"]
    """`sampled` compares the right word with `samples` candidates; `full` compares it with
    all words and is slower."""
    samples: Annotated[int, Meta(ge=1, le=2**24)]
    """The number of candidates of the sampled softmax per step. More are slower and closer to the
    full softmax."""
    draws: Literal["shared", "separate"]
    """`shared`: both directions use one draw of candidates; `separate`: each has its own, as in
    2018."""
    loss_scale: PositiveFloat
    """The factor of the mean loss. In 2018 the gradient was that of loss × window, which affects
    Adagrad's accumulator and the clip."""
    dropout: BelowOne
    """The dropout rate: the share of values between layers that training sets to 0."""
    optimizer: OptimizerSettings
    evaluate_every: NonNegativeInt
    """The number of steps between measurements of held-out perplexity; one more is made at the end.
    0: 3 to 50 measurements, which take about a tenth of the arithmetic of training."""
    evaluate_tokens: Annotated[int, Meta(ge=0, le=2**40)]
    """About how many held-out tokens a measurement during training reads. 0: all, but at most about
    200,000, as before and after training."""
    patience: NonNegativeInt
    """The number of measurements without improvement before training stops; 0: never."""

    def __post_init__(self) -> None:
        check_fields(self)

    def with_chosen_epochs(self, tokens: int) -> "TrainingSettings":
        """Return the settings with `epochs: 0` replaced by a number for a training text of `tokens`
        tokens."""
        if self.epochs:
            return self
        steps = tokens / (self.rows * self.window)  # steps of one epoch
        return replace(self, epochs=min(MAX_AUTO_EPOCHS, max(1, math.ceil(MIN_AUTO_STEPS / steps))))


@dataclass(frozen=True)
class CheckpointSettings:
    """The settings of checkpoints: how often a training saves its state, and how many saved states
    it keeps; results do not depend on them.

    A checkpoint is written every `minutes`, at each measurement of held-out perplexity and at the
    end. The last `keep` and the best one are kept.
    """

    minutes: Annotated[float, Meta(ge=0, le=100_000)]
    """Minutes between two checkpoints."""
    keep: Annotated[int, Meta(ge=1, le=1000)]
    """The number of recent checkpoints to keep, besides the best one."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class StoreSettings:
    """The settings of a store: its layers and their format."""

    layers: Annotated[
        str,
        Meta(
            pattern=r"\A(all|top|\d{1,3}(,\d{1,3})*)\Z",
            description="all, top or comma-separated numbers, in quotes",
        ),
    ] = "all"
    """The layers to store for each token: all, the `top` one, or those of some numbers."""
    dtype: Dtype = "float16"
    """The number type of the vectors."""
    codec: Codec = "none"
    """The compression of the stored vectors."""
    row_group_tokens: Annotated[int, Meta(ge=1, le=10**7)] = 2048
    """About how many tokens a row group holds, the smallest unit of reading."""
    precision: PrecisionChoice = "float32"
    """The precision in which vectors are computed. `auto` times float32 and bfloat16 on this
    machine."""

    def __post_init__(self) -> None:
        check_fields(self)


_CHARACTER_FIELDS = ("char_dim", "filters", "highways", "activation")


@dataclass(frozen=True)
class ModelShape(NetworkSettings):
    """The shape of a model, as recorded in its `config.json` under `model`: the settings of its
    network, which may also read words.

    `input_words` is None for a model that reads characters. For a model of 2018 that reads words,
    it is their number, and the settings of the char-CNN are unused.
    """

    input_words: PositiveInt | None

    def __post_init__(self) -> None:
        unused_fields = () if self.input_words is None else _CHARACTER_FIELDS
        for name, field_type in field_types(ModelShape).items():
            if name not in unused_fields:
                check_value(name, getattr(self, name), field_type)

    @property
    def dim(self) -> int:
        """Return the width of a token's vector, both directions together."""
        return 2 * self.projection

    def to_dict(self) -> dict[str, Any]:
        """Return the shape as a JSON object, which `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any], *, source: Path | str) -> "ModelShape":
        """Create a shape from a JSON object; if it is invalid, raise `BadSettings`, which names
        `source`."""
        names = {field.name for field in fields(cls)}
        if missing_names := sorted(names - value.keys()):
            raise BadSettings(f"{source}: {missing_names[0]} is missing")
        if unknown_names := sorted(value.keys() - names):
            raise BadSettings(f"{source}: {unknown_names[0]} is not a setting of a model")
        try:
            filters = tuple((width, count) for width, count in value["filters"])
        except (TypeError, ValueError):
            raise BadSettings(f"{source}: filters must be pairs [width, count]") from None
        try:
            return cls(**(value | {"filters": filters}))
        except ElmoError as error:
            raise BadSettings(f"{source}: {error}") from None
