"""The nearest sentences, and one vector per word: against the same written out slowly."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elmo.data.shards import write_shards
from elmo.errors import ElmoError, Mismatch
from elmo.model.embedder import Embedder
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.neighbors import Nearest
from elmo.store.search import add_nearest, search
from elmo.store.static import export_word2vec, static_vectors
from tests.elmo.conftest import save_tiny_model

WORDS = ["the", "a", "gift", "for", "has", "he", "new", "x"]


def sentences(count: int) -> list[list[str]]:
    draw = np.random.default_rng(3)
    made = [draw.choice(WORDS, draw.integers(0, 6)).tolist() for _ in range(count)]
    return [*made, ["he", "has"], [], ["he", "has"]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> FeatureStore:
    folder = tmp_path_factory.mktemp("search")
    write_shards(folder / "shards", sentences(90), heldout_every=5, shard_sentences=20)
    given = {"shards": folder / "shards", "model": tiny_model_folder}
    build(folder / "store", settings=StoreSettings(row_group_tokens=16), **given)
    return FeatureStore(folder / "store")


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("layer", [None, 0, 2])
@pytest.mark.parametrize("at_a_time", [1, 7, 4096])
def test_search_is_exact(
    store: FeatureStore,
    tiny_model_folder: Path,
    layer: int | None,
    at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against all cosines; equal sentences count once, by the first of them.

    Of texts with the same words layer 0 has the same mean, but for the rounding of the processor:
    their order may be any.
    """
    monkeypatch.setattr("elmo.store.search._SENTENCES", at_a_time)
    embedder = Embedder.load(tiny_model_folder)
    text = [["he", "has"], ["a", "new", "gift"]]
    chosen = slice(None) if layer is None else slice(layer, layer + 1)
    query = np.concatenate(embedder.embed(text), 1)[chosen].mean((0, 1))
    cosine = {
        k: float(unit(store[k][chosen].mean((0, 1))) @ unit(query))
        for k in range(len(store))
        if store.tokens(k)
    }
    wanted: dict[tuple[str, ...], float] = {}
    for k in sorted(cosine, key=lambda k: -cosine[k]):
        wanted.setdefault(tuple(store.tokens(k)), cosine[k])
    hits = search(store, embedder, text, k=8, layer=layer)
    found = [tuple(hit.tokens) for hit in hits]
    assert len(set(found)) == 8
    np.testing.assert_allclose([hit.cosine for hit in hits], list(wanted.values())[:8], atol=1e-5)
    np.testing.assert_allclose([wanted[one] for one in found], [h.cosine for h in hits], atol=1e-5)
    for hit in hits:
        assert store.tokens(hit.sentence_id) == hit.tokens
        alike = (k for k in cosine if np.array_equal(store[k], store[hit.sentence_id]))
        assert hit.sentence_id == min(k for k in alike if store.tokens(k) == hit.tokens)


def test_of_equal_sentences_the_first_is_listed_wherever_they_lie() -> None:
    """A product of BLAS differs in its last bit between the first and the last rows."""
    draw = np.random.default_rng(0)
    store: Any = SimpleNamespace(tokens=lambda k: ["he", "has"])
    for count in range(1, 40):
        for width in (8, 100, 512):
            mean_D, query_D = draw.normal(size=(2, width)).astype(np.float32)
            nearest = Nearest(1)
            add_nearest(nearest, store, np.arange(count), np.tile(mean_D, (count, 1)), query_D)
            assert [one.sentence_id for one in nearest.neighbors()] == [0], (count, width)


def test_what_can_not_be_searched_is_refused(
    store: FeatureStore, tiny_model_folder: Path, tmp_path: Path
) -> None:
    embedder = Embedder.load(tiny_model_folder)
    with pytest.raises(ElmoError, match="the text has no tokens"):
        search(store, embedder, [[]])
    with pytest.raises(ElmoError, match="k must be 1 or more, found 0"):
        search(store, embedder, [["a"]], k=0)
    save_tiny_model(tmp_path / "other", seed=1)
    with pytest.raises(Mismatch, match="use the model it was made with"):
        search(store, Embedder.load(tmp_path / "other"), [["a"]])


def test_static_vectors_are_means_over_occurrences(store: FeatureStore) -> None:
    occurrences: dict[str, list[np.ndarray]] = {}
    for k in range(len(store)):
        for position, token in enumerate(store.tokens(k)):
            occurrences.setdefault(token, []).append(store[k][:, position].mean(0))
    static = static_vectors(store)
    counts = {token: len(vectors) for token, vectors in occurrences.items()}
    assert static.words == sorted(counts, key=lambda word: (-counts[word], word))
    assert static.counts.tolist() == [counts[word] for word in static.words]
    for word, vectors in occurrences.items():
        np.testing.assert_allclose(static[word], np.mean(vectors, 0), atol=1e-5)
    nearest = static.most_similar("gift", k=3)
    cosines = {w: float(unit(static[w]) @ unit(static["gift"])) for w in static.words}
    wanted = sorted(set(cosines) - {"gift"}, key=lambda word: -cosines[word])[:3]
    assert [word for word, _ in nearest] == wanted
    assert len(static.most_similar("gift", k=100)) == len(static.words) - 1
    with pytest.raises(ElmoError, match="has no token 'absent'"):
        static.most_similar("absent")


def test_layer_0_is_what_the_characters_say(store: FeatureStore) -> None:
    static, means = static_vectors(store, kind="layer_0"), static_vectors(store)
    assert (static.words, static.counts.tolist()) == (means.words, means.counts.tolist())
    for k in range(0, len(store), 13):
        for position, token in enumerate(store.tokens(k)):
            np.testing.assert_array_equal(np.tile(static[token], 2), store[k][0, position])


def test_word2vec_text_has_every_word(store: FeatureStore, tmp_path: Path) -> None:
    static, out = static_vectors(store), tmp_path / "vectors.txt"
    assert export_word2vec(store, out) == len(static.words)
    head, *lines = out.read_text(encoding="utf-8").splitlines()
    assert head == f"{len(static.words)} {store.dim}"
    for word, line in zip(static.words, lines, strict=True):
        name, *numbers = line.split(" ")
        assert name == word
        np.testing.assert_array_equal(np.array(numbers, np.float32), static[word])


def test_gensim_reads_word2vec_text(store: FeatureStore, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    static = static_vectors(store)
    export_word2vec(store, tmp_path / "vectors.txt")
    vectors = models.KeyedVectors.load_word2vec_format(str(tmp_path / "vectors.txt"))
    theirs = vectors.most_similar("gift", topn=3)
    assert [word for word, _ in theirs] == [word for word, _ in static.most_similar("gift", k=3)]
