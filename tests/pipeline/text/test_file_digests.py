"""A file of text is read once for its digest while it stays as it is; a change is always seen."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from elmo.errors import ElmoError
from pipeline.cluster import workers
from pipeline.text import file_digests, input_files
from pipeline.text.input_files import check_inputs, find_inputs
from tests.pipeline.stages.test_tokenize import make

TEXT = "".join(f"the cat sat on mat {k}\n\n" for k in range(20))


@pytest.fixture(params=["disk", "url"])
def text(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A file, here or at a URL, whose digest is worth keeping at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digests, "_LARGE_BYTES", 1)
    monkeypatch.setattr(file_digests, "_SETTLING_SECONDS", -1.0)
    url = str(tmp_path / "a.txt") if request.param == "disk" else "memory://digests/a.txt"
    write(url, TEXT)
    yield url
    fsspec.filesystem("memory").rm("/digests", recursive=True) if "://" in url else None


def write(url: str, text: str) -> None:
    with fsspec.open(url, "w") as file:
        file.write(text)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened for reading."""
    seen: list[str] = []
    real: Callable[..., Any] = input_files.open_input
    monkeypatch.setattr(input_files, "open_input", lambda url: seen.append(url) or real(url))
    return seen


def test_a_file_that_is_as_it_was_is_not_read_again(text: str, opened: list[str]) -> None:
    first = find_inputs([text])
    assert len(opened) == 1
    assert find_inputs([text]) == first
    marked = check_inputs(first)
    assert len(opened) == 1 and marked[0].mark and marked[0].sha256 == first[0].sha256
    with (file_digests.user_cache() / "digests.txt").open("a") as file:
        file.write("cut by a full di")
    assert find_inputs([text]) == first and len(opened) == 1


def test_a_change_is_seen_whatever_its_size_and_time(text: str, opened: list[str]) -> None:
    first = find_inputs([text])
    status = os.stat(text) if "://" not in text else None
    write(text, TEXT.replace("cat", "dog"))
    if status is not None:
        os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = find_inputs([text])
    assert len(opened) == 2
    assert (second[0].bytes, second[0].sha256 != first[0].sha256) == (first[0].bytes, True)
    with pytest.raises(ElmoError, match=r"a\.txt: has changed since the corpus stage; run that"):
        check_inputs(first)


def test_a_file_that_was_just_written_is_read_again(
    text: str, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within the same tick of a clock would not show."""
    monkeypatch.setattr(file_digests, "_SETTLING_SECONDS", 3600.0)
    assert find_inputs([text]) == find_inputs([text])
    assert len(opened) == 2


def test_a_task_sees_that_its_file_changed_while_it_was_read(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(function: Callable[[Any], Any], items: Any, **_: Any) -> list[Any]:
        write(text, TEXT.replace("cat", "dog"))
        return [function(item) for item in items]

    monkeypatch.setattr(workers, "map_tasks", late)
    with pytest.raises(ElmoError, match=r"a\.txt: has changed since the corpus stage"):
        make(tmp_path / "out", text, documents="auto", heldout=0.2)
    assert not (tmp_path / "out").exists()
