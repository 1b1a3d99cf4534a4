"""Segments of a shard hold the vectors that `embed` gives."""

import numpy as np
import pytest

from elmo.model.embedder import Embedder
from elmo.model.folder import Model
from elmo.nn.device import HostCopies
from elmo.store import build as module
from elmo.store.build import embed_segments

SENTENCES = [["a", "gift"], [], ["he", "has", "a", "gift"], ["for"], ["a"] * 9, ["has", "he"]]


def test_segments_of_a_shard_are_the_same_vectors(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENT_TOKENS", 6)
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    copies: list[int] = []  # tokens of each copy from the device, one for a layer of a segment
    begin = HostCopies.start
    monkeypatch.setattr(
        HostCopies,
        "start",
        lambda self, tensors: (copies.extend(map(len, tensors)), begin(self, tensors))[1],
    )
    embedder = Embedder(tiny_model)
    types = sorted({token for sentence in SENTENCES for token in sentence})
    ids = np.array([types.index(token) for sentence in SENTENCES for token in sentence], np.int32)
    offsets = np.cumsum([0, *map(len, SENTENCES)])
    expected = embedder.embed(SENTENCES)
    copies.clear()
    seen = 0
    for segment in embed_segments(embedder, embedder.encode_types(types), ids, offsets):
        assert segment.start == seen
        seen = segment.stop
        wanted = np.concatenate(expected[segment.start : segment.stop], 1)
        for layer, vectors in enumerate(segment.layer_vectors, 1):
            np.testing.assert_allclose(vectors, wanted[layer], atol=1e-6)
    assert seen == len(SENTENCES)
    assert copies == [6, 6, 1, 1, 9, 9, 2, 2]
