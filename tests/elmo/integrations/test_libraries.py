"""The integrations against the real libraries; each skips where its library is not installed."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from elmo.errors import ElmoError
from elmo.integrations.batches import BatchEncoder
from elmo.model.embedder import Embedder

TEXTS = ["he has a gift", "", "the gift", "a gift for the he"]


@pytest.fixture
def expected(tiny_model_folder: Path) -> np.ndarray:
    return np.asarray(Embedder.load(tiny_model_folder).encode(TEXTS))


def test_scikit_learn(tiny_model_folder: Path, expected: np.ndarray) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from elmo.integrations.sklearn import ElmoVectorizer

    vectorizer = ElmoVectorizer(tiny_model_folder)
    np.testing.assert_array_equal(vectorizer.fit_transform(TEXTS), expected)
    names = vectorizer.get_feature_names_out()
    assert names[0] == "elmo0" and len(names) == expected.shape[1]
    model = make_pipeline(clone(vectorizer), LogisticRegression()).fit(TEXTS, [0, 1, 0, 1])
    stored = pickle.dumps(model)
    assert len(stored) < 5000  # the model's name, not its weights
    np.testing.assert_array_equal(pickle.loads(stored).predict(TEXTS), model.predict(TEXTS))
    normalized = ElmoVectorizer(tiny_model_folder).set_params(normalize=True).transform(TEXTS[:1])
    np.testing.assert_allclose(np.linalg.norm(normalized), 1, rtol=1e-5)
    with pytest.raises(ElmoError, match="choose another"):
        ElmoVectorizer(tiny_model_folder, pooling="none").transform(TEXTS)
    with pytest.raises(ElmoError, match="a list of texts"):
        ElmoVectorizer(tiny_model_folder).fit("a gift").transform("a gift")


def test_datasets_map(tiny_model_folder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    given = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1, 0, 1]})
    encoder = BatchEncoder(tiny_model_folder)
    options = {"batched": True, "batch_size": 3, "load_from_cache_file": False}
    mapped = given.map(encoder, **options)
    assert mapped.column_names == ["text", "label", "elmo"]
    np.testing.assert_allclose(np.array(mapped["elmo"]), expected, atol=1e-5)
    hasher = datasets.fingerprint.Hasher
    assert hasher.hash(encoder) == hasher.hash(BatchEncoder(tiny_model_folder))
    assert hasher.hash(encoder) != hasher.hash(BatchEncoder(tiny_model_folder, normalize=True))


@pytest.mark.ray
def test_ray_data(tiny_model_folder: Path, expected: np.ndarray) -> None:
    pytest.importorskip("ray.data", reason="Ray Data is not installed")
    from pipeline.cluster import workers

    with workers.session():
        import ray.data

        rows = ray.data.from_items([{"text": text, "k": k} for k, text in enumerate(TEXTS)])
        mapped = rows.map_batches(
            BatchEncoder,
            fn_constructor_args=(str(tiny_model_folder),),
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        found = sorted(mapped.take_all(), key=lambda row: row["k"])
    np.testing.assert_allclose(np.stack([row["elmo"] for row in found]), expected, atol=1e-5)


def test_a_batch_without_the_column_is_named(tiny_model_folder: Path) -> None:
    with pytest.raises(ElmoError, match="no column 'text', it has review; set column"):
        BatchEncoder(tiny_model_folder)({"review": TEXTS})
    with pytest.raises(ElmoError, match="no such model folder"):
        BatchEncoder("no-such")


def test_spacy(tiny_model_folder: Path) -> None:
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed")
    import elmo.integrations.spacy  # noqa: F401  (registers the component)

    embedder = Embedder.load(tiny_model_folder)
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": str(tiny_model_folder)})
    doc = nlp("he has a gift")
    (vectors,) = embedder.embed([["he", "has", "a", "gift"]])
    np.testing.assert_array_equal(doc._.elmo, vectors)
    np.testing.assert_array_equal(doc[3].vector, vectors.mean(0)[3])
    np.testing.assert_allclose(doc[2:4].vector, vectors.mean(0)[2:4].mean(0), atol=1e-5)
    np.testing.assert_allclose(doc.vector, vectors.mean((0, 1)), atol=1e-5)
    assert doc.similarity(nlp("he has a gift")) == pytest.approx(1)
    assert doc[3].similarity(doc[3]) == pytest.approx(1)
    several = list(nlp.pipe(["he has", "", "the gift. he has"]))
    assert [one._.elmo.shape[1] for one in several] == [2, 0, 5]
    nlp.add_pipe("sentencizer", before="elmo")
    split = nlp("the gift. he has")._.elmo
    np.testing.assert_allclose(split[:, 3:], embedder.embed([["he", "has"]])[0], atol=1e-5)


def test_spacy_compares_spans_and_leaves_white_space_out(tiny_model_folder: Path) -> None:
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed")
    import elmo.integrations.spacy  # noqa: F401  (registers the component)

    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": str(tiny_model_folder)})
    doc, other = nlp("he has a gift"), nlp("a gift")
    spaced = nlp("he  has \n a gift\n")
    words = [token.i for token in spaced if not token.is_space]
    assert len(words) == 4 < len(spaced)
    np.testing.assert_array_equal(spaced._.elmo[:, words], doc._.elmo)
    np.testing.assert_array_equal(spaced.vector, doc.vector)
    assert not spaced[1].vector.any() and spaced[1].similarity(spaced[0]) == 0
    several = (doc, doc[1:3], doc[3], other, other[0:2], other[1])
    for one in several:
        assert one.vector_norm == pytest.approx(np.linalg.norm(one.vector), rel=1e-5)
        for two in several:
            cosine = one.vector @ two.vector / one.vector_norm / two.vector_norm
            assert one.similarity(two) == pytest.approx(cosine, rel=1e-4)
    assert doc[3].similarity(other[1]) < 0.9999  # one word in two contexts
    assert nlp(" \n ").vector.shape == doc.vector.shape


def test_flair(tiny_model_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("flair", reason="flair is not installed")
    import torch
    from flair.data import Sentence
    from flair.embeddings import DocumentPoolEmbeddings, StackedEmbeddings
    from flair.embeddings.base import load_embeddings

    from elmo.integrations.flair import ElmoEmbeddings

    embedder = Embedder.load(tiny_model_folder)
    embeddings = ElmoEmbeddings(tiny_model_folder)
    sentences = [Sentence("he has a gift"), Sentence("the gift")]
    embeddings.embed(sentences)
    for sentence, tokens in zip(sentences, TEXTS[0:1] + TEXTS[2:3], strict=True):
        (expected,) = embedder.embed([tokens.split()])
        found = torch.stack([token.embedding for token in sentence]).cpu()
        np.testing.assert_allclose(found, expected.mean(0), atol=1e-5)
    assert embeddings.embedding_length == embedder.dim
    pooled = DocumentPoolEmbeddings([StackedEmbeddings([embeddings])], fine_tune_mode="none")
    sentence = Sentence("a gift")
    pooled.embed(sentence)
    mean = embedder.embed([["a", "gift"]])[0].mean((0, 1))
    np.testing.assert_allclose(sentence.embedding.cpu(), mean, atol=1e-5)
    empty = Sentence("")
    embeddings.embed([empty, Sentence("the")])
    assert len(empty) == 0
    saved = embeddings.save_embeddings(use_state_dict=False)
    assert len(str(saved)) < 1000  # the model's name, not its weights
    (top,) = load_embeddings(saved).embed([Sentence("the gift")])
    torch.testing.assert_close(top[0].embedding, sentences[1][0].embedding)


def test_a_saved_flair_tagger_finds_its_elmo(tiny_model_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("flair", reason="flair is not installed")
    import torch
    from flair.data import Dictionary, Sentence
    from flair.models import SequenceTagger

    from elmo.integrations.flair import ElmoEmbeddings

    tags = Dictionary(add_unk=False)
    for tag in ("DET", "NOUN"):
        tags.add_item(tag)
    tagger = SequenceTagger(
        ElmoEmbeddings(tiny_model_folder, layers=[1, 2]),
        tag_dictionary=tags,
        tag_type="pos",
        hidden_size=8,
        use_crf=False,
        dropout=0.0,
        word_dropout=0.0,
        locked_dropout=0.0,
    )
    sentence = Sentence("he has a gift")
    for token, tag in zip(sentence, ("NOUN", "NOUN", "DET", "NOUN"), strict=True):
        token.add_label("pos", tag)
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        loss, _ = tagger.forward_loss([sentence])
        loss.backward()
        optimizer.step()
    tagger.save(tmp_path / "tagger.pt")
    loaded = SequenceTagger.load(tmp_path / "tagger.pt")
    assert loaded.embeddings.layers == [1, 2]
    again = Sentence("he has a gift")
    loaded.predict(again)
    assert [token.tag for token in again] == ["NOUN", "NOUN", "DET", "NOUN"]
