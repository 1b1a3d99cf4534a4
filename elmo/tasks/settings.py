"""The settings of a task, one record for all kinds. This module does not import torch."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from elmo.errors import BadSettings, suggest_name
from elmo.settings import BelowOne, NonNegativeFloat, describe_type, field_types

SmallPositiveInt = Annotated[int, Meta(ge=1, le=1 << 20)]
Width = Annotated[int, Meta(ge=1, le=1 << 15)]
SmallCount = Annotated[int, Meta(ge=0, le=1 << 20)]


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a task's training, for all kinds.

    `elmo` is `frozen` (vectors are computed once) or `none` (the baseline without ELMo). `layers`
    are the numbers of the layers to use, 0 being the context-free one (None: all). They are mixed
    with weights w and a scale γ: `mix` is `learned`, or `average` (only γ is learned); `l2` is λ of
    the penalty λ·Σw². ELMo is added to the input with `elmo_input`, and with `elmo_output` to the
    output of a recurrent layer: the last one for tagging and roles, else the first. `elmo_dropout`
    is 0 by default if the model already drops its whole input, ELMo included. `words` is `learned`
    (with the task, for words that occur `min_count` times), `file` (a word2vec or GloVe text,
    `word_file`) or `none`; `characters` is the number of filters of the character CNN. `hidden` is
    the width of the recurrent layers in each direction, `depth` their number. `gradient_norm`
    bounds the gradients' norm (0: no bound). Training ends after `patience` epochs without a better
    dev score.

    Tagging, classification and pairs: linear models of hand-crafted features, hashed to `features`
    rows of weights, and of ELMo's vectors predict beside the network (0: none). Classification and
    pairs: `class_weights: balanced` gives each label the same weight in the loss, however rare it
    is. Questions: an answer has at most `answer_tokens` tokens. Coreference: the model tries spans
    of up to `span_tokens` tokens, keeps `spans_per_token` of them for each token of the document,
    compares each with up to `antecedents` kept before it, and trains on `sentences` sentences of a
    document at a time.
    """

    elmo: Literal["frozen", "none"] = "frozen"
    layers: tuple[SmallCount, ...] | None = None
    mix: Literal["learned", "average"] = "learned"
    elmo_input: bool = True
    elmo_output: bool = False
    elmo_dropout: BelowOne = 0.5
    layer_norm: Literal["bilm-tf", "allennlp"] | None = None
    l2: NonNegativeFloat = 0.001
    words: Literal["learned", "file", "none"] = "learned"
    word_file: str = ""
    word_dim: Width = 100
    min_count: SmallPositiveInt = 2
    characters: Annotated[int, Meta(ge=0, le=1 << 15)] = 64
    features: Annotated[int, Meta(ge=0, le=1 << 22)] = 0
    hidden: Width = 100
    depth: Annotated[int, Meta(ge=1, le=64)] = 1
    dropout: BelowOne = 0.3
    optimizer: Literal["adam", "adadelta"] = "adam"
    lr: NonNegativeFloat = 0.001
    halve_after: SmallCount = 0  # epochs without a better score after which lr is halved; 0: never
    gradient_norm: NonNegativeFloat = 5.0
    average: BelowOne = 0.0  # the decay of the evaluated moving average of weights; 0: none
    batch_size: SmallPositiveInt = 32
    epochs: SmallPositiveInt = 100
    patience: SmallPositiveInt = 5
    answer_tokens: SmallPositiveInt = 17
    span_tokens: SmallPositiveInt = 10
    spans_per_token: Annotated[float, Meta(gt=0, le=1)] = 0.4
    antecedents: SmallPositiveInt = 50
    class_weights: Literal["none", "balanced"] = "none"
    sentences: SmallPositiveInt = 50  # sentences of a document trained on at a time


def with_changes(defaults: TaskSettings, changes: dict[str, Any]) -> TaskSettings:
    """Return `defaults` with the values in `changes`, by name; text is converted to the setting's
    type.

    `layers` may also be a single number.
    """
    values = msgspec.to_builtins(defaults)
    for name in changes:
        if name not in values:
            names = f"; there are {', '.join(values)}"
            raise BadSettings(f"no setting {name!r}{suggest_name(str(name), values) or names}")
    if isinstance(changes.get("layers"), int):
        changes = {**changes, "layers": [changes["layers"]]}
    try:
        settings = msgspec.convert({**values, **changes}, TaskSettings, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).partition("`$.")[2].partition("`")[0].partition("[")[0]
        expected = describe_type(field_types(TaskSettings)[name])
        raise BadSettings(f"{name} must be {expected}, found {changes[name]!r:.80}") from None
    _check_settings(settings)
    return settings


def _check_settings(settings: TaskSettings) -> None:
    if settings.elmo == "none" and settings.words == "none" and not settings.characters:
        raise BadSettings(
            "elmo: none, words: none and characters: 0 leave no input; change one of them"
        )
    if settings.elmo != "none" and not settings.elmo_input:
        if not settings.elmo_output:
            raise BadSettings("elmo_input and elmo_output: set one to true, or set elmo to none")
        if settings.words == "none" and not settings.characters:
            raise BadSettings("elmo_input: false needs words or characters at the input")
    if (settings.words == "file") != bool(settings.word_file):
        raise BadSettings(
            "words and word_file: set both words: file and word_file: FILE, or neither"
        )
