"""Each node is asked before a stage works: what it answers, and how a line names it."""

from pathlib import Path
from typing import Any

from elmo.io.location import Location
from pipeline.cluster import preflight


def answer(**changed: Any) -> list[str]:
    """What this machine says as a node that is asked for its own state, but for what changed."""
    versions = {name: preflight.package_version(name) for name in preflight.CHECKED_PACKAGES}
    own = {"packages": versions, "expected_digest": preflight.code_digest(), "marker_by_folder": {}}
    return preflight.check_node(**own | changed, cache_seconds=0.0)


def test_a_node_like_the_driver_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folders = [Location(tmp_path / "data" / "shards"), Location(tmp_path / "new" / "out")]
    with preflight.write_markers(folders) as contents:
        assert set(contents) == {str(tmp_path), str(tmp_path / "data")}
        assert answer(marker_by_folder=contents) == []
    assert [p.name for p in tmp_path.rglob("*")] == ["data"]


def test_all_that_a_node_lacks_is_one_answer(tmp_path: Path) -> None:
    found = answer(
        packages={"torch": "1.0", "no-such-package": "1.0"},
        expected_digest="other",
        marker_by_folder={str(tmp_path / "no"): ("a", "b")},
    )
    said = ["has 1.0", "no-such-package is not installed", "another version", "is missing"]
    assert len(found) == len(said) and not any("\n" in problem for problem in found)
    assert all(word in problem for word, problem in zip(said, found, strict=True))


def test_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with preflight.write_markers([Location(tmp_path / "out")]) as contents:
        (problem,) = answer(marker_by_folder={str(other): contents[str(tmp_path)]})
    assert problem == f"{other} is not the driver's folder; mount the shared storage there"
