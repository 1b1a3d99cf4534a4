"""Make, read, search and export stores of contextual vectors."""

from elmo.store.feature_store import FeatureStore, model_digest

__all__ = ["FeatureStore", "model_digest"]
