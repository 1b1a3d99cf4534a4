"""Stores of contextual vectors: how they are made, read, searched and exported."""

from elmo.store.feature_store import FeatureStore, model_digest

__all__ = ["FeatureStore", "model_digest"]
