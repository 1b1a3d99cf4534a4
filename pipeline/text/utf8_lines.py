"""Reads the lines of a span; refuses lines that are not UTF-8 or too long."""

from collections.abc import Iterable, Iterator

from elmo.errors import ElmoError, not_utf8_error
from elmo.settings import MAX_LINE_BYTES

from .input_files import InputFile, open_input, read_chunk
from .spans import BLANK_LINES, FileSpan

BLOCK_BYTES = 4 << 20


def raw_blocks(span: FileSpan, size: int, document_rule: str) -> Iterator[tuple[bytes, int]]:
    """Yield a span in blocks of whole lines, about `size` bytes, each with its offset in the file.

    The offset is in bytes of the uncompressed file. With `document_rule` "blank", a block ends
    where a document ends, unless one document fills it.
    """
    offset, bytes_left = span.start, span.stop - span.start if span.stop >= 0 else -1
    with open_input(span.input.url, compression=span.input.compression) as file:
        if offset:
            file.seek(offset)
        buffer = b""
        while True:
            # Double the size each time, or a long line would be copied once per block.
            wanted_bytes = max(size, min(len(buffer), MAX_LINE_BYTES))
            wanted_bytes = wanted_bytes if bytes_left < 0 else min(wanted_bytes, bytes_left)
            block = read_chunk(span.input, file, wanted_bytes) if wanted_bytes else b""
            bytes_left -= len(block) if bytes_left > 0 else 0
            if not block:
                break
            buffer += block
            if len(buffer) > MAX_LINE_BYTES:
                _check_line_lengths(span, buffer, offset)
            end = block_end(buffer, size, document_rule)
            if end:
                yield buffer[:end], offset
                offset, buffer = offset + end, buffer[end:]
    if buffer:
        yield buffer, offset


def _check_line_lengths(span: FileSpan, text: bytes, offset: int) -> None:
    start = 0
    for line in text.split(b"\n"):
        if len(line) > MAX_LINE_BYTES:
            number = line_number(span, offset + start)
            raise ElmoError(
                f"{span.input.url}:{number}: {too_long_message('this line', len(line))}"
            )
        start += len(line) + 1


def too_long_message(subject: str, size: int) -> str:
    """Return the error message for a line, named by `subject`, whose `size` is over the limit."""
    return (
        f"{subject} has {size / 1e6:,.0f} MB or more (limit: {MAX_LINE_BYTES >> 20} MiB); split it "
        "into lines"
    )


def block_end(text: bytes, size: int, document_rule: str) -> int:
    """Return where to end a block of `text`; 0 means that more must be read.

    With `document_rule` "blank", it ends after the last whole document. Otherwise, or if a document
    fills a block of `size` bytes, it ends after the last whole line.
    """
    if document_rule == "blank":
        ends = [match.end() for match in BLANK_LINES.finditer(text)]
        if ends:
            return ends[-1]
        if len(text) < size:
            return 0
    return text.rfind(b"\n") + 1


def abbreviate_names(names: Iterable[str]) -> str:
    """Return names as text for an error message: the first twelve, each cut to 60 characters."""
    names = [str(name) for name in names]
    return ", ".join(name[:60] for name in names[:12]) + (", …" if len(names) > 12 else "")


def check_utf8(span: FileSpan, text: bytes, offset: int) -> None:
    """Raise `ElmoError`, with the line, if `text` is not UTF-8 or contains a zero byte.

    `offset` is the offset of `text` in the span's uncompressed file, in bytes.
    """
    nul = text.find(0)
    if nul >= 0:
        check_no_nul(span.input, text[nul : nul + 1], line_number(span, offset + nul))
    if (position := find_non_utf8(text)) is not None:
        line = line_number(span, offset + position)
        start = text.rfind(b"\n", 0, position) + 1
        raise not_utf8_error(span.input.url, line, text[start:], position - start)


def check_no_nul(input_: InputFile, text: bytes, line: int) -> None:
    """Raise `ElmoError`, with the line, if `text` contains a zero byte.

    `line` is the number of that line; if it is 0, lines are counted from the start of `text`.
    """
    if 0 in text:
        raise ElmoError(
            f"{input_.url}:{line or text.count(10, 0, text.index(0)) + 1}: contains a zero "
            "byte, so it is UTF-16 or not text; save it as UTF-8"
        )


def find_non_utf8(text: bytes) -> int | None:
    """Return the first offset at which `text` is not UTF-8, or None."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def line_number(span: FileSpan, offset: int) -> int:
    """Return the number, from 1, of the line with byte `offset` of the uncompressed file."""
    line = 1
    with open_input(span.input.url, compression=span.input.compression) as file:
        while offset > 0 and (block := read_chunk(span.input, file, min(offset, BLOCK_BYTES))):
            line += block.count(b"\n")
            offset -= len(block)
    return line
