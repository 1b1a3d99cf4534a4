"""What `import elmo` shows, that every path may be a string, and the kinds of errors."""

import shutil
from importlib import metadata
from pathlib import Path

import pytest

import elmo
from elmo.data.shards import Shards, write_shards
from tests.files import flip


def test_public_names_and_no_others() -> None:
    assert dir(elmo) == sorted(elmo.__all__)
    for name in elmo.__all__:
        assert getattr(elmo, name) is not None
    assert elmo.__version__ == metadata.version("elmo-pipeline")
    with pytest.raises(AttributeError, match="no attribute 'import_module'"):
        elmo.import_module  # noqa: B018
    assert (Path(elmo.__file__).parent / "py.typed").exists()


def test_shards_by_a_string(tmp_path: Path) -> None:
    write_shards(str(tmp_path / "shards"), [["a"]])
    assert Shards(str(tmp_path / "shards")).tokens() == 1


def test_an_error_has_a_kind(tmp_path: Path, tiny_model_folder: Path) -> None:
    """All are an `ElmoError`, and so a `ValueError`."""
    for read in (elmo.Embedder.load, elmo.FeatureStore):
        with pytest.raises(elmo.NotFound, match="nowhere: no such"):
            read(tmp_path / "nowhere")
    words = Path(shutil.copytree(tiny_model_folder, tmp_path / "model")) / "words.txt"
    for damage, said in ((flip, "truncated or altered"), (Path.unlink, "is missing")):
        damage(words)
        with pytest.raises(elmo.Damaged, match=rf"words\.txt: {said}"):
            elmo.Embedder.load(words.parent)
    for kind in (elmo.NotFound, elmo.Damaged, elmo.Mismatch, elmo.BadSettings):
        assert issubclass(kind, elmo.ElmoError) and issubclass(kind, ValueError)
