"""The spaCy component against spaCy, where it is installed."""

from pathlib import Path

import numpy as np
import pytest

from elmo.model.embedder import Embedder


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
