"""Names of pretrained models, and folders that are published."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from elmo.embedder import Embedder
from elmo.errors import ElmoError
from elmo.model_folder import load_model, save_model

TEXTS = ["he has a gift", "the gift"]


def test_a_saved_model_is_the_same_model_with_a_card(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    embedder = Embedder.from_pretrained(tiny_model_folder)
    digest = embedder.save_pretrained(
        tmp_path / "out", licence="apache-2.0", title="Tiny", language="en"
    )
    again = Embedder.from_pretrained(str(tmp_path / "out"))
    assert again.model.digest == digest == embedder.model.digest
    np.testing.assert_array_equal(again.encode(TEXTS), embedder.encode(TEXTS))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: apache-2.0\nlanguage: en\nlibrary_name: elmo-pipeline\n")
    assert digest in card and "2 × 16 cells, projection 4, 20 filters" in card
    assert card.count("Not recorded in the model.") == 2
    embedder.save_pretrained(tmp_path / "out")  # over its own


def test_the_card_says_data_and_perplexities(tiny_model_folder: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model_folder)
    side = {"forward": 12.34, "backward": 11.0, "average": 11.67, "tokens": 1234}
    training = {
        "stage": "finetune",
        "inputs": {"corpus": "ab" * 32},
        "params": {"training": {"epochs": 2}},
        "perplexity": {"before": {"task": {**side, "average": None}}, "after": {"task": side}},
    }
    save_model(
        tmp_path / "m",
        bilm=model.bilm,
        vocabulary=model.vocabulary,
        characters=model.characters,
        softmax=model.softmax,
        training=training,
        tokenizer=model.tokenizer,
    )
    Embedder.load(tmp_path / "m").save_pretrained(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| task, after finetune | 12.3 | 11.0 | 11.7 |" in card
    assert "| task, before finetune | 12.3 | 11.0 | - |" in card
    assert "| corpus | `abab" in card and "| held-out tokens, task | 1,234 |" in card
    assert "| epochs of finetune | 2 |" in card


def test_weights_in_bfloat16_are_not_saved(tiny_model_folder: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(tiny_model_folder, precision="bfloat16")
    with pytest.raises(ElmoError, match="load the model in float32"):
        embedder.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_snapshot_as_hugging_face_keeps_it(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A folder of links into blobs, below the folder of its repository."""
    repository = tmp_path / "models--me--elmo"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in tiny_model_folder.iterdir():
        shutil.copy(path, repository / "blobs" / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"blob-{path.name}")
    expected = Embedder.load(tiny_model_folder).encode(TEXTS)
    for name in (snapshot, repository):
        np.testing.assert_array_equal(Embedder.from_pretrained(name).encode(TEXTS), expected)
    shutil.copytree(snapshot, repository / "snapshots" / "def")
    with pytest.raises(ElmoError, match="holds 2 snapshots"):
        Embedder.from_pretrained(repository)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("def")
    np.testing.assert_array_equal(Embedder.from_pretrained(repository).encode(TEXTS), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [("no-such", "no-such: no model folder"), ("s3://bucket/model", "download it first")],
)
def test_a_name_that_leads_nowhere(name: str, message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        Embedder.from_pretrained(name)
