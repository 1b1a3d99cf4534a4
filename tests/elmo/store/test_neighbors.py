"""The nearest tokens are those a search over all embedded sentences finds."""

import random
from pathlib import Path

import numpy as np
import pytest

from elmo.data.shards import write_shards
from elmo.data.tokenizer import to_nfc
from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.neighbors import (
    Neighbor,
    _compute_cosines,
    most_distinct_layer,
    neighbors,
    parse_query,
    random_cosine,
)

QUERY = ["He", "has", "a", "gift", "for", "music"]


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    draw = random.Random(0)
    words = [*QUERY, "the", "late", "present", "Gift"]
    found = [draw.choices(words, k=draw.randrange(8)) for _ in range(90)]
    return [*found, QUERY, found[3], found[5]]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, sentences: list[list[str]]) -> Path:
    folder = tmp_path_factory.mktemp("neighbors") / "shards"
    write_shards(folder, sentences, shard_sentences=40)
    return folder


def make(out: Path, shards: Path, model: Path, layers: str = "all") -> FeatureStore:
    settings = StoreSettings(layers=layers, dtype="float32", row_group_tokens=50)
    build(out, shards=shards, model=model, settings=settings, work=out.parent / "runs")
    return FeatureStore(out)


def test_of_the_same_word_there_may_be_fewer_or_none(
    tmp_path: Path, tiny_model_folder: Path, shards: Path, sentences: list[list[str]]
) -> None:
    store = make(tmp_path / "store", shards, tiny_model_folder)
    embedder = Embedder.load(tiny_model_folder)
    found = neighbors(store, embedder, QUERY, 3, k=1000, same_word=True)
    having = {tuple(s) for s in sentences if {"gift", "Gift"} & set(s)} - {tuple(QUERY)}
    assert {tuple(n.tokens) for n in found} == having
    assert {n.tokens[n.position] for n in found} == {"gift", "Gift"}
    assert neighbors(store, embedder, ["sonata"], 0, same_word=True) == []


@pytest.mark.parametrize(
    ("stored", "layer", "same_word"),
    [
        ("all", None, False),
        ("all", 0, False),
        ("all", 1, False),
        ("all", "average", False),
        ("top", None, False),
        ("all", 1, True),
    ],
)
def test_they_are_the_nearest_of_all_tokens(
    tmp_path: Path,
    tiny_model_folder: Path,
    shards: Path,
    sentences: list[list[str]],
    stored: str,
    layer: int | str | None,
    same_word: bool,
) -> None:
    store = make(tmp_path / "store", shards, tiny_model_folder, stored)
    embedder = Embedder.load(tiny_model_folder)

    def pick(vectors: np.ndarray) -> np.ndarray:
        if stored == "top":
            return vectors[-1]
        return vectors[layer] if isinstance(layer, int) else vectors.mean(0)

    query = pick(embedder.embed([QUERY])[0])[3]
    slow = []
    for k, vectors in enumerate(embedder.embed(sentences)):
        for place, vector in enumerate(pick(vectors)):
            cosine = vector @ query / np.linalg.norm(vector) / np.linalg.norm(query)
            compared = not same_word or sentences[k][place].lower() == "gift"
            if sentences[k] != QUERY and compared:
                slow.append((cosine, k, place))
    wanted: dict[tuple[str, ...], float] = {}
    for cosine, k, _ in sorted(slow, reverse=True):
        wanted.setdefault(tuple(sentences[k]), cosine)
    found = neighbors(store, embedder, QUERY, 3, k=6, layer=layer, same_word=same_word)
    assert [n.cosine for n in found] == pytest.approx(list(wanted.values())[:6], abs=1e-5)
    for neighbor in found:
        assert neighbor.tokens == sentences[neighbor.sentence_id]
        assert (pytest.approx(neighbor.cosine, abs=1e-5), neighbor.sentence_id) in [
            (cosine, k) for cosine, k, place in slow if place == neighbor.position
        ]
        assert neighbor.document_id == store.document(neighbor.sentence_id)
        assert neighbor.context().split()[neighbor.position].startswith("[")


@pytest.mark.parametrize(
    ("count", "position", "shown"),
    [
        (3, 1, "0 [1] 2"),
        (30, 0, "[0] 1 2 3 4 5 6 7 8 …"),
        (30, 29, "… 21 22 23 24 25 26 27 28 [29]"),
        (17, 8, "0 1 2 3 4 5 6 7 [8] 9 10 11 12 13 14 15 16"),
    ],
)
def test_of_a_long_sentence_the_tokens_around_are_shown(
    count: int, position: int, shown: str
) -> None:
    assert Neighbor(1.0, 0, 0, position, [*map(str, range(count))]).context() == shown


def test_equal_vectors_have_equal_cosines_wherever_they_lie() -> None:
    """A product of BLAS differs in its last bit between the first and the last rows."""
    draw = np.random.default_rng(0)
    for count in range(1, 40):
        vector_D, query_D = draw.normal(size=(2, 512)).astype(np.float32)
        cosine_T = _compute_cosines(np.tile(vector_D, (1, count, 1)), query_D)
        assert len(set(cosine_T.tolist())) == 1, count


def test_the_query_has_one_token_in_brackets() -> None:
    assert parse_query("He has a [gift] for music") == (QUERY, 3)
    with pytest.raises(ElmoError, match=r"the model's tokenizer splits 'gift\.' there"):
        parse_query("a [gift].")
    split = lambda text: [to_nfc(text).split()]  # noqa: E731
    assert parse_query("a [e\u0301]", tokenize=split) == (["a", "\u00e9"], 1)
    letters = parse_query("ab [b] c\nb", tokenize=lambda text: [list(t) for t in text.split()])
    assert letters == (["b"], 0)
    with pytest.raises(ElmoError, match=r"\[a gift\] is not one token: .* put one of these in"):
        parse_query("He has [a gift] for music")
    for text in ("no brackets", "[two] of [them]", "an [] empty one"):
        with pytest.raises(ElmoError, match="must have one token in brackets"):
            parse_query(text)
    with pytest.raises(ElmoError, match="the tokenizer returns 'x', which is not in"):
        parse_query("a [gift]", tokenize=lambda _: [["x"]])


@pytest.mark.parametrize("repeated", [QUERY, ["a", "gift"]])
def test_a_sentence_that_repeats_crowds_out_no_other(
    tmp_path: Path, tiny_model_folder: Path, repeated: list[str]
) -> None:
    others = [["the", "late", "gift"], ["music", "has", "a", "gift"], ["present"]]
    write_shards(tmp_path / "shards", [repeated] * 300 + others, shard_sentences=100)
    store = make(tmp_path / "store", tmp_path / "shards", tiny_model_folder)
    nearest = neighbors(store, Embedder.load(tiny_model_folder), QUERY, 3, k=5)
    texts = {tuple(one.tokens) for one in nearest}
    assert texts == {tuple(text) for text in [repeated, *others] if text != QUERY}
    assert len(nearest) == len(texts)


def test_random_tokens_and_the_layer_that_tells_them_apart(
    tmp_path: Path, tiny_model_folder: Path, shards: Path
) -> None:
    store = make(tmp_path / "store", shards, tiny_model_folder)
    by_layer = {}
    for layer in (1, 2):
        tokens = [(store[k][layer], k) for k in range(len(store)) if store[k].shape[1]]
        unit = [v[k % len(v)] / np.linalg.norm(v[k % len(v)]) for v, k in tokens]
        pairs = [a @ b for i, a in enumerate(unit) for b in unit[:i]]
        by_layer[layer] = float(np.mean(pairs))
        assert random_cosine(store, layer) == pytest.approx(by_layer[layer], abs=1e-5)
    assert most_distinct_layer(store) == min(by_layer, key=lambda layer: by_layer[layer])
    assert most_distinct_layer(make(tmp_path / "0", shards, tiny_model_folder, "0")) is None
    assert random_cosine(FeatureStore(store.path, layers=[2]), 1) == random_cosine(store, 1)
    two = write_shards(tmp_path / "two", [["gift"], ["has", "gift"]]).location.local
    (a,), (_, b) = (v.mean(0) for v in make(tmp_path / "of-two", two, tiny_model_folder))
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert random_cosine(FeatureStore(tmp_path / "of-two")) == pytest.approx(expected, abs=1e-5)
