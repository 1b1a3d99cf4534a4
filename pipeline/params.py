"""What `params.yaml` holds: a section a stage, each key explained where it stands.

No field has a default: a number has one home, and that is `params.yaml`.
"""

from dataclasses import dataclass
from pathlib import Path

from elmo.settings import Training
from pipeline import settings


@dataclass(frozen=True)
class Corpus:
    """Where the text comes from; with empty lists, prose that every machine has."""

    general: tuple[str, ...]
    task: tuple[str, ...]
    task_package: str
    column: str


@dataclass(frozen=True)
class Tokenize:
    """How text becomes sentences of tokens."""

    tokenizer: str
    sentences: str
    documents: str
    heldout: float
    shard_bytes: int


@dataclass(frozen=True)
class Vocab:
    """Which tokens become words, and what a character is."""

    min_count: int
    max_words: int
    characters: str
    min_character_count: int
    max_characters: int


@dataclass(frozen=True)
class Network:
    """The shape of the biLM: `filters` are pairs (width in characters, count)."""

    char_dim: int
    filters: tuple[tuple[int, int], ...]
    activation: str
    highways: int
    cells: int
    projection: int
    layers: int
    cell_clip: float | None
    projection_clip: float | None
    skip: bool


@dataclass(frozen=True)
class Pretrain:
    """The network and its training."""

    network: Network
    training: Training


@dataclass(frozen=True)
class Finetune:
    """Training on task text, from a pretrained model.

    Task tokens seen `new_words` times or more become words of their own (0: none). `freeze` names
    what stays as it was: encoder, lstm.1, lstm.2, …, softmax. `layer_decay` multiplies the learning
    rate once for each layer below the softmax.
    """

    training: Training
    new_words: int
    freeze: tuple[str, ...]
    layer_decay: float


@dataclass(frozen=True)
class Features:
    """What a store holds of each token."""

    layers: str
    mix: str
    dtype: str
    codec: str
    row_group_tokens: int
    precision: str


@dataclass(frozen=True)
class Register:
    """The name and alias in the model registry."""

    name: str
    alias: str


@dataclass(frozen=True)
class Report:
    """What the report shows."""

    title: str
    neighbors_of: str
    neighbors: int


@dataclass(frozen=True)
class Cluster:
    """What changes only speed: no stage lists it, no result depends on it.

    `workers` train (0: in this process), each with `cpus` cores, and a GPU where `gpu`; `actors`
    embed and tokenize, one core each (0: as many as there are cores).
    """

    workers: int
    cpus: int
    gpu: bool
    actors: int


@dataclass(frozen=True)
class Params:
    """The whole file."""

    corpus: Corpus
    tokenize: Tokenize
    vocab: Vocab
    pretrain: Pretrain
    finetune: Finetune
    features: Features
    register: Register
    report: Report
    cluster: Cluster


def load(path: Path) -> Params:
    """Read `params.yaml`; `ElmoError` names the first key that is wrong."""
    return settings.read(path, Params)
