"""What `import elmo` shows, and that every path may be a string."""

from importlib import metadata
from pathlib import Path

import pytest

import elmo
from elmo.data.shards import Shards, write_shards


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
