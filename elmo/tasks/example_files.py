"""Read labelled files of the usual formats as examples; docs/tasks.md shows each format.

`read_examples` picks the reader in `formats` that fits a file. A reader counts what it reads and
drops; the error for a malformed line names its file and line number. Files may be gzipped.
`columns` maps each field to a column or to a key of JSON lines. A column is given by its number
from 1 or its name in the header; in CoNLL-U, by a name such as XPOS, or MISC.NER for a key in MISC.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from elmo.data.texts import check_no_printed_lists, is_missing
from elmo.data.tokenizer import NOT_TEXT_MESSAGE, Tokenization, is_text
from elmo.errors import ElmoError
from elmo.io.text_files import COMPRESSIONS
from elmo.settings import check_instance
from elmo.tasks import schemes
from elmo.tasks.formats.fields import Columns, ExampleSet, ReadRequest, TextSplitter
from elmo.tasks.kinds import KINDS, MakeRecord, find_kind

SKELETON_WORD = "[WORD]"  # replaces words that may not be redistributed, as in OntoNotes
FORMAT_BY_SUFFIX = {
    ".conll": "conll",
    ".iob2": "conll",
    ".bio": "conll",
    ".gold_conll": "conll",
    ".v4_gold_conll": "conll",
    ".auto_conll": "conll",
    ".v4_auto_conll": "conll",
    ".props": "conll",
    ".conllu": "conllu",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "json",
    ".txt": "text",
}


def read_examples(
    kind: str,
    path: Path | str,
    *,
    format: str | None = None,
    columns: Columns | None = None,
    scheme: str | None = None,
    tokenizer: str | Tokenization = "unicode",
    labelled: bool = True,
) -> ExampleSet:
    """Read the examples of a kind of task, a key of `KINDS`, from a file, or from all files below
    a folder in name order.

    The file's extension determines the format unless `format` is given. `columns` maps fields to
    columns or keys. `scheme` is the tags' scheme; by default it is detected. `tokenizer`, a name or
    a model's `Tokenization`, splits raw text. With `labelled=False`, labels may be absent. Raises
    `ElmoError` for a malformed line or a file without examples.
    """
    path, task_kind = Path(path), find_kind(kind)
    check_instance("columns", columns or {}, Mapping)
    if path.is_dir():
        read = partial(read_examples, kind, format=format, columns=columns, scheme=scheme)
        files = list_files(path)
        example_sets = [read(file, tokenizer=tokenizer, labelled=labelled) for file in files]
        return _join_example_sets(path, example_sets)
    readers, fields = task_kind.readers, task_kind.fields
    file_format = format or detect_format(path)
    if file_format not in readers:
        raise ElmoError(
            f"{path}: {kind} is read from {', '.join(readers)}, not from {file_format}; write "
            "it as one of these, or pass --format if its extension is wrong"
        )
    for name in columns or {}:
        if name not in fields:
            raise ElmoError(f"--columns: {kind} has no {name!r}; it has {', '.join(fields)}")
    if scheme not in (None, *schemes.SCHEMES):
        raise ElmoError(f"--scheme must be one of {', '.join(schemes.SCHEMES)}, found {scheme!r}")
    defaults = {"word": "2", "tag": "3"} if ".iob2" in path.suffixes else {}
    request = ReadRequest(
        path,
        file_format,
        {**defaults, **(columns or {})},
        scheme,
        TextSplitter(tokenizer),
        labelled,
    )
    example_set = readers[file_format](request)
    if not example_set.examples:
        remarks = [f"{name.replace('_', ' ')} {n:,}" for name, n in example_set.counts.items() if n]
        counts = f"; counted: {', '.join(remarks)}" if remarks else ""
        raise ElmoError(f"{path}: holds no examples of {kind}{counts}; name a file that does")
    _check_tokens(request, example_set)
    return replace(example_set, columns=dict(columns or {}))


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, except hidden ones, sorted by path."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(
        file
        for file in files
        if not any(name.startswith(".") for name in file.relative_to(folder).parts)
    )


def make_examples(
    kind: str,
    items: Sequence[Any],
    *,
    tokenizer: str | Tokenization,
    columns: Columns | None = None,
) -> ExampleSet:
    """Make unlabelled examples of a kind of task from texts, token lists, or records with the
    fields of JSON lines. `columns` maps fields to keys of the records; `tokenizer`, a name or a
    model's `Tokenization`, splits the texts.

    The `source` of an example, for error messages, is `item:k`, where k counts from 0.
    """
    split = TextSplitter(tokenizer)
    make_record = KINDS[kind].make_record
    for k, item in enumerate(items):
        if not all(map(is_text, _find_strings(item))):
            raise ElmoError(f"item:{k}: {NOT_TEXT_MESSAGE}")
    records = [_to_record(item, k, split, make_record) for k, item in enumerate(items)]
    request = ReadRequest(
        Path("item"), "jsonl", columns or {}, None, split, labelled=False, items=records
    )
    example_set = KINDS[kind].readers["jsonl"](request)
    _check_tokens(request, example_set)
    return example_set


def _to_record(
    item: Any, index: int, split: TextSplitter, make_record: MakeRecord
) -> dict[str, Any]:
    """Return an item as a record: `make_record` converts a text; a list becomes `tokens`."""
    if isinstance(item, str):
        return make_record(item, split)
    if isinstance(item, Mapping):
        cells = {name: _plain_value(value) for name, value in item.items()}
        return {name: value for name, value in cells.items() if value is not None}
    if hasattr(item, "tolist"):
        item = item.tolist()
    if is_missing(item):
        raise ElmoError(f"item:{index}: is missing, found {item!r}; leave it out, or pass ''")
    if not isinstance(item, list | tuple):
        raise ElmoError(f"item:{index}: must be a text, tokens or a record, found {item!r:.80}")
    return {"tokens": list(item)}


def _find_strings(item: Any) -> Iterator[str]:
    """Yield all strings in an item, however deeply nested."""
    if hasattr(item, "tolist"):
        item = item.tolist()
    if isinstance(item, str):
        yield item
    elif isinstance(item, Mapping | list | tuple):
        for part in item.values() if isinstance(item, Mapping) else item:
            yield from _find_strings(part)


def _plain_value(value: Any) -> Any:
    """Return a table cell as a JSON value: a list instead of an array, None if it is empty."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain_value(cell) for cell in value]
    return None if is_missing(value) else value


def _check_tokens(request: ReadRequest, example_set: ExampleSet) -> None:
    """Raise `ElmoError` for empty tokens, for printed lists as texts, and for a corpus whose words
    are left out."""
    check_no_printed_lists(request.split.first_texts, request.path)
    tokens = Counter(token for e in example_set.examples for s in e.sentences for token in s)
    if 2 * tokens[SKELETON_WORD] > tokens.total():
        raise ElmoError(
            f"{request.path}: is a skeleton: its words are {SKELETON_WORD}; insert the words of "
            "its corpus with the script that comes with the file"
        )
    for example in example_set.examples:
        for sentence in example.sentences:
            if "" in sentence:
                location = f"{example.source}: token {sentence.index('') + 1} of its sentence"
                raise ElmoError(f"{location} is empty; leave it out")


def _join_example_sets(path: Path, example_sets: Sequence[ExampleSet]) -> ExampleSet:
    """Return the examples of several files as one."""
    if not example_sets:
        raise ElmoError(f"{path}: holds no files; name another folder, or a file")
    if len({example_set.scheme == "plain" for example_set in example_sets}) > 1:
        raise ElmoError(
            f"{path}: only some files have tags that mark spans; use one scheme for all files"
        )
    counts: Counter[str] = Counter()
    for example_set in example_sets:
        counts.update(example_set.counts)
    examples = [example for example_set in example_sets for example in example_set.examples]
    remark = next((example_set.remark for example_set in example_sets if example_set.remark), "")
    return ExampleSet(
        examples, dict(counts), example_sets[0].scheme, remark, example_sets[0].columns
    )


def detect_format(path: Path) -> str:
    """Return the format for a file's extension; raise `ElmoError` if it has none."""
    suffix = [s.lower() for s in path.suffixes if s.lower() not in COMPRESSIONS][-1:]
    if not suffix or suffix[0] not in FORMAT_BY_SUFFIX:
        formats = ", ".join(dict.fromkeys(FORMAT_BY_SUFFIX.values()))
        raise ElmoError(
            f"{path}: the extension shows none of {formats}; convert the file, or pass --format"
        )
    return FORMAT_BY_SUFFIX[suffix[0]]
