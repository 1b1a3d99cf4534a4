"""The bidirectional language model: an encoder shared by both directions and the LSTM stacks."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmo.encoder import CharacterEncoder, WordEncoder
from elmo.errors import ElmoError
from elmo.lstm import LSTMStack


@dataclass(frozen=True)
class Config:
    """What `config.json` says of a model: its shape, no weights and no training settings.

    `filters` are pairs (width in characters, count). `input_words` is None for a model that reads
    characters, else the number of rows of its word table (2018 files with `embedding`).
    """

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
    input_words: int | None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def dim(self) -> int:
        """The width of a token's vectors: both directions."""
        return 2 * self.projection

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any], *, source: Path) -> "Config":
        """Build from a JSON object; `source` is named in errors."""
        names = {field.name for field in fields(cls)}
        if missing := sorted(names - value.keys()):
            raise ElmoError(f"{source}: {missing[0]} is missing")
        if unknown := sorted(value.keys() - names):
            raise ElmoError(f"{source}: {unknown[0]} is not a setting of a model")
        try:
            filters = tuple((width, count) for width, count in value["filters"])
        except (TypeError, ValueError):
            raise ElmoError(f"{source}: filters must be pairs [width, count]") from None
        try:
            return cls(**(value | {"filters": filters}))
        except ElmoError as error:
            raise ElmoError(f"{source}: {error}") from None


def _check(config: Config) -> None:
    def positive(name: str, value: Any) -> None:
        if type(value) is not int or value < 1:
            raise ElmoError(f"{name} must be a positive integer, found {value!r}")

    for name in ("cells", "projection", "layers"):
        positive(name, getattr(config, name))
    if config.input_words is not None:
        positive("input_words", config.input_words)
    else:
        positive("char_dim", config.char_dim)
        for pair in config.filters:
            positive("filters: width", pair[0])
            positive("filters: count", pair[1])
        if not config.filters:
            raise ElmoError("filters must not be empty")
        if type(config.highways) is not int or config.highways < 0:
            raise ElmoError(f"highways must be 0 or more, found {config.highways!r}")
        if config.activation not in ("relu", "tanh"):
            raise ElmoError(f"activation must be 'relu' or 'tanh', found {config.activation!r}")
    for name in ("cell_clip", "projection_clip"):
        clip = getattr(config, name)
        if clip is not None and not (type(clip) in (int, float) and clip > 0):
            raise ElmoError(f"{name} must be a positive number or null, found {clip!r}")
    if type(config.skip) is not bool:
        raise ElmoError(f"skip must be true or false, found {config.skip!r}")


class BiLM(nn.Module):
    """`encode` gives each distinct token its context-free vector; `lstm` reads them both ways.

    Apart from the softmax (elmo.softmax), this is all that is trained.
    """

    def __init__(self, config: Config, *, characters: int) -> None:
        super().__init__()
        self.config = config
        self.encoder: CharacterEncoder | WordEncoder
        if config.input_words is None:
            self.encoder = CharacterEncoder(
                characters=characters,
                char_dim=config.char_dim,
                filters=config.filters,
                activation=config.activation,
                highways=config.highways,
                projection=config.projection,
            )
        else:
            self.encoder = WordEncoder(words=config.input_words, projection=config.projection)
        self.lstm = LSTMStack(
            layers=config.layers,
            inputs=config.projection,
            cells=config.cells,
            projection=config.projection,
            cell_clip=config.cell_clip,
            projection_clip=config.projection_clip,
            skip=config.skip,
        )

    def reset_parameters(self, seed: int) -> None:
        """Draw all weights as in 2018, from a seed."""
        generator = torch.Generator().manual_seed(seed)
        self.encoder.reset_parameters(generator)
        self.lstm.reset_parameters(generator)

    def encode(self, inputs_N: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Characters (N, K), or word ids (N,) for a model that reads words → (N, P).

        The products run in `precision`, by default that of the weights.
        """
        vectors: Tensor = self.encoder(inputs_N, precision or self.lstm.weight[0].dtype)
        return vectors
