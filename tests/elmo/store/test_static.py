"""One vector per word: against the same written out slowly."""

from pathlib import Path

import numpy as np
import pytest

from elmo.data.shards import write_shards
from elmo.errors import ElmoError
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.static import export_word2vec, static_vectors

WORDS = ["the", "a", "gift", "for", "has", "he", "new", "x"]


def sentences(count: int) -> list[list[str]]:
    draw = np.random.default_rng(3)
    made = [draw.choice(WORDS, draw.integers(0, 6)).tolist() for _ in range(count)]
    return [*made, ["he", "has"], [], ["he", "has"]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> FeatureStore:
    folder = tmp_path_factory.mktemp("static")
    write_shards(folder / "shards", sentences(90), heldout_every=5, shard_sentences=20)
    given = {"shards": folder / "shards", "model": tiny_model_folder}
    build(folder / "store", settings=StoreSettings(row_group_tokens=16), **given)
    return FeatureStore(folder / "store")


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


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
