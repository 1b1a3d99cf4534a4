"""Batches of texts: a list, or a column in pandas, Polars, Arrow, NumPy or `datasets`."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Any

from elmo.errors import ElmoError

# A list of tokens as Python, JSON or NumPy (without commas) writes it.
_TOKEN = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\.\.\.)"
_PRINTED_LIST = re.compile(
    rf"\[\s*{_TOKEN}(?:[\s,]+{_TOKEN})*[\s,]*\]|\((?:\s*{_TOKEN}\s*,)+\s*(?:{_TOKEN}\s*)?\)",
    re.DOTALL,
)
CHECKED_TEXTS = 100  # of a column or file, to find out whether its texts are printed lists
_MISSING_TYPE_NAMES = ("NAType", "NaTType")  # the types of missing values in pandas


def is_missing(value: Any) -> bool:
    """Tell whether a cell of a table is empty: None, NaN, or pandas' NA."""
    return (
        value is None
        or (isinstance(value, float) and value != value)
        or type(value).__name__ in _MISSING_TYPE_NAMES
    )


def list_texts(batch: Any) -> list[str]:
    """Return a batch of texts as a list; a string is one text, a table has one column of texts.

    Raises `ElmoError`, with its index, for an item that is not text, such as a missing value.
    """
    texts = []
    for index, item in enumerate(list_items(batch)):
        if isinstance(item, Mapping):
            if len(item) != 1:
                names = ", ".join(map(str, item))
                raise ElmoError(
                    f"texts: found a table with the columns {names}; pass one column, such as "
                    f"table[{next(iter(item), 'text')!r}]"
                )
            (item,) = item.values()
        if is_missing(item):
            raise ElmoError(f"text {index}: is missing, found {item!r}; leave it out, or pass ''")
        if not isinstance(item, str):
            hint = "; pass token lists to embed" if isinstance(item, list | tuple) else ""
            raise ElmoError(f"text {index}: must be a string, found {item!r:.60}{hint}")
        texts.append(item)
    check_no_printed_lists(texts, "the texts")
    return texts


def check_no_printed_lists(texts: Iterable[str], source: object) -> None:
    """Raise `ElmoError`, which names `source`, if most of the first texts are lists of tokens
    written as text, such as `['a' 'b']`, which a table has after it was saved as CSV."""
    texts = [text.strip() for text in islice(texts, CHECKED_TEXTS) if text.strip()]
    lists = [text for text in texts if _PRINTED_LIST.fullmatch(text)]
    if 2 * len(lists) > len(texts):
        raise ElmoError(
            f"{source}: has printed lists of tokens, such as {lists[0]!r:.60}, where texts belong; "
            "pass the lists themselves, or write the tokens of each with spaces between them"
        )


def list_items(batch: Any) -> list[Any]:
    """Return a batch as a list with one item for each text. A single string is one item. A table (a
    data frame, an Arrow table, or a dictionary of columns) gives a dictionary for each row. A
    column or any other sequence gives its items.

    Raises `ElmoError`, which says how to pass it, for an ambiguous input.
    """
    if isinstance(batch, str):
        return [batch]
    if isinstance(batch, Mapping):
        return _rows_of_columns(batch)
    if hasattr(batch, "to_pylist"):  # Arrow's arrays and tables
        check_column_names(getattr(batch, "column_names", ()))
        return list(batch.to_pylist())
    if hasattr(batch, "to_dicts"):  # a table of Polars
        return list(batch.to_dicts())
    dimensions = getattr(batch, "ndim", 1)
    if hasattr(batch, "iloc") and dimensions == 2:  # a table of pandas
        check_column_names(batch.columns)
        return list(batch.to_dict(orient="records"))
    if dimensions == 2 and batch.shape[1] == 1:
        batch, dimensions = batch[:, 0], 1
    if dimensions != 1:
        raise ElmoError(
            f"the texts: found an array of shape {tuple(batch.shape)}; pass one dimension, such as "
            "array[:, 0], or a list of token lists"
        )
    if hasattr(batch, "tolist"):
        return list(batch.tolist())
    is_unordered = isinstance(batch, Set) and not isinstance(batch, Sequence)
    if is_unordered or not isinstance(batch, Iterable) or isinstance(batch, bytes | bytearray):
        raise ElmoError(f"the input must be a text, a list or a table, found {batch!r:.80}")
    return list(batch)


def check_column_names(column_names: Iterable[Any]) -> None:
    """Raise `ElmoError` unless the names of a table's columns are distinct."""
    names = [str(name) for name in column_names]
    if len(set(names)) < len(names):
        raise ElmoError(f"column names must be distinct, found {', '.join(names)}")


def _rows_of_columns(columns: Mapping[Any, Any]) -> list[dict[Any, Any]]:
    lists = {}
    for name, column in columns.items():
        if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__"):
            raise ElmoError(f"the column {name} must be a list, found {column!r:.80}")
        lists[name] = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    if len(set(map(len, lists.values()))) > 1:
        counts = ", ".join(f"{name} {len(column)}" for name, column in lists.items())
        raise ElmoError(f"the columns must have the same number of rows, found {counts}")
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
