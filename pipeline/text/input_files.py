"""Input files given by name, folder, glob or URL: finding, digesting and opening them."""

import bz2
import glob
import hashlib
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from msgspec import Struct, structs

from elmo.errors import ElmoError, NotFound, similar_path
from elmo.io import records
from elmo.io.location import in_parallel
from elmo.io.records import (
    Count,
    Sha256,
    check_readable,
)

from ..terminal.failures import catch_read_errors
from .file_digests import FileState, digest_files, state_at_url, state_of
from .formats import BY_ENDING, COMPRESSIONS

_TABLE = "write it as CSV, JSON lines (.jsonl) or Parquet and name its column in corpus.column"
_PACKED = "unpack it, or compress it as gz, bz2, zst or xz"
_NOT_TEXT = {
    ".json": "if it holds one record per line name it .jsonl, else make lines of it: jq -c '.[]'",
    **dict.fromkeys((".xlsx", ".ods", ".arrow", ".feather", ".avro", ".orc"), _TABLE),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".lz4", ".7z", ".rar"), _PACKED),
}
_NAMED = 20  # files, at most, that one message names
_ENTRY = 200  # bytes of a file in a manifest, about, without its name and URL

Item = TypeVar("Item")
Result = TypeVar("Result")


class InputFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the corpus: its name in manifests, its URL or path, and its digest when found.

    `bytes` and `sha256` are of the file as it lies there, compressed or not. `mark` identifies the
    version that has this digest, such as an ETag; empty if it is unknown.
    """

    name: str
    url: str
    bytes: Count
    sha256: Sha256
    mark: str = ""  # of the version of the file that has this digest; empty: unknown

    @property
    def compression(self) -> str | None:
        """Return `gzip`, `bz2`, `zstd`, `xz` or None, by the ending of the name."""
        return COMPRESSIONS.get(_suffixes(self.url)[-1])

    @property
    def format(self) -> str:
        """Return the format's name in `FORMATS`, by the ending of the file's name.

        The ending of a compression is skipped; an unknown ending is `text`.
        """
        return BY_ENDING.get(_ending(self.url), "text")


def find_inputs(patterns: Sequence[str], where: str = "in params.yaml") -> list[InputFile]:
    """Find and digest the files of a list of names, folders, globs and fsspec URLs, in order.

    `where` names the source of the list in messages: "in params.yaml", "as --text".
    Raises `ElmoError` for a pattern without files, a file that comes twice or is no text, and where
    all files are empty. Unchanged files are not read again.
    """
    files: dict[str, tuple[str, str, FileState | None]] = {}
    for pattern in patterns:
        for name, url, seen in _expand(pattern, where):
            identity = url if "://" in url else os.path.realpath(url)
            if identity in files:
                raise ElmoError(
                    f"{url}: named twice {where}, the second time by {pattern!r}; name each file "
                    "once"
                )
            files[identity] = name, url, seen
    listed = sum(_ENTRY + len(name) + len(url) for name, url, _ in files.values())
    most = records.JSON_LIMIT // 2  # the rest of a manifest is for shards or parts
    if listed > most:
        raise ElmoError(
            f"{patterns[0]}: {len(files):,} files are too many for a manifest (about {listed:,} "
            f"bytes, of at most {most:,}); join them into fewer"
        )
    states = for_each(lambda file: file[2] or state_of(file[1]), files.values())
    urls = [url for _, url, _ in files.values()]
    sums = digest_files(list(zip(urls, states, strict=True)), _read)
    inputs = [
        InputFile(name, url, size, sha256)
        for (name, url, _), (size, sha256) in zip(files.values(), sums, strict=True)
    ]
    if not any(input_.bytes for input_ in inputs):
        raise ElmoError(f"{patterns[0]}: is empty; name files with text {where}")
    return inputs


def for_each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call `function` with each item in parallel threads; raise the errors of all as one."""

    def attempt(item: Item) -> Result | ElmoError:
        try:
            return function(item)
        except ElmoError as error:
            return error

    done = in_parallel(attempt, items)
    raise_all(one for one in done if isinstance(one, ElmoError))
    return cast(list[Result], done)


def raise_all(errors: Iterable[ElmoError]) -> None:
    """Raise the errors of several files as one, which names 20 of them; without any do nothing."""
    found = list(errors)
    if len(found) == 1:
        raise found[0]
    if found:
        more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        listed = "; ".join(str(error) for error in found[:_NAMED])
        raise ElmoError(f"{len(found):,} files cannot be read: {listed}{more}")


def check_inputs(inputs: Sequence[InputFile]) -> list[InputFile]:
    """Check that each file has the digest that was taken of it; return the files with their `mark`.

    By the mark `check_unchanged` notices later changes. Raises `ElmoError` for a file that is gone
    or changed.
    """
    states = in_parallel(lambda input_: state_of(input_.url), inputs)
    sums = digest_files(
        [(input_.url, seen) for input_, seen in zip(inputs, states, strict=True)], _read
    )
    for input_, measured in zip(inputs, sums, strict=True):
        if measured != (input_.bytes, input_.sha256):
            raise _changed(input_)
    return [
        structs.replace(input_, mark=seen.mark) for input_, seen in zip(inputs, states, strict=True)
    ]


def check_unchanged(input_: InputFile) -> None:
    """Raise `ElmoError` if the size or the `mark` of a file has changed since `check_inputs`.

    A file without a mark is not checked.
    """
    if not input_.mark:
        return
    now = state_of(input_.url)
    if (now.bytes, now.mark) != (input_.bytes, input_.mark):
        raise _changed(input_)


def _changed(input_: InputFile) -> ElmoError:
    return ElmoError(f"{input_.url}: has changed since the corpus stage; run that stage again")


def open_input(url: str, *, compression: str | None = None) -> BinaryIO:
    """Open a local path or fsspec URL for reading bytes; raise `ElmoError` if there is none.

    The bytes are decompressed as `compression` says (gzip, bz2, zstd, xz); with None they are not.
    """
    with catch_read_errors(url):
        if "://" not in url:
            check_readable(Path(url))
        file = _fsspec().open(url, "rb").open() if "://" in url else Path(url).open("rb")
        if compression is None:
            return file
        if compression in ("xz", "bz2"):
            return cast(BinaryIO, (lzma if compression == "xz" else bz2).open(file))
        if compression == "zstd":
            return cast(BinaryIO, BufferedReader(_ZstdReader(file), 1 << 20))
        import pyarrow as pa

        # Unlike Python's own, Arrow's decompressor passes over what follows the last frame.
        return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, "r"), compression))


class _ZstdReader(RawIOBase):
    """All frames of a zstd file, whatever their windows; `EOFError` where the last one is cut."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file = file
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._library.decompressobj()
        self._packed = self._text = b""
        self._in_frame = False

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with text, and return how many bytes that are; 0 at the end."""
        while not self._text:
            self._packed = self._packed or self._file.read(1 << 16)
            if not self._packed:
                if self._in_frame:
                    raise EOFError("its last frame is cut")
                return 0
            self._text = self._frame.decompress(self._packed)
            self._packed, self._in_frame = self._frame.unused_data, not self._frame.eof
            if self._frame.eof:
                self._frame = self._library.decompressobj()
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()


def read_bytes(input_: InputFile, file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes from `file`, an input that is open; `ElmoError` if it is damaged."""
    packed = input_.compression
    with catch_read_errors(
        input_.url,
        f"truncated or not {packed}; restore it, or name it as what it is"
        if packed
        else "cannot be read",
    ):
        return file.read(size)


def read_head(input_: InputFile) -> bytes:
    """Return the first 64 KiB of a file, decompressed."""
    with open_input(input_.url, compression=input_.compression) as file:
        return read_bytes(input_, file, 1 << 16)


def _expand(pattern: str, where: str) -> list[tuple[str, str, FileState | None]]:
    """The name and URL of each file that a pattern stands for, sorted, and how a listing shows it.

    Names are relative to what was given.
    """
    if not pattern.strip():
        raise ElmoError(
            f"corpus: an empty name {where}; name a file, or . for all that is in this folder"
        )
    whole_folder = False
    found: list[tuple[str, str, FileState | None]]
    if "://" in pattern:
        with catch_read_errors(pattern):
            fs, path = _fsspec().core.url_to_fs(pattern)
            whole_folder = fs.isdir(path)
            listed = (fs.find if whole_folder else fs.glob)(path, detail=True)
            found = [
                (
                    _below(path, p, whole_folder).partition("?")[0],
                    fs.unstrip_protocol(p),
                    state_at_url(info),
                )
                for p, info in listed.items()
            ]
    else:
        base = Path(pattern)
        whole_folder = base.is_dir()
        if whole_folder:
            files = [Path(at, name) for at in _folders(base) for name in os.listdir(at)]
            found = [(p.relative_to(base).as_posix(), str(p), None) for p in files if p.is_file()]
        else:
            names = [pattern] if base.exists() else glob.glob(pattern, recursive=True)
            found = [(Path(p).name, p, None) for p in names if Path(p).is_file()]
    found = [one for one in found if not any(p.startswith(".") for p in Path(one[0]).parts)]
    if not found:
        if whole_folder:
            raise NotFound(f"{pattern}: is a folder without text files; name another {where}")
        near = "" if "://" in pattern or glob.has_magic(pattern) else similar_path(Path(pattern))
        raise NotFound(f"{pattern}: no such file or folder of text{near}; name one {where}")
    for_each(lambda one: _check_name(one[1], whole_folder), found)
    return sorted(found, key=lambda one: one[1])


def _folders(base: Path) -> Iterator[str]:
    """Yield a folder and all below it, also by links, each once; hidden ones are left out."""

    def failed(error: OSError) -> None:
        raise error

    seen = set()
    for at, folders, _ in os.walk(base, followlinks=True, onerror=failed):
        if (real := os.path.realpath(at)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield at


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


def _read(url: str, advance: Callable[[int], None]) -> tuple[int, str]:
    """The bytes of a file and their SHA-256."""
    total, size = hashlib.sha256(), 0
    with open_input(url) as file:
        while True:
            with catch_read_errors(url):
                block = file.read(1 << 20)
            if not block:
                return size, total.hexdigest()
            total.update(block)
            size += len(block)
            advance(len(block))


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
