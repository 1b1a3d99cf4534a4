"""The Parquet format: the text is one column of strings."""

from collections.abc import Iterator
from typing import Any

from elmo.errors import ElmoError
from elmo.settings import LONGEST_LINE

from ..terminal.failures import catch_read_errors
from .accounting import Accounting
from .input_files import InputFile, open_input
from .reader import Keep, Records, encode_kept, join_records
from .spans import FileSpan
from .utf8_lines import abbreviate_names, is_utf8, too_long_message


def check_head(input_: InputFile, column: str, keep: Keep = ()) -> None:
    """Raise `ElmoError` for a file that is incomplete, is not Parquet, or lacks the column."""
    with _open(input_) as file:
        _check_column(input_, file, column)
        for name in keep:
            if name not in file.schema_arrow.names:
                raise ElmoError(
                    f"{input_.url}: no column {name!r}, found "
                    f"{abbreviate_names(file.schema_arrow.names)}; set corpus.keep"
                )


def spans(input_: InputFile, index: int, size: int, documents: str) -> list[FileSpan]:
    """Divide a file at its row groups: `start` and `end` of a span are their numbers.

    `index` is the file's number in the corpus. A file of up to `size` bytes of text is one span,
    and so is any with `documents` "blank", where blank lines divide documents.
    """
    with _open(input_) as file:
        groups = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    if documents == "blank" or sum(groups) <= size:
        return [FileSpan(input_, index, 0, -1, sum(groups))]
    return [FileSpan(input_, index, i, i + 1, bytes_) for i, bytes_ in enumerate(groups)]


def blocks(
    span: FileSpan,
    size: int,
    column: str,
    documents: str,
    accounting: Accounting,
    keep: Keep = (),
) -> Iterator[tuple[bytes, Records]]:
    """Yield the texts of a span's rows in blocks, with the number of every line's row.

    The texts are those of `column`. A block is UTF-8 of about `size` bytes or 1 MiB, the larger,
    each line ended by a newline; rows count from 0 in the span. The bytes of the texts, and the
    newlines that are added, are counted in `accounting`. `keep` names the columns that are kept.
    `documents` has no effect here.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    first_row = 0
    with _open(span.input) as file:
        groups = list(range(span.start, file.num_row_groups if span.end < 0 else span.end))
        _check_column(span.input, file, column)
        rows = _rows_at_a_time(file, groups, size)
        batches = file.iter_batches(batch_size=rows, row_groups=groups, columns=[column, *keep])
        while True:
            with catch_read_errors(span.input.url, "damaged"):
                batch = next(batches, None)
                if batch is None:
                    break
                values = batch.column(_path(file.schema_arrow, column)[0])
                for name in _path(file.schema_arrow, column)[1:]:
                    values = pc.struct_field(values, name)
                values = values.cast(pa.large_binary())
            longest = pc.max(pc.binary_length(values)).as_py() or 0
            if longest > LONGEST_LINE:
                raise ElmoError(
                    f"{span.input.url}: {too_long_message('a value of its column', longest)}"
                )
            texts = [value or b"" for value in values.to_pylist()]
            for row, text in enumerate(texts):
                if not is_utf8(text):
                    place = f"{span.input.url}: row {first_row + row} of row group {span.start} on"
                    raise ElmoError(f"{place} is not UTF-8; write the column as strings")
            accounting.bytes += sum(map(len, texts))
            accounting.added += len(texts)
            columns = [batch.column(name).to_pylist() for name in keep]
            kept = [encode_kept(keep, values) for values in zip(*columns, strict=True)]
            yield join_records(texts, first_row, kept)
            first_row += len(texts)


def _rows_at_a_time(file: Any, groups: list[int], size: int) -> int:
    """Return how many rows of a Parquet file have about `size` bytes."""
    sizes = [file.metadata.row_group(i) for i in groups]
    rows, bytes_ = sum(g.num_rows for g in sizes), sum(g.total_byte_size for g in sizes)
    return max(1, min(4096, max(size, 1 << 20) * rows // max(1, bytes_)))


def _check_column(input_: InputFile, file: Any, column: str) -> None:
    import pyarrow as pa

    with catch_read_errors(input_.url, "not a whole Parquet file"):
        schema = file.schema_arrow
    names = schema.names
    if names.count(column) > 1:
        raise ElmoError(
            f"{input_.url}: has {names.count(column)} columns {column!r}; rename all but one"
        )
    type_ = pa.struct(list(schema))
    for name in _path(schema, column):
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            raise ElmoError(
                f"{input_.url}: no column {column!r}, found {abbreviate_names(names)}; "
                "set corpus.column"
            )
        type_ = type_.field(name).type
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        raise ElmoError(f"{input_.url}: column {column!r} must hold strings, found {type_}")


def _path(schema: Any, column: str) -> list[str]:
    """The name of a column, or those of the columns that it lies in, `data.text` in `data`."""
    return [column] if column in schema.names else column.split(".")


def _open(input_: InputFile) -> Any:
    """A Parquet file of pyarrow, whose footer is whole."""
    import pyarrow.parquet as pq

    with catch_read_errors(input_.url, "not a whole Parquet file"):
        return pq.ParquetFile(open_input(input_.url))
