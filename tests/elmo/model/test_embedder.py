"""The same token list gets the same vectors, whatever stands beside it."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from elmo.data.characters import Characters
from elmo.errors import ElmoError
from elmo.model import batches
from elmo.model import embedder as module
from elmo.model.batches import Carry
from elmo.model.embedder import Embedder
from elmo.model.folder import Model, load_model
from elmo.model.mix import Elmo
from elmo.nn import cell
from elmo.nn.bilm import BiLM
from tests.elmo.conftest import batch_to_ids, save

GIFT = ["He", "has", "a", "gift", "for", "music"]
SENTENCES = [GIFT, ["한국어", "😀"], ["x" * 60], [], ["gift"], ["The", "gift", "was", "late"] * 5]


def test_layers_tokens_dim(tiny_model: Model) -> None:
    found = Embedder(tiny_model).embed(SENTENCES)
    layers, dim = tiny_model.bilm.shape.layers + 1, tiny_model.bilm.shape.dim
    assert [vectors.shape for vectors in found] == [(layers, len(s), dim) for s in SENTENCES]
    assert all(vectors.dtype == np.float32 for vectors in found)


def test_alone_in_a_batch_and_after_others(tiny_model: Model) -> None:
    embedder = Embedder(tiny_model)
    alone = embedder.embed([GIFT])[0]
    many = [[f"w{k}"] * (k % 9 + 1) for k in range(200)]
    for batch_size in (1, 3, 64, 512):
        found = embedder.embed([*many, GIFT, *many], batch_size)[200]
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_a_long_sentence_in_pieces_is_the_same(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder(tiny_model)
    whole = embedder.embed(SENTENCES)
    monkeypatch.setattr(batches, "WINDOW_TOKENS", 7)
    for ours, reference in zip(embedder.embed(SENTENCES), whole, strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-6)


@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_warm_up_starts_every_sentence_from_the_same_state(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch, as_on_a_gpu: bool
) -> None:
    for name in ("elmo.model.batches", "elmo.nn.encoder"):
        monkeypatch.setattr(f"{name}.prefers_large_operations", lambda device: as_on_a_gpu)
    cold, warm = Embedder(tiny_model), Embedder(tiny_model, warm_up=[["a", "b"], ["c"]])
    carry = Carry()
    for sentence in (["a", "b"], ["c"]):
        cold.embed([sentence], state=carry)
    expected = cold.embed([GIFT], state=carry)[0]
    carried = warm.embed([GIFT, GIFT], 2, state="carry")
    for found in [*warm.embed([GIFT, GIFT], 1), *carried]:
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_pickled_embedder_gives_the_same_vectors(
    tiny_model_folder: Path, precision: Literal["float32", "bfloat16"]
) -> None:
    embedder = Embedder.load(tiny_model_folder, precision=precision, warm_up=[["a"]])
    for _ in range(2):  # before and after its first use
        pickled = pickle.loads(pickle.dumps(embedder))
        np.testing.assert_array_equal(pickled.encode("a gift"), embedder.encode("a gift"))


def test_an_embedder_takes_no_memory_for_the_softmax(tiny_model_folder: Path) -> None:
    assert Embedder.load(tiny_model_folder).model.softmax is None


def test_the_model_it_is_given_stays_as_it_is(tiny_model: Model) -> None:
    before = {name: value.clone() for name, value in tiny_model.bilm.state_dict().items()}
    exact = Embedder(tiny_model).embed([GIFT])[0]
    rough = Embedder(tiny_model, precision="bfloat16")
    again = Embedder(tiny_model)
    np.testing.assert_array_equal(again.embed([GIFT])[0], exact)
    rough_error = np.linalg.norm(rough.embed([GIFT])[0] - exact) / np.linalg.norm(exact)
    assert 1e-4 < rough_error < 0.03
    assert tiny_model.bilm.training
    for name, parameter in tiny_model.bilm.named_parameters():
        assert parameter.requires_grad and parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])


def test_a_trainable_module_keeps_its_gradients_beside_an_embedder(tiny_model: Model) -> None:
    elmo = Elmo(tiny_model, dropout=0.0, trainable=True)
    embedder = Embedder(tiny_model, precision="bfloat16")
    Elmo(tiny_model)
    (vectors,), _ = elmo([GIFT]).values()
    vectors.sum().backward()
    assert all(parameter.grad is not None for parameter in elmo.bilm.parameters())
    first = embedder.embed([GIFT])[0]
    with torch.no_grad():
        for parameter in elmo.bilm.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(embedder.embed([GIFT])[0], first)


TEXTS = ["He has a gift\n\nfor music", "", "gift"]


def test_encode_pools_the_tokens_of_raw_text(tiny_model: Model) -> None:
    embedder = Embedder(tiny_model)
    assert embedder.tokenize(TEXTS[0]) == [["He", "has", "a", "gift"], ["for", "music"]]
    parts = embedder.embed([["He", "has", "a", "gift"], ["for", "music"]])
    tokens_TD = np.concatenate(parts, 1).mean(0)
    pools = {"mean": tokens_TD.mean(0), "max": tokens_TD.max(0)}
    pools |= {"first": tokens_TD[0], "last": tokens_TD[-1]}
    for pooling, expected in pools.items():
        found = embedder.encode(TEXTS, pooling)
        assert found.shape == (3, embedder.dim) and found.dtype == np.float32
        np.testing.assert_allclose(found[0], expected, atol=1e-6)
        assert not found[1].any()
        np.testing.assert_allclose(embedder.encode(TEXTS[0], pooling), expected, atol=1e-6)
    whole = embedder.encode(TEXTS, "none", layers=[2])
    assert [vectors.shape for vectors in whole] == [(6, 8), (0, 8), (1, 8)]
    np.testing.assert_allclose(whole[0], np.concatenate(parts, 1)[2], atol=1e-6)
    lengths = np.linalg.norm(embedder.encode(TEXTS, normalize=True), axis=1)
    np.testing.assert_allclose(lengths, [1, 0, 1], atol=1e-6)
    of_tokens = np.concatenate(embedder.encode(TEXTS, "none", normalize=True))
    np.testing.assert_allclose(np.linalg.norm(of_tokens, axis=1), np.ones(7), atol=1e-6)
    (nothing,) = embedder.embed_stream([[]], layers=[2])
    assert nothing.shape == (1, 0, embedder.dim)
    assert embedder.encode([]).shape == (0, embedder.dim)


def test_a_stream_of_texts_is_read_in_small_groups(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is read ahead than one call embeds, however long the texts are."""
    monkeypatch.setattr(module, "GROUP_TOKENS", 10)
    embedder = Embedder(tiny_model)
    taken = 0

    def texts() -> Iterator[list[list[str]]]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield [["a"] * 4, ["gift"] * 4]

    stream = embedder.embed_stream(texts())
    first = next(stream)
    assert first.shape == (3, 8, 8) and taken == 2
    for vectors in stream:
        np.testing.assert_array_equal(vectors, first)
    assert taken == 100


def test_a_carried_stream_is_what_whole_batches_give(tiny_model: Model) -> None:
    draw = np.random.default_rng(0)
    lines = [["a", "gift", "for", "he"][: draw.integers(0, 5)] * 2 for _ in range(11)]
    carry, whole = Carry(), Carry()
    found = Embedder(tiny_model).embed_stream(([line] for line in lines), 4, state=carry)
    expected = Embedder(tiny_model).embed(lines, 4, state=whole)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    assert carry.state is not None and whole.state is not None
    torch.testing.assert_close(carry.state.c_LSBC, whole.state.c_LSBC, atol=1e-6, rtol=1e-5)


def test_ids_are_those_of_the_models_characters(tmp_path: Path, tiny_model: Model) -> None:
    """Bytes are valid rows of another table: vectors would be wrong without a word."""
    model = unicode_model(tmp_path, tiny_model)
    sentence = [["gift", "한국"]]
    expected = Embedder(model).embed(sentence)[0].mean(0)
    elmo = Elmo(model, dropout=0.0)
    for ids in (sentence, elmo.batch_to_ids(sentence)):
        (vectors,), _ = elmo(ids).values()
        np.testing.assert_allclose(vectors[0].detach(), expected, atol=1e-5)
    with pytest.raises(ElmoError, match=r"ids must be \(sentences, tokens, 20\)"):
        elmo(batch_to_ids(sentence))


def test_the_cell_is_compiled_only_when_many_tokens_repay_it(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def cell_for(device: torch.device, cells: int) -> cell.CellFunctions:
        asked.append(cells)
        return cell.choose_cell_functions(device, cells)

    monkeypatch.setattr("elmo.nn.lstm.choose_cell_functions", cell_for)
    cells = tiny_model.bilm.shape.cells
    monkeypatch.setattr(cell, "MIN_COMPILE_WORK", 2 * (len(GIFT) + 2) * cells)
    embedder = Embedder(tiny_model)
    eager = embedder.embed([GIFT])[0]
    assert not asked
    compiled = embedder.embed([GIFT])[0]
    assert asked
    np.testing.assert_allclose(eager, compiled, atol=1e-6)
    asked.clear()
    served = Embedder(tiny_model)
    served.bilm.lstm.compiled = True
    served.embed([GIFT])
    assert asked


def unicode_model(folder: Path, like: Model) -> Model:
    characters = Characters(tuple("gift한국어"), 20)
    bilm = BiLM(like.bilm.shape, character_count=characters.size)
    bilm.reset_parameters(3)
    save(folder / "unicode", like, bilm=bilm, characters=characters)
    return load_model(folder / "unicode")
