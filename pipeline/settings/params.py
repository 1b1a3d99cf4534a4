"""The content of `params.yaml`: one section per stage, with a description of each key.

Fields have no defaults: `params.yaml` is the only place for values. The range of a field is in its
type. Settings of how to run the work (workers, cores, GPUs) are in `pipeline.settings.cluster`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from elmo.data.tokenizer import TOKENIZERS
from elmo.errors import BadSettings, ElmoError
from elmo.settings import (
    MAX_CHARACTERS,
    NetworkSettings,
    NonNegativeInt,
    PositiveInt,
    StoreSettings,
    TrainingSettings,
)
from elmo.tasks.kinds import KINDS, task_settings

from . import strict_yaml

Line = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f]{1,1000}\Z", description="one line of text")]
Source = Annotated[
    str, Meta(pattern=r"\A[^\x00]{1,4096}\Z", description="a file, folder, glob or URL")
]
PackageName = Annotated[
    str,
    Meta(
        pattern=r"\A([A-Za-z_][\w.]{0,199})?\Z",
        description="the name of a Python package, or nothing",
    ),
]
if TYPE_CHECKING:
    TaskKind = str
    TokenizerName = str
else:
    TaskKind = Literal[tuple(KINDS)]
    TokenizerName = Literal[tuple(TOKENIZERS)]
ModelName = Annotated[
    str,
    Meta(pattern=r"\A[^\x00-\x1f]{0,4096}\Z", description="a model's name or folder, or nothing"),
]
LabelledFile = Annotated[
    str, Meta(pattern=r"\A[^\x00]{1,4096}\Z", description="the path of a file or folder")
]
# A task's name is part of the names of files, stages and runs.
TaskName = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z",
        description="a name of at most 64 letters, digits, - and _",
    ),
]
Script = Literal[
    "latin",
    "greek",
    "cyrillic",
    "hebrew",
    "arabic",
    "indic",
    "thai",
    "hangul",
    "han or kana",
    "other",
]
SettingValue = bool | int | float | str
RegistryName = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}\Z",
        description="a name of at most 128 letters, digits, spaces, dots, - and _",
    ),
]


@dataclass(frozen=True)
class CorpusSettings:
    """The section `corpus`: the files of the general and of the domain text.

    If both lists are empty, text that each Python installation has is used.
    """

    general: tuple[Source, ...]
    """The text that the language model is trained on: files, folders, globs or URLs. Empty: the
    Python language reference and the standard library's docstrings."""
    domain: tuple[Source, ...]
    """The text of your domain: the model is fine-tuned on it, and its vectors are stored. Required
    if `general` is set. Empty: the docstrings of `domain_package`."""
    domain_package: PackageName
    """The installed package whose docstrings are the domain text if `domain` is empty."""
    column: Line
    """The column of CSV, TSV and Parquet, or the field of JSON lines, that holds the text; `title +
    body` joins two, `data.text` is a field within another. Plain text ignores it."""
    keep: tuple[Line, ...]
    """Other columns of the domain text's records, such as their id, to store with each sentence.
    `elmo neighbors` shows them."""


@dataclass(frozen=True)
class LabelsSettings:
    """The section `labels`: the package whose docstrings become labelled text for a first task.

    The task is to find the words that the docstrings mark as code.
    """

    package: PackageName
    """The installed package whose docstrings are labelled; empty: none."""
    train: Annotated[int, Meta(ge=1, le=10**6)]
    """The maximum number of training sentences."""
    dev: Annotated[int, Meta(ge=1, le=10**6)]
    """The maximum number of sentences that select the best epoch."""
    test: Annotated[int, Meta(ge=1, le=10**6)]
    """The maximum number of test sentences."""


@dataclass(frozen=True)
class ProjectTask:
    """One task of the section `tasks`: its kind, its labelled files, and its training settings."""

    kind: TaskKind
    """The kind of task, which determines the model and the metric."""
    train: LabelledFile
    """The labelled file or folder to train on."""
    dev: LabelledFile
    """The labelled file that selects the best epoch."""
    test: LabelledFile
    """The labelled file for the final scores."""
    format: Literal["", "conll", "conllu", "tsv", "csv", "jsonl", "json"]
    """The format of the files; empty: from their extensions."""
    columns: Annotated[
        str, Meta(pattern=r"\A[^\x00-\x1f]{0,1000}\Z", description="one line of text")
    ]
    """The column of each field, such as word=2,tag=4 or label=stars; empty: the usual ones."""
    scheme: Literal["", "bio", "iob1", "bioes", "plain"]
    """The scheme of the tags; empty: detected."""
    seeds: Annotated[int, Meta(ge=1, le=100)]
    """The number of training runs, with seeds 0, 1, and so on."""
    baseline: bool
    """Whether to train it without ELMo too."""
    settings: dict[str, SettingValue]
    """Changes to the default settings of this kind, such as epochs; docs/tasks.md lists them."""

    def __post_init__(self) -> None:
        """Check the settings together, as the task does."""
        if len({self.train, self.dev, self.test}) < 3:
            raise BadSettings("train, dev and test must be three different files")
        try:
            task_settings(self.kind, dict(self.settings))
        except ElmoError as error:
            raise BadSettings(f"settings: {error}") from None


@dataclass(frozen=True)
class TokenizeSettings:
    """The section `tokenize`: how text is tokenized, and how much of it is held out."""

    tokenizer: TokenizerName
    """The tokenizer for the language of the text (docs/guides/choosing.md). It becomes part of the
    model."""
    sentences: Literal["line", "split"]
    """`line`: each line is a sentence; `split`: lines are split into sentences, and blank lines
    only separate documents."""
    documents: Literal["auto", "file", "line", "blank"]
    """The unit that is held out or trained on as a whole: a file, a line (or record), or what blank
    lines divide in plain text. `auto`: a record of a table or JSON lines; in plain text, text
    between blank lines, or a line if one such document has more than an eighth of the text."""
    heldout: Annotated[float, Meta(ge=0, lt=1)]
    """The share of documents that are held out: never trained on, but used to measure perplexity.
    Their hashes decide which. Above 0, at least one document is held out and one is not."""
    near_duplicates: Annotated[float, Meta(ge=0, le=1)]
    """A document is left out if its similarity to an earlier one of the same text is at least this,
    and so is general text that is as similar to held-out domain text. At 0.8, up to about 1 word in
    50 differs, at 0.3, 1 in 7; 0: only copies are left out."""
    repeated_lines: NonNegativeInt
    """A line that is in this many documents of a text, such as a header or a signature, is left out
    of all of them; 0: none is left out."""
    min_bytes: NonNegativeInt
    """The size in bytes below which a document is left out; 0: no limit."""
    max_bytes: NonNegativeInt
    """The size in bytes above which a document is left out; 0: no limit."""
    max_symbols: Annotated[float, Meta(ge=0, le=1)]
    """A document is left out if more than this share of its characters (not counting white space)
    are digits, punctuation or other symbols; 1: no limit."""
    scripts: tuple[Script, ...]
    """The scripts to keep: a document with most of its letters in another one is left out. Empty:
    all."""
    shard_bytes: Annotated[int, Meta(ge=1024, le=2**31)]
    """About how many bytes of text one shard holds, doubled until there are at most about 8,192
    shards. A part of a store holds about 262,144 tokens of a shard."""


@dataclass(frozen=True)
class VocabSettings:
    """The section `vocab`: the words of the softmax, and the characters."""

    min_count: PositiveInt
    """How often a token must occur to become a word, a target of the softmax. Rarer tokens are
    `<UNK>` in the softmax, but still have their own vectors."""
    max_words: NonNegativeInt
    """The maximum number of words, the most frequent ones (at least 4); 0: no limit."""
    characters: Literal["bytes", "unicode"]
    """The input of the char-CNN: UTF-8 `bytes`, as in 2018, or `unicode` characters, for scripts
    with several bytes per character."""
    min_character_count: PositiveInt
    """How often a Unicode character must occur to have its own id. `bytes` ignores it."""
    max_characters: Annotated[int, Meta(ge=3, le=MAX_CHARACTERS)]
    """The maximum number of characters of a token that are read, including the two marks around it;
    2018: 50."""

    def __post_init__(self) -> None:
        """Refuse a number of words that leaves room only for `<S>`, `</S>` and `<UNK>`."""
        if 0 < self.max_words < 4:
            raise BadSettings(
                f"max_words must be 0 (no limit) or 4 or more, found {self.max_words}"
            )


@dataclass(frozen=True)
class PretrainSettings:
    """The section `pretrain`: the network and its training, or a trained model to use instead."""

    network: NetworkSettings
    training: TrainingSettings
    model: ModelName = ""
    """A trained model to use unchanged instead of training one: the name of an installed model or a
    model folder; empty: train one."""


@dataclass(frozen=True)
class FinetuneSettings:
    """The section `finetune`: how the pretrained model is trained on the domain text."""

    training: TrainingSettings
    new_words: NonNegativeInt
    """How often a token must occur in the domain text to become a new word; 0: no new words. They
    start with the weights of `<UNK>` and share its probability."""


@dataclass(frozen=True)
class RegisterSettings:
    """The section `register`: the name in MLflow's registry, and how the champion is chosen."""

    name: RegistryName
    """The name of the model in MLflow's registry."""
    margin: Annotated[float, Meta(ge=0, lt=1)]
    """The share by which a new version must lower held-out perplexity, on the same text, to become
    champion (`models:/elmo@champion`)."""


@dataclass(frozen=True)
class ReportSettings:
    """The section `report`: the title of the page, and the words whose neighbours it lists."""

    title: Line
    """The title of the page."""
    neighbors_of: tuple[Line, ...]
    """Sentences with one token in brackets. For each, the report lists the tokens of the store with
    the most similar use. Empty: none."""
    neighbors: Annotated[int, Meta(ge=1, le=1000)]
    """The number of neighbours for each sentence."""


@dataclass(frozen=True)
class Params:
    """The content of params.yaml: one field for each section."""

    corpus: CorpusSettings
    tokenize: TokenizeSettings
    vocab: VocabSettings
    pretrain: PretrainSettings
    finetune: FinetuneSettings
    features: StoreSettings
    register: RegisterSettings
    labels: LabelsSettings
    tasks: dict[TaskName, ProjectTask]
    """Tasks on labelled files, each by a name of your own; {}: none."""
    report: ReportSettings

    def __post_init__(self) -> None:
        """Refuse filters that are wider than a token."""
        widest = max(width for width, _ in self.pretrain.network.filters)
        if not self.pretrain.model and widest > self.vocab.max_characters:
            raise BadSettings(
                f"pretrain.network.filters: must be at most {self.vocab.max_characters} characters "
                f"wide (vocab.max_characters), found {widest}"
            )


def load(path: Path) -> Params:
    """Read params.yaml; raise `ElmoError` with the file, line and key of an error."""
    return strict_yaml.read_settings(path, Params, is_complete=True)
