"""Reads text files, compressed or not, line by line or whole."""

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from elmo.errors import Damaged, ElmoError, not_utf8_error
from elmo.io.records import check_regular_file
from elmo.settings import MAX_LINE_BYTES

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}  # by file name ending


def _zstd_decoder() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ElmoError("a .zst file needs a library: pip install zstandard") from None
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


_DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
    "zstd": _zstd_decoder,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
}
_CHUNK_BYTES = 1 << 13  # compressed bytes; thousands of times as many decompressed
_BYTE_ORDER_MARKS = (  # UTF-32 first, because its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_MAX_FILE_BYTES = 1 << 30  # bytes that `read_whole_text` accepts


class _StreamReader(RawIOBase):
    """Reads the streams of a compressed file one after the other, skipping zero bytes between them;
    raises `EOFError` if the last stream is truncated.

    `make_decoder` returns a decoder of one stream. Any other bytes after a stream are an error,
    unlike in Python's readers of bz2 and xz, which end there.
    """

    def __init__(self, file: BinaryIO, make_decoder: Callable[[], Any]) -> None:
        self._file, self._make_decoder = file, make_decoder
        self._decoder: Any = None  # before the first stream
        self._compressed = self._text = b""
        self._is_in_stream = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with text; return the number of bytes, 0 at the end."""
        while not self._text:
            self._compressed = self._compressed or self._file.read(_CHUNK_BYTES)
            if not self._compressed and self._is_in_stream:
                raise EOFError("the last stream is truncated")
            if not self._compressed:
                return 0
            if not self._is_in_stream:
                self._compressed = self._compressed.lstrip(b"\0" if self._decoder else b"")
                self._decoder = self._make_decoder()
                self._is_in_stream = bool(self._compressed)
            if self._is_in_stream:
                self._text = self._decoder.decompress(self._compressed)
                self._compressed = self._decoder.unused_data
                self._is_in_stream = not self._decoder.eof
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()


def decompress(file: BinaryIO, compression: str | None) -> BinaryIO:
    """Return a file that reads the decompressed content of the open `file`, and closes it;
    `compression` is `gzip`, `bz2`, `xz`, `zstd` or None."""
    if compression is None:
        return file
    reader = _StreamReader(file, _DECODERS[compression])
    return cast(BinaryIO, BufferedReader(reader, 1 << 20))


@contextmanager
def open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, decompressed if its name ends in .gz, .bz2, .xz or .zst; raise
    `ElmoError` if it is missing or damaged."""
    check_regular_file(path)
    extension = path.suffix.lower()
    try:
        with decompress(path.open("rb"), COMPRESSIONS.get(extension)) as file:
            yield file
    except Exception as error:
        has_reason = isinstance(error, ElmoError) or getattr(error, "errno", None)
        if has_reason or extension not in COMPRESSIONS:
            raise
        raise Damaged(
            f"{path}: truncated or not {extension[1:]}; restore it, or correct its extension"
        ) from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file, compressed or not, without their line ends, each with its
    number, counted from 1.

    Raises `ElmoError`, which names the line, if one is not UTF-8 text or is too long.
    """
    number = 0
    with open_decompressed(path) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1:
                _check_encoding(path, line)
            if len(line) > MAX_LINE_BYTES:
                raise ElmoError(
                    f"{path}:{number}: the line has more than {MAX_LINE_BYTES:,} bytes; split it"
                )
            if b"\0" in line:
                raise ElmoError(
                    f"{path}:{number}: contains a zero byte, so it is UTF-16 or not text; "
                    "save the file as UTF-8"
                )
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise not_utf8_error(path, number, line, error.start) from None
            if "\r" in text:
                raise ElmoError(
                    f"{path}:{number}: has a carriage return within the line (line ends of old "
                    "Macs); save the file with line feeds"
                )
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def read_whole_text(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if its ending says so, without a byte order mark.

    Raises `ElmoError` if the file is missing, damaged, or larger than 1 GiB.
    """
    with open_decompressed(path) as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    _check_encoding(path, data)
    if len(data) > _MAX_FILE_BYTES:
        raise ElmoError(
            f"{path}: has more than {_MAX_FILE_BYTES:,} bytes; split it, or write JSON lines"
        )
    return data.removeprefix(codecs.BOM_UTF8)


def _check_encoding(path: Path, data: bytes) -> None:
    """Raise `ElmoError` if a file begins with a UTF-16 or UTF-32 mark, or as a gzip file does."""
    if data.startswith(b"\x1f\x8b"):
        raise ElmoError(f"{path}: is compressed with gzip; rename it to end in .gz")
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise ElmoError(f"{path}: is {encoding}; convert it: iconv -f {encoding} -t UTF-8")
