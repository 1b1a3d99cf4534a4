"""ELMo: contextual word vectors from a bidirectional language model over your own text."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Embedder": "elmo.embedder",
    "FeatureStore": "elmo.features",
    "Elmo": "elmo.mix",
    "ScalarMix": "elmo.mix",
    "ElmoError": "elmo.errors",
}
__all__ = ["Elmo", "ElmoError", "Embedder", "FeatureStore", "ScalarMix"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use: `import elmo` alone stays light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'elmo' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
