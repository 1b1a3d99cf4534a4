"""Find, digest and open input files, which are given by name, folder, glob or URL."""

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from msgspec import Struct, structs

from elmo.errors import ElmoError, NotFound, suggest_path
from elmo.io import records
from elmo.io.location import in_parallel
from elmo.io.records import Count, Sha256, check_regular_file
from elmo.io.text_files import COMPRESSIONS, decompress

from ..terminal.failures import catch_read_errors
from .file_digests import FileState, digest_files, find_state, state_from_info
from .formats import BY_ENDING
from .other_formats import MARKUP

_TABLE_REMEDY = (
    "write it as CSV, JSON lines (.jsonl) or Parquet and name its column in corpus.column"
)
_PACKED_REMEDY = "unpack it, or compress it as gz, bz2, zst or xz"
_NOT_TEXT_REMEDIES = {
    ".json": "if it has one record per line, name it .jsonl; if not, convert it: jq -c '.[]'",
    **dict.fromkeys((".xlsx", ".ods", ".arrow", ".feather", ".avro", ".orc"), _TABLE_REMEDY),
    **dict.fromkeys((".html", ".htm", ".xhtml", ".xml"), MARKUP),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".lz4", ".7z", ".rar"), _PACKED_REMEDY),
}
_MAX_NAMED_FILES = 20  # names of files in one message
_ENTRY_BYTES = 200  # about so many per manifest entry, without name and URL

Item = TypeVar("Item")
Result = TypeVar("Result")


class InputFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the corpus: its name in manifests, its URL or path, and its digest.

    `bytes` and `sha256` are those of the stored file, even if it is compressed. `mark` identifies
    the version that has this digest, such as an ETag; empty if it is unknown.
    """

    name: str
    url: str
    bytes: Count
    sha256: Sha256
    mark: str = ""

    @property
    def compression(self) -> str | None:
        """Return `gzip`, `bz2`, `zstd`, `xz` or None, by the extension."""
        return COMPRESSIONS.get(_suffixes(self.url)[-1])

    @property
    def format(self) -> str:
        """Return the format's name in `FORMATS`, by the extension.

        The extension of a compression is skipped; an unknown extension means `text`.
        """
        return BY_ENDING.get(_ending(self.url), "text")


def find_inputs(patterns: Sequence[str], list_source: str = "in params.yaml") -> list[InputFile]:
    """Find and digest the files of a list of names, folders, globs and fsspec URLs, in order.

    `list_source` names the source of the list in messages, such as "in params.yaml". Raises
    `ElmoError` if a pattern matches no file, a file is named twice or is not text, or all files are
    empty. Unchanged files are not read again.
    """
    files: dict[str, tuple[str, str, FileState | None]] = {}
    for pattern in patterns:
        for name, url, state in _expand_pattern(pattern, list_source):
            canonical_url = url if "://" in url else os.path.realpath(url)
            if canonical_url in files:
                raise ElmoError(
                    f"{url}: named twice {list_source}, the second time by {pattern!r}; name "
                    "each file once"
                )
            files[canonical_url] = name, url, state
    manifest_bytes = sum(_ENTRY_BYTES + len(name) + len(url) for name, url, _ in files.values())
    limit = records.JSON_LIMIT // 2  # the rest of a manifest is for shards or parts
    if manifest_bytes > limit:
        raise ElmoError(
            f"{patterns[0]}: {len(files):,} files are too many for a manifest (about "
            f"{manifest_bytes:,} bytes; the limit is {limit:,}); join them into fewer files"
        )
    states = map_in_threads(lambda file: file[2] or find_state(file[1]), files.values())
    urls = [url for _, url, _ in files.values()]
    sizes_and_digests = digest_files(list(zip(urls, states, strict=True)), _measure_file)
    inputs = [
        InputFile(name, url, size, sha256)
        for (name, url, _), (size, sha256) in zip(files.values(), sizes_and_digests, strict=True)
    ]
    if not any(input_.bytes for input_ in inputs):
        raise ElmoError(f"{patterns[0]}: is empty; name files with text {list_source}")
    return inputs


def map_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call `function` with each item in parallel threads; raise all errors as one."""
    return raise_as_one(in_parallel(partial(catch_error, function), items))


def catch_error(function: Callable[[Item], Result], item: Item) -> Result | ElmoError:
    """Return `function(item)`, or the `ElmoError` that it raises."""
    try:
        return function(item)
    except ElmoError as error:
        return error


def raise_as_one(results: Sequence[Result | ElmoError]) -> list[Result]:
    """Return the results, or raise the errors among them as one, with up to 20 messages."""
    all_errors = [result for result in results if isinstance(result, ElmoError)]
    if len(all_errors) == 1:
        raise all_errors[0]
    if all_errors:
        paths_by_reason: dict[str, list[str]] = {}
        for error in all_errors[:_MAX_NAMED_FILES]:
            path, _, reason = str(error).partition(": ")
            paths_by_reason.setdefault(reason, []).append(path)
        messages = [f"{', '.join(paths)}: {reason}" for reason, paths in paths_by_reason.items()]
        if len(all_errors) > _MAX_NAMED_FILES:
            messages.append(f"and {len(all_errors) - _MAX_NAMED_FILES:,} more")
        raise ElmoError(f"{len(all_errors):,} files cannot be read: {'; '.join(messages)}")
    return cast(list[Result], results)


def check_inputs(inputs: Sequence[InputFile]) -> list[InputFile]:
    """Check that each file still has its digest; return the files with their `mark` set.

    `check_unchanged` detects later changes by the mark. Raises `ElmoError` for a missing or changed
    file.
    """
    states = in_parallel(lambda input_: find_state(input_.url), inputs)
    sizes_and_digests = digest_files(
        [(input_.url, state) for input_, state in zip(inputs, states, strict=True)], _measure_file
    )
    for input_, size_and_digest in zip(inputs, sizes_and_digests, strict=True):
        if size_and_digest != (input_.bytes, input_.sha256):
            raise _changed_file_error(input_)
    return [
        structs.replace(input_, mark=state.mark)
        for input_, state in zip(inputs, states, strict=True)
    ]


def check_unchanged(input_: InputFile) -> None:
    """Raise `ElmoError` if the size or the `mark` of a file has changed since `check_inputs`.

    A file without a mark is not checked.
    """
    if not input_.mark:
        return
    state = find_state(input_.url)
    if (state.bytes, state.mark) != (input_.bytes, input_.mark):
        raise _changed_file_error(input_)


def _changed_file_error(input_: InputFile) -> ElmoError:
    return ElmoError(f"{input_.url}: has changed since the corpus stage; run that stage again")


def open_input(url: str, *, compression: str | None = None) -> BinaryIO:
    """Open a local path or fsspec URL for reading bytes; raise `ElmoError` if it is missing.

    The bytes are decompressed by `compression` (gzip, bz2, zstd, xz, or None).
    """
    import fsspec

    with catch_read_errors(url):
        if "://" not in url:
            check_regular_file(Path(url))
        file = fsspec.open(url, "rb").open() if "://" in url else Path(url).open("rb")
        return decompress(file, compression)


def read_chunk(input_: InputFile, file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes from `file`, an open input; raise `ElmoError` if it is damaged."""
    compression = input_.compression
    failure = f"truncated or not {compression}" if compression else "cannot be read"
    with catch_read_errors(input_.url, failure, "restore it, or correct its extension"):
        return file.read(size)


def read_head(input_: InputFile) -> bytes:
    """Return the first 64 KiB of a file, decompressed."""
    with open_input(input_.url, compression=input_.compression) as file:
        return read_chunk(input_, file, 1 << 16)


def _expand_pattern(pattern: str, list_source: str) -> list[tuple[str, str, FileState | None]]:
    """Return the name, URL and listed state of each file that a pattern matches, sorted by URL.

    Names are relative to the pattern's folder.
    """
    if not pattern.strip():
        raise ElmoError(
            f"corpus: an empty name {list_source}; write a file name, or . for this folder"
        )
    is_folder = False
    files: list[tuple[str, str, FileState | None]] = []
    if "://" in pattern:
        import fsspec

        with catch_read_errors(pattern):
            fs, path = fsspec.core.url_to_fs(pattern)
            is_folder = fs.isdir(path)
            info_by_path = (fs.find if is_folder else fs.glob)(path, detail=True)
            for file, info in info_by_path.items():
                name = file[len(path.rstrip("/")) + 1 :] if is_folder else ""
                name = (name or file.rsplit("/", 1)[-1]).partition("?")[0]
                files.append((name, fs.unstrip_protocol(file), state_from_info(info)))
    else:
        base = Path(pattern)
        is_folder = base.is_dir()
        if is_folder:
            paths = [
                Path(directory, name)
                for directory in _walk_folders(base)
                for name in os.listdir(directory)
            ]
            files = [(p.relative_to(base).as_posix(), str(p), None) for p in paths if p.is_file()]
        else:
            names = [pattern] if base.exists() else glob.glob(pattern, recursive=True)
            files = [(Path(p).name, p, None) for p in names if Path(p).is_file()]
    files = [
        file
        for file in files
        if file[1] == pattern or not any(name.startswith(".") for name in Path(file[0]).parts)
    ]
    if not files:
        if is_folder:
            raise NotFound(f"{pattern}: is a folder without text files; name another {list_source}")
        is_path = "://" not in pattern and not glob.has_magic(pattern)
        hint = suggest_path(Path(pattern)) if is_path else ""
        raise NotFound(f"{pattern}: no such file or folder of text{hint}; name one {list_source}")
    map_in_threads(lambda file: _check_name(file[1], is_folder), files)
    return sorted(files, key=lambda file: file[1])


def _walk_folders(top_folder: Path) -> Iterator[str]:
    """Yield a folder and its subfolders, also linked ones, each once and without hidden ones."""

    def raise_error(error: OSError) -> None:
        raise error

    visited_folders = set()
    for directory, folders, _ in os.walk(top_folder, followlinks=True, onerror=raise_error):
        if (real_path := os.path.realpath(directory)) in visited_folders:
            folders.clear()
            continue
        visited_folders.add(real_path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield directory


def _check_name(url: str, is_in_folder: bool) -> None:
    """Refuse a file whose extension is not one of text; in a folder, also an unknown extension."""
    try:
        url.encode("utf-8")
    except UnicodeEncodeError:
        raise ElmoError(f"{ascii(url)}: the file's name is not UTF-8; rename the file") from None
    ending = _ending(url)
    if remedy := _NOT_TEXT_REMEDIES.get(_suffixes(url)[-1]) or _NOT_TEXT_REMEDIES.get(ending):
        raise ElmoError(f"{url}: is not read as text; {remedy}")
    if is_in_folder and ending not in BY_ENDING:
        raise ElmoError(
            f"{url}: only {', '.join(BY_ENDING)} are read from a folder (also compressed); move it "
            "elsewhere, or name the text files themselves or a glob such as folder/*.txt"
        )


def _measure_file(url: str, advance: Callable[[int], None]) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file."""
    hasher, size = hashlib.sha256(), 0
    with open_input(url) as file:
        while True:
            with catch_read_errors(url):
                block = file.read(1 << 20)
            if not block:
                return size, hasher.hexdigest()
            hasher.update(block)
            size += len(block)
            advance(len(block))


def _suffixes(url: str) -> list[str]:
    name = (url.partition("?")[0] if "://" in url else url).rsplit("/", 1)[-1]
    return [suffix.lower() for suffix in Path(name).suffixes[-2:]] or [""]


def _ending(url: str) -> str:
    """Return the extension of a name, ignoring that of a compression."""
    endings = [suffix for suffix in _suffixes(url) if suffix not in COMPRESSIONS]
    return endings[-1] if endings else ""
