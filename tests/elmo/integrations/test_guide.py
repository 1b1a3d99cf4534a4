"""Every line of the integrations guide's table runs, where its library is installed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmo

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "integrations.md"
TEXTS = ["he has a gift", "the gift", "a gift", "he has the gift"]
Names = dict[str, Any]


def rows() -> list[tuple[str, str]]:
    """The library and the line of each row; \u2026 stands for the library of the row above."""
    found: list[tuple[str, str]] = []
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 2 and cells[1].startswith("`"):
            library = cells[0].split(":")[0] if ":" in cells[0] else ""
            found.append((library or found[-1][0], cells[1].strip("`")))
    return found


def _datasets() -> Names:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    return {"dataset": datasets.Dataset.from_dict({"text": TEXTS})}


def _sklearn() -> Names:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    names: Names = {"make_pipeline": make_pipeline, "LogisticRegression": LogisticRegression}
    return names | {"FunctionTransformer": FunctionTransformer, "labels": [0, 1, 0, 1]}


def _spacy() -> Names:
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed")
    import elmo.integrations.spacy  # noqa: F401  (registers the component)

    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", name="first", config={"model": "models/finetune"})
    return {"nlp": nlp}


SETUPS: dict[str, Callable[[], Names]] = {
    "sentence-transformers": dict,
    "Hugging Face": dict,
    "datasets": _datasets,
    "Ray Data": dict,  # its class is tested below, without Ray
    "scikit-learn": _sklearn,
    "spaCy": _spacy,
    "AllenNLP": lambda: {"torch": torch},
}


def test_the_table_names_every_library() -> None:
    assert {library for library, _ in rows()} == set(SETUPS)


@pytest.mark.parametrize(("library", "line"), [row for row in rows() if row[0] != "Ray Data"])
@pytest.mark.slow
def test_the_line_runs(
    library: str,
    line: str,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "finetune").symlink_to(tiny_model_folder)
    monkeypatch.chdir(tmp_path)
    embedder = elmo.Embedder.load(tiny_model_folder)
    names = {"elmo": elmo, "embedder": embedder, "texts": TEXTS} | SETUPS[library]()
    result = eval(line, names)
    if library == "sentence-transformers":
        expected = embedder.encode(TEXTS, normalize="normalize" in line)
        np.testing.assert_allclose(result, expected, atol=1e-5)
    elif library == "scikit-learn":
        assert result.predict(TEXTS).shape == (4,)
    elif library == "datasets":
        np.testing.assert_allclose(np.array(result["elmo"]), embedder.encode(TEXTS), atol=1e-5)
    else:
        assert result is not None


def test_the_class_for_ray_data_adds_a_column_of_vectors(tiny_model_folder: Path) -> None:
    (encoder,) = re.findall(r"^class Encoder:.*?(?=^```)", GUIDE.read_text("utf-8"), re.M | re.S)
    names: Names = {"elmo": elmo}
    exec(encoder, names)
    batch = names["Encoder"](tiny_model_folder)({"text": np.array(TEXTS, object), "k": range(4)})
    assert sorted(batch) == ["elmo", "k", "text"]
    expected = elmo.Embedder.load(tiny_model_folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(batch["elmo"], expected, atol=1e-5)
