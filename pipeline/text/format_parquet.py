"""The Parquet format: the text is one column of strings."""

from collections.abc import Iterator
from typing import Any

from elmo.errors import ElmoError
from elmo.settings import MAX_LINE_BYTES

from ..terminal.failures import catch_read_errors
from .accounting import Accounting
from .input_files import InputFile, open_input
from .reader import ReadOptions, Records, encode_kept, join_records, split_column
from .spans import FileSpan
from .utf8_lines import abbreviate_names, find_non_utf8, too_long_message


def check_head(input_: InputFile, options: ReadOptions) -> None:
    """Raise `ElmoError` for a file that is incomplete, is not Parquet, or lacks the column."""
    with _open_parquet(input_) as file:
        _text_columns(input_, file, options.column)
        for name in options.keep:
            _find_type(input_, file.schema_arrow, name, "keep")


def spans(input_: InputFile, file_number: int, size: int, document_rule: str) -> list[FileSpan]:
    """Divide a file into row groups: `start` and `stop` of a span are their numbers.

    `file_number` is its number in the corpus. A file with up to `size` bytes of text is one span.
    `document_rule` has no effect in this format.
    """
    with _open_parquet(input_) as file:
        sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    if sum(sizes) <= size:
        return [FileSpan(input_, file_number, 0, -1, sum(sizes))]
    return [FileSpan(input_, file_number, i, i + 1, bytes_) for i, bytes_ in enumerate(sizes)]


def blocks(
    span: FileSpan, options: ReadOptions, accounting: Accounting
) -> Iterator[tuple[bytes, Records]]:
    """Yield the texts of a span's rows in blocks of 1 MiB or more, as `Reader.blocks` says.

    The bytes of a file are those of its texts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    first_row, keep = 0, options.keep
    with _open_parquet(span.input) as file:
        group_indices = list(range(span.start, file.num_row_groups if span.stop < 0 else span.stop))
        names = _text_columns(span.input, file, options.column)
        groups = [file.metadata.row_group(number) for number in group_indices]
        row_count, size = sum(g.num_rows for g in groups), sum(g.total_byte_size for g in groups)
        batch_rows = max(1, min(4096, max(options.size, 1 << 20) * row_count // max(1, size)))
        batches = file.iter_batches(
            batch_size=batch_rows, row_groups=group_indices, columns=[*names, *keep]
        )
        while True:
            with catch_read_errors(span.input.url, "damaged"):
                batch = next(batches, None)
                if batch is None:
                    break
                columns = [_read_column(batch, name).cast(pa.large_binary()) for name in names]
            max_bytes = max(pc.max(pc.binary_length(values)).as_py() or 0 for values in columns)
            if max_bytes > MAX_LINE_BYTES:
                raise ElmoError(
                    f"{span.input.url}: {too_long_message('a value of its column', max_bytes)}"
                )
            texts_by_row = [
                [*filter(None, row_texts)]
                for row_texts in zip(*(c.to_pylist() for c in columns), strict=True)
            ]
            texts = [b"\n".join(row_texts) for row_texts in texts_by_row]
            for row, text in enumerate(texts):
                if find_non_utf8(text) is not None or 0 in text:
                    source = f"{span.input.url}: row {first_row + row} of row group {span.start} on"
                    raise ElmoError(f"{source} is not UTF-8 or has a zero byte; correct this text")
            added_newlines = sum(max(len(row_texts), 1) for row_texts in texts_by_row)
            accounting.bytes += sum(map(len, texts)) + len(texts) - added_newlines
            accounting.added_newlines += added_newlines
            kept_columns = [_read_column(batch, name).to_pylist() for name in keep]
            kept_json = [encode_kept(keep, values) for values in zip(*kept_columns, strict=True)]
            yield join_records(texts, first_row, kept_json)
            first_row += len(texts)


def _read_column(batch: Any, column: str) -> Any:
    """Return the values of a column of a batch; `data.text` is field `text` of column `data`."""
    import pyarrow.compute as pc

    name, *inner_names = _split_path(batch.schema, column)
    values = batch.column(name)
    for inner_name in inner_names:
        values = pc.struct_field(values, inner_name)
    return values


def _text_columns(input_: InputFile, file: Any, column: str) -> list[str]:
    """Return the names of the text columns; raise `ElmoError` if one does not hold strings."""
    import pyarrow as pa

    with catch_read_errors(input_.url, "not a complete Parquet file"):
        schema = file.schema_arrow
    names = split_column(column, schema.names)
    for name in names:
        type_ = _find_type(input_, schema, name)
        type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
        if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            raise ElmoError(
                f"{input_.url}: column {name!r} must hold strings, found {type_}; set corpus.column"
            )
    return names


def _find_type(input_: InputFile, schema: Any, column: str, setting: str = "column") -> Any:
    """Return the type of a column or, for `data.text`, of a field in it.

    Raises `ElmoError`, which names the `setting`, if the column is missing.
    """
    import pyarrow as pa

    if schema.names.count(column) > 1:
        raise ElmoError(
            f"{input_.url}: has {schema.names.count(column)} columns {column!r}; rename all but one"
        )
    type_ = pa.struct(list(schema))
    for name in _split_path(schema, column):
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            raise ElmoError(
                f"{input_.url}: no column {column!r}, found {abbreviate_names(schema.names)}; "
                f"set corpus.{setting}"
            )
        type_ = type_.field(name).type
    return type_


def _split_path(schema: Any, column: str) -> list[str]:
    """Return the path of a column: its name alone or, for `data.text`, `data` and `text`."""
    return [column] if column in schema.names else column.split(".")


def _open_parquet(input_: InputFile) -> Any:
    """Open a Parquet file; raise `ElmoError` if its footer is missing or damaged."""
    import pyarrow.parquet as pq

    with catch_read_errors(input_.url, "not a complete Parquet file"):
        return pq.ParquetFile(open_input(input_.url))
