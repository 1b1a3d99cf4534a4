"""Inputs: what is named is read once, what is not text is refused, and every error is one line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.text.input_files import find_inputs, open_input


def files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some text\n")
    return folder


@pytest.mark.parametrize("pattern", ["", " "])
def test_an_empty_name_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.chdir(files(tmp_path, "a.txt"))
    with pytest.raises(ElmoError, match="an empty name"):
        find_inputs([pattern])
    assert [found.name for found in find_inputs(["."])] == ["a.txt"]


@pytest.mark.parametrize("again", ["in", "in/a.txt", "in/*.txt", "./in/../in/a.txt", "link.txt"])
def test_a_file_named_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    monkeypatch.chdir(files(tmp_path, "in/a.txt"))
    (tmp_path / "link.txt").symlink_to("in/a.txt")
    with pytest.raises(ElmoError, match=f"named twice .* by {re.escape(repr(again))}"):
        find_inputs(["in/a.txt", again])


@pytest.mark.parametrize("name", ["LICENSE", "table.log", "x.py", "sub/Makefile"])
def test_a_file_in_a_folder_that_may_be_no_text_is_named(tmp_path: Path, name: str) -> None:
    files(tmp_path, "a.txt", "sub/b.md", name)
    with pytest.raises(ElmoError, match=rf"{name}: only \.txt, .*; move it elsewhere"):
        find_inputs([str(tmp_path)])
    assert [i.url for i in find_inputs([str(tmp_path / name)])] == [str(tmp_path / name)]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("t.xlsx", "write it as CSV"),
        ("t.arrow.gz", "write it as CSV"),
        ("t.json", "name it .jsonl"),
        ("t.html", "trafilatura --input-dir"),
        ("t.tar.gz", "unpack it"),
        ("t.7z", "unpack it"),
    ],
)
def test_tables_and_archives_are_refused_wherever_they_are_named(
    tmp_path: Path, name: str, remedy: str
) -> None:
    files(tmp_path, name)
    for pattern in (tmp_path, tmp_path / name, tmp_path / "t.*"):
        with pytest.raises(ElmoError, match=rf"{name}: is not read as text; .*{remedy}"):
            find_inputs([str(pattern)])


def test_a_linked_folder_is_read_once_and_hidden_ones_are_not(tmp_path: Path) -> None:
    files(tmp_path / "far", "b.txt", "sub/c.txt")
    (files(tmp_path / "in", "a.txt") / "link").symlink_to(tmp_path / "far")
    (tmp_path / "far/back").symlink_to(tmp_path / "in")
    (tmp_path / "in/.hidden").symlink_to(tmp_path / "far")
    names = [found.name for found in find_inputs([str(tmp_path / "in")])]
    assert names == ["a.txt", "link/b.txt", "link/sub/c.txt"]


def test_all_files_of_a_folder_that_are_no_text_are_named_at_once(tmp_path: Path) -> None:
    files(tmp_path, "a.txt", "b.pdf", "sub/c.docx", "d.zip")
    with pytest.raises(ElmoError, match="3 files cannot be read: ") as error:
        find_inputs([str(tmp_path)])
    assert all(name in str(error.value) for name in ("b.pdf", "c.docx", "d.zip"))


def test_zstd_with_a_long_window_and_several_frames_is_read(tmp_path: Path) -> None:
    import zstandard

    text = "".join(f"line {k} of it\n" for k in range(20_000)).encode()
    parts = []
    for data in (text[:100_000], text[100_000:]):
        how = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
        compressor = zstandard.ZstdCompressor(compression_params=how).compressobj()
        parts.append(compressor.compress(data) + compressor.flush())
    path = tmp_path / "t.txt.zst"
    path.write_bytes(b"".join(parts))
    with open_input(str(path), compression="zstd") as file:
        assert file.read() == text
    path.write_bytes(b"".join(parts)[:-9])
    with open_input(str(path), compression="zstd") as file, pytest.raises(EOFError):
        file.read()


def test_a_name_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w") as file:
        file.write("text\n")
    with pytest.raises(ElmoError, match="name is not UTF-8; rename") as error:
        find_inputs([str(tmp_path)])
    str(error.value).encode("utf-8")


def test_a_bucket_without_credentials_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    code = "from pipeline.text.input_files import find_inputs; find_inputs(['s3://a-bucket/x.txt'])"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    own = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | own, capture_output=True, text=True
    )
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("elmo.errors.ElmoError: s3://a-bucket/x.txt: cannot be read: "), line


def test_whatever_a_file_system_raises_is_one_line() -> None:
    fsspec = pytest.importorskip("fsspec")

    class Odd(Exception):
        pass

    class Broken(fsspec.AbstractFileSystem):
        protocol = "broken"

        def info(self, path: str, **_: object) -> dict[str, object]:
            raise Odd("the network\nis away")

        def _open(self, path: str, **_: object) -> object:
            raise Odd("the network\nis away")

    fsspec.register_implementation("broken", Broken, clobber=True)
    for call in (lambda: find_inputs(["broken://x.txt"]), lambda: open_input("broken://x.txt")):
        with pytest.raises(ElmoError, match=r"^broken://x\.txt: .*: the network; restore"):
            call()
