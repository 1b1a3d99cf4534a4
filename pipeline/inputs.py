"""Files of text, by name, folder, glob or URL: what they are and how to open them."""

import glob
import hashlib
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from elmo.errors import ElmoError

_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}


@dataclass(frozen=True)
class Input:
    """One file of text: what the books call it, where it is, and what it held when named."""

    name: str
    url: str
    bytes: int
    sha256: str

    @property
    def compression(self) -> str | None:
        """`gzip`, `zstd`, `xz` or None, by the end of its name."""
        return _COMPRESSED.get(_suffixes(self.url)[-1])

    @property
    def format(self) -> str:
        """`jsonl`, `parquet` or `text`, by its name without the compression's ending."""
        suffixes = [s for s in _suffixes(self.url) if s not in _COMPRESSED]
        last = suffixes[-1] if suffixes else ""
        return {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(last, "text")


def find_inputs(patterns: Sequence[str]) -> list[Input]:
    """List and digest the files that names, folders, globs and fsspec URLs stand for, in order.

    `ElmoError` for one that stands for nothing, and where all files together are empty.
    """
    inputs = [_describe(name, url) for pattern in patterns for name, url in _expand(pattern)]
    if not any(found.bytes for found in inputs):
        raise ElmoError(f"{patterns[0]}: is empty; name files with text in params.yaml")
    return inputs


def check_input(found: Input) -> None:
    """Raise `ElmoError` where a file is gone or no longer has the bytes it was named with."""
    bytes_, sha256 = _measure(found.url)
    if (bytes_, sha256) != (found.bytes, found.sha256):
        raise ElmoError(f"{found.url}: has changed since the corpus stage; run that stage again")


def open_input(url: str, *, compression: str | None = None) -> BinaryIO:
    """Open a local path or fsspec URL for reading bytes; `ElmoError` where there is none."""
    try:
        file = _fsspec().open(url, "rb").open() if "://" in url else Path(url).open("rb")
    except FileNotFoundError:
        raise ElmoError(f"{url}: no such file; name an existing one in params.yaml") from None
    except (ImportError, ValueError) as error:
        raise ElmoError(f"{url}: cannot be opened ({_first_line(error)})") from None
    if compression is None:
        return file
    if compression == "xz":
        return cast(BinaryIO, lzma.open(file))
    import pyarrow as pa

    # Unlike its Python peers, Arrow reads on over frames and notices a frame that ends early.
    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, "r"), compression))


def _expand(pattern: str) -> list[tuple[str, str]]:
    """The (name, url) pairs a pattern stands for, sorted; names are relative to what was given."""
    if "://" in pattern:
        try:
            fs, path = _fsspec().core.url_to_fs(pattern)
        except (ImportError, ValueError) as error:
            raise ElmoError(f"{pattern}: cannot be opened ({_first_line(error)})") from None
        found = fs.find(path) if fs.isdir(path) else fs.glob(path)
        pairs = [(p.rsplit("/", 1)[-1], fs.unstrip_protocol(p)) for p in found]
    else:
        base = Path(pattern)
        if base.is_dir():
            files = [p for p in base.rglob("*") if p.is_file()]
            pairs = [(p.relative_to(base).as_posix(), str(p)) for p in files]
        else:
            names = [pattern] if base.exists() else glob.glob(pattern, recursive=True)
            pairs = [(Path(p).name, p) for p in names if Path(p).is_file()]
    pairs = [(name, url) for name, url in pairs if not Path(name).name.startswith(".")]
    if not pairs:
        raise ElmoError(f"{pattern}: no such file or folder of text; name one in params.yaml")
    return sorted(pairs, key=lambda pair: pair[1])


def _describe(name: str, url: str) -> Input:
    return Input(name, url, *_measure(url))


def _measure(url: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open_input(url) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _suffixes(url: str) -> list[str]:
    return [suffix.lower() for suffix in Path(url.rsplit("/", 1)[-1]).suffixes[-2:]] or [""]


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise ElmoError("compressed files and URLs need fsspec: pip install fsspec") from None
    return fsspec


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
