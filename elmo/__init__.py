"""ELMo: contextual word vectors from a bidirectional language model over your own text."""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elmo.errors import BadSettings, Damaged, ElmoError, Mismatch, NotFound
    from elmo.model.embedder import Embedder
    from elmo.model.mix import Elmo, ScalarMix
    from elmo.store import FeatureStore

    __version__: str

_PUBLIC = {
    "BadSettings": "elmo.errors",
    "Damaged": "elmo.errors",
    "Elmo": "elmo.model.mix",
    "ElmoError": "elmo.errors",
    "Embedder": "elmo.model.embedder",
    "FeatureStore": "elmo.store",
    "Mismatch": "elmo.errors",
    "NotFound": "elmo.errors",
    "ScalarMix": "elmo.model.mix",
}
__all__ = [
    "BadSettings",
    "Damaged",
    "Elmo",
    "ElmoError",
    "Embedder",
    "FeatureStore",
    "Mismatch",
    "NotFound",
    "ScalarMix",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Import a public name on its first use, which keeps `import elmo` fast."""
    if name == "__version__":
        return _metadata.version("elmo-pipeline")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'elmo' has no attribute {name!r}")
    return getattr(_import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the public names only."""
    return __all__
