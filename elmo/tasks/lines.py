"""The lines of a labelled file."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from elmo.errors import ElmoError

LONGEST = 16 << 20  # bytes of a line


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, gzipped or not, with their numbers from 1."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise ElmoError(
                        f"{path}:{number}: the line has more than {LONGEST:,} bytes; cut it"
                    )
                if b"\0" in line:
                    raise ElmoError(f"{path}:{number}: has a zero byte, so it is no text")
                text = line.decode("utf-8").rstrip("\r\n")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except FileNotFoundError:
        raise ElmoError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ElmoError(
            f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8"
        ) from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise ElmoError(f"{path}: truncated or no gzip file ({error})") from None
