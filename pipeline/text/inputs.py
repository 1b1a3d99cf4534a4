"""Input files, by name, folder, glob or URL: their kinds, their digests, and opening them."""

import glob
import hashlib
import lzma
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import Struct

from elmo.errors import ElmoError, NotFound
from elmo.io import records
from elmo.io.location import Location, in_parallel
from elmo.io.records import (
    Count,
    Sha256,
    check_readable,
    digest,
)

from ..terminal.failures import reading
from .formats import BY_ENDING, COMPRESSIONS

_TABLE = "write it as CSV, JSON lines (.jsonl) or Parquet and name its column in corpus.column"
_PACKED = "unpack it, or compress it as gz, zst or xz"
_NOT_TEXT = {
    ".json": "if it holds one record per line name it .jsonl, else write it so",
    **dict.fromkeys((".xlsx", ".ods", ".arrow", ".feather", ".avro", ".orc"), _TABLE),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".bz2", ".lz4", ".7z", ".rar"), _PACKED),
}
_ENTRY = 200  # bytes of a file in a manifest, about, without its name and URL
_LARGE = 64 << 20  # bytes from which a digest is worth keeping when the stage is killed


class Input(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of text: its name in manifests, where it is, and what it held when named."""

    name: str
    url: str
    bytes: Count
    sha256: Sha256

    @property
    def compression(self) -> str | None:
        """`gzip`, `zstd`, `xz` or None, by the end of its name."""
        return COMPRESSIONS.get(_suffixes(self.url)[-1])

    @property
    def format(self) -> str:
        """Its name in `FORMATS`, by the ending before the compression's; by default `text`."""
        return BY_ENDING.get(_ending(self.url), "text")


class _Digest(Struct, frozen=True, forbid_unknown_fields=True):
    bytes: Count
    sha256: Sha256


def find_inputs(patterns: Sequence[str], *, work: Location | None = None) -> list[Input]:
    """List and digest the files that names, folders, globs and fsspec URLs stand for, in order.

    `ElmoError` for one that stands for nothing, is named twice or is no text, and where all files
    together are empty. Digests of large files are kept in the folder `work` as they are made.
    """
    files: dict[str, tuple[str, str]] = {}
    for pattern in patterns:
        for name, url in _expand(pattern):
            identity = url if "://" in url else os.path.realpath(url)
            if identity in files:
                raise ElmoError(
                    f"{url}: named twice in params.yaml, the second time by {pattern!r}; name "
                    "each file once"
                )
            files[identity] = name, url
    listed = sum(_ENTRY + len(name) + len(url) for name, url in files.values())
    most = records.JSON_LIMIT // 2  # the rest of a manifest is for shards or parts
    if listed > most:
        raise ElmoError(
            f"{patterns[0]}: {len(files):,} files are too many for a manifest (about {listed:,} "
            f"bytes, of at most {most:,}); join them into fewer"
        )
    measured = in_parallel(lambda file: _measure(file[1], work), files.values())
    inputs = [
        Input(name, url, measurement.bytes, measurement.sha256)
        for (name, url), measurement in zip(files.values(), measured, strict=True)
    ]
    if not any(measurement.bytes for measurement in inputs):
        raise ElmoError(f"{patterns[0]}: is empty; name files with text in params.yaml")
    return inputs


def check_input(input_: Input) -> None:
    """Raise `ElmoError` where a file is gone or no longer has the bytes it was named with."""
    measured = _measure(input_.url, None)
    if (measured.bytes, measured.sha256) != (input_.bytes, input_.sha256):
        raise ElmoError(f"{input_.url}: has changed since the corpus stage; run that stage again")


def open_input(url: str, *, compression: str | None = None) -> BinaryIO:
    """Open a local path or fsspec URL for reading bytes; `ElmoError` where there is none."""
    with reading(url):
        if "://" not in url:
            check_readable(Path(url))
        file = _fsspec().open(url, "rb").open() if "://" in url else Path(url).open("rb")
        if compression is None:
            return file
        if compression == "xz":
            return cast(BinaryIO, lzma.open(file))
        import pyarrow as pa

        # Unlike its Python peers, Arrow reads on over frames and notices a frame that ends early.
        return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, "r"), compression))


def read_bytes(input_: Input, file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes of an input's text; `ElmoError` where the file is damaged."""
    packed = input_.compression
    with reading(input_.url, f"truncated or not {packed}" if packed else "cannot be read"):
        return file.read(size)


def _expand(pattern: str) -> list[tuple[str, str]]:
    """The (name, url) pairs a pattern stands for, sorted; names are relative to what was given."""
    if not pattern.strip():
        raise ElmoError(
            "corpus: an empty name among the files of params.yaml; name a file, or . for all that "
            "is in this folder"
        )
    whole_folder = False
    if "://" in pattern:
        with reading(pattern):
            fs, path = _fsspec().core.url_to_fs(pattern)
            whole_folder = fs.isdir(path)
            paths = fs.find(path) if whole_folder else fs.glob(path)
            names = [_below(path, p, whole_folder).partition("?")[0] for p in paths]
            pairs = [(name, fs.unstrip_protocol(p)) for name, p in zip(names, paths, strict=True)]
    else:
        base = Path(pattern)
        whole_folder = base.is_dir()
        if whole_folder:
            files = [p for p in base.rglob("*") if p.is_file()]
            pairs = [(p.relative_to(base).as_posix(), str(p)) for p in files]
        else:
            names = [pattern] if base.exists() else glob.glob(pattern, recursive=True)
            pairs = [(Path(p).name, p) for p in names if Path(p).is_file()]
    pairs = [pair for pair in pairs if not any(p.startswith(".") for p in Path(pair[0]).parts)]
    if not pairs:
        raise NotFound(f"{pattern}: no such file or folder of text; name one in params.yaml")
    for _, url in pairs:
        _check_name(url, whole_folder)
    return sorted(pairs, key=lambda pair: pair[1])


def _below(folder: str, path: str, whole_folder: bool) -> str:
    if whole_folder:
        return path[len(folder.rstrip("/")) + 1 :] or path.rsplit("/", 1)[-1]
    return path.rsplit("/", 1)[-1]


def _check_name(url: str, in_folder: bool) -> None:
    """Refuse what is no text by its name; in a folder, whatever is not known to be text."""
    try:
        url.encode("utf-8")
    except UnicodeEncodeError:
        raise ElmoError(f"{ascii(url)}: the file's name is not UTF-8; rename the file") from None
    ending = _ending(url)
    if remedy := _NOT_TEXT.get(_suffixes(url)[-1]) or _NOT_TEXT.get(ending):
        raise ElmoError(f"{url}: is not read as text; {remedy}")
    if in_folder and ending not in BY_ENDING:
        raise ElmoError(
            f"{url}: of a folder only {', '.join(BY_ENDING)} are read (also compressed); "
            "move it elsewhere, or name the text files themselves or a glob such as folder/*.txt"
        )


def _measure(url: str, work: Location | None) -> _Digest:
    cached = ""
    if work is not None and "://" not in url:
        with reading(url):
            status = os.stat(url)
        if status.st_size >= _LARGE:
            identity = [os.path.realpath(url), status.st_size, status.st_mtime_ns, status.st_ino]
            cached = f"{digest(identity)}.json"
            if work.exists(cached):
                return work.record(cached, _Digest)
    summed, size = hashlib.sha256(), 0
    with open_input(url) as file:
        while True:
            with reading(url):
                block = file.read(1 << 20)
            if not block:
                break
            summed.update(block)
            size += len(block)
    measured = _Digest(size, summed.hexdigest())
    if work is not None and cached:
        work.write_json(cached, {"bytes": measured.bytes, "sha256": measured.sha256})
    return measured


def _suffixes(url: str) -> list[str]:
    name = (url.partition("?")[0] if "://" in url else url).rsplit("/", 1)[-1]
    return [suffix.lower() for suffix in Path(name).suffixes[-2:]] or [""]


def _ending(url: str) -> str:
    """The last ending of a name that is no compression's."""
    endings = [suffix for suffix in _suffixes(url) if suffix not in COMPRESSIONS]
    return endings[-1] if endings else ""


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise ElmoError("compressed files and URLs need fsspec: pip install fsspec") from None
    return fsspec
