"""Text files, gzipped or not, read line by line or whole."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from elmo.errors import Damaged, ElmoError, not_utf8_error
from elmo.io.records import check_readable
from elmo.settings import LONGEST_LINE

_LARGEST_FILE = 1 << 30  # bytes of a file that is read whole


@contextmanager
def open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, decompressed if its name ends in .gz; raise `ElmoError` if it
    is missing or damaged."""
    check_readable(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Damaged(f"{path}: truncated or not a gzip file ({error})") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file, gzipped or not, without their line ends, each with its
    number, counted from 1.

    `ElmoError` names a line that is not UTF-8 text or is too long.
    """
    number = 0
    with open_decompressed(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise ElmoError(f"{path}: is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
            if len(line) > LONGEST_LINE:
                raise ElmoError(
                    f"{path}:{number}: the line has more than {LONGEST_LINE:,} bytes; cut it"
                )
            if b"\0" in line:
                raise ElmoError(
                    f"{path}:{number}: has a zero byte, as UTF-16 and files that are not text do; "
                    "save the file as UTF-8"
                )
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise not_utf8_error(path, number, line, error.start) from None
            if "\r" in text:
                raise ElmoError(
                    f"{path}:{number}: has a carriage return within the line, as files of old Macs "
                    "have; save it with line feeds"
                )
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if its name ends in .gz, without a byte order mark.

    `ElmoError` is raised if the file is missing, damaged, or has more than 1 GiB.
    """
    with open_decompressed(path) as file:
        data = file.read(_LARGEST_FILE + 1)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ElmoError(f"{path}: is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    if len(data) > _LARGEST_FILE:
        raise ElmoError(
            f"{path}: has over {_LARGEST_FILE:,} bytes; cut it into files, or JSON lines"
        )
    return data.removeprefix(codecs.BOM_UTF8)
