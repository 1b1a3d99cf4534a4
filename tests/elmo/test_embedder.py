"""The same token list gets the same vectors, whatever stands beside it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import embedder as module
from elmo.bilm import BiLM, Config
from elmo.characters import Characters
from elmo.checkpoint import Model, load_model
from elmo.embedder import Carry, Embedder
from elmo.errors import ElmoError

GIFT = ["He", "has", "a", "gift", "for", "music"]
SENTENCES = [
    GIFT,
    ["한국어", "😀"],
    ["x" * 60],
    [],
    ["gift"],
    ["The", "gift", "was", "late"] * 5,
]


def test_layers_tokens_dim(tiny_model: Model) -> None:
    found = Embedder(tiny_model).embed(SENTENCES)
    layers, dim = tiny_model.bilm.config.layers + 1, tiny_model.bilm.config.dim
    assert [vectors.shape for vectors in found] == [(layers, len(s), dim) for s in SENTENCES]
    assert all(vectors.dtype == np.float32 for vectors in found)


def test_layer_0_is_the_context_free_vector_twice(tiny_model: Model) -> None:
    embedder = Embedder(tiny_model)
    x_TP = embedder.encode_types(GIFT)
    layer_0 = embedder.embed([GIFT], layers=[0])[0][0]
    np.testing.assert_array_equal(layer_0, np.concatenate([x_TP, x_TP], 1))


def test_alone_in_a_batch_and_after_others(tiny_model: Model) -> None:
    embedder = Embedder(tiny_model)
    alone = embedder.embed([GIFT])[0]
    many = [[f"w{k}"] * (k % 9 + 1) for k in range(200)]
    for batch_size in (1, 3, 64, 512):
        found = embedder.embed([*many, GIFT, *many], batch_size)[200]
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_context_changes_the_upper_layers_only(tiny_model: Model) -> None:
    first, second = Embedder(tiny_model).embed([GIFT, [*GIFT[:-1], "nothing"]])
    np.testing.assert_allclose(first[0, :5], second[0, :5], atol=1e-6)
    half = tiny_model.bilm.config.projection
    np.testing.assert_allclose(first[1:, :5, :half], second[1:, :5, :half], atol=1e-6)
    assert np.abs(first[1:, :5, half:] - second[1:, :5, half:]).max() > 1e-4


def test_a_long_sentence_in_pieces_is_the_same(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder(tiny_model)
    whole = embedder.embed(SENTENCES)
    monkeypatch.setattr(module, "WINDOW_TOKENS", 7)
    for ours, reference in zip(embedder.embed(SENTENCES), whole, strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-6)


def test_carried_rows_grow_and_shrink(tiny_model: Model) -> None:
    """Row k goes on from row k; rows beyond a batch keep their state."""
    embedder = Embedder(tiny_model)
    batches = [[GIFT], [["a"], ["b", "c"], []], [["late"]], [["d"], GIFT]]
    carry = Carry()
    found = [embedder.embed(batch, state=carry) for batch in batches]
    for row in range(3):
        single = Carry()
        for batch, vectors in zip(batches, found, strict=True):
            if row < len(batch):
                expected = embedder.embed([batch[row]], state=single)[0]
                np.testing.assert_allclose(vectors[row], expected, atol=1e-6)
    cold = embedder.embed([GIFT])[0]
    np.testing.assert_allclose(found[0][0], cold, atol=1e-6)
    assert np.abs(found[3][1] - cold).max() > 1e-4


def test_carry_in_one_call_is_carry_across_calls(tiny_model: Model) -> None:
    embedder = Embedder(tiny_model)
    one = embedder.embed([GIFT, ["a"], GIFT, ["b"]], 2, state="carry")
    carry = Carry()
    two = embedder.embed([GIFT, ["a"]], state=carry) + embedder.embed([GIFT, ["b"]], state=carry)
    for ours, reference in zip(one, two, strict=True):
        np.testing.assert_array_equal(ours, reference)


def test_warm_up_starts_every_sentence_from_the_same_state(tiny_model: Model) -> None:
    cold, warm = Embedder(tiny_model), Embedder(tiny_model, warm_up=[["a", "b"], ["c"]])
    carry = Carry()
    for sentence in (["a", "b"], ["c"]):
        cold.embed([sentence], state=carry)
    expected = cold.embed([GIFT], state=carry)[0]
    for found in warm.embed([GIFT, GIFT], 1):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_segments_of_a_shard_are_the_same_vectors(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENT_TOKENS", 6)
    monkeypatch.setattr(module, "ROWS", 2)
    embedder = Embedder(tiny_model)
    types = sorted({token for sentence in SENTENCES for token in sentence})
    ids = np.array([types.index(token) for sentence in SENTENCES for token in sentence], np.int32)
    offsets = np.cumsum([0, *map(len, SENTENCES)])
    expected = embedder.embed(SENTENCES)
    seen = 0
    for segment in embedder.segments(types, ids, offsets):
        assert segment.start == seen
        seen = segment.stop
        wanted = np.concatenate(expected[segment.start : segment.stop], 1)
        for layer, vectors in enumerate(segment.contextual, 1):
            np.testing.assert_allclose(vectors, wanted[layer], atol=1e-6)
    assert seen == len(SENTENCES)


def test_bfloat16_is_near_float32(tiny_model: Model, tiny_model_folder: Path) -> None:
    exact = Embedder(tiny_model).embed([GIFT])[0]
    rough = Embedder.load(tiny_model_folder, precision="bfloat16").embed([GIFT])[0]
    error = np.linalg.norm(rough - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 0.03


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.embed([GIFT], layers=[9]), "layers must be among 0 to 2, found 9"),
        (lambda e: e.embed(["He has"]), "sentence 0: must be a list of tokens"),
        (lambda e: e.embed([GIFT], 0), "batch_size must be 1 or more"),
        (lambda e: Embedder(e.model, precision="half"), "precision must be"),
    ],
)
def test_bad_calls_are_refused(
    tiny_model: Model, call: Callable[[Embedder], object], message: str
) -> None:
    with pytest.raises(ElmoError, match=message):
        call(Embedder(tiny_model))


def test_a_model_that_reads_words(tmp_path: Path, tiny_model: Model) -> None:
    shape = tiny_model.bilm.config.to_dict() | {"input_words": len(tiny_model.vocabulary)}
    bilm = BiLM(Config.from_dict(shape, source=tmp_path), characters=Characters().size)
    bilm.reset_parameters(1)
    model = Model(bilm, tiny_model.vocabulary, tiny_model.characters, None, {}, "")
    known, unknown, unk = Embedder(model).embed([["gift"], ["nowhere"], ["<UNK>"]], layers=[0])
    np.testing.assert_array_equal(unknown, unk)
    assert not np.array_equal(known, unk)


def test_gradients_stay_off(tiny_model_folder: Path) -> None:
    embedder = Embedder(load_model(tiny_model_folder))
    embedder.embed([GIFT])
    assert not any(p.requires_grad for p in embedder.bilm.parameters())
    assert torch.is_grad_enabled()
