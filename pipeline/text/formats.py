"""The formats of input files, with a record of each, and how a file may be compressed.

A new format needs a module `format_NAME.py` with a `Reader`, and a record in `FORMATS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from elmo.errors import ElmoError


@dataclass(frozen=True)
class Format:
    """A file format, chosen by a file's extension, one of `endings`.

    `module` is the name of its module in `pipeline.text`, `documents` the meaning of
    `tokenize.documents: auto` for it. If `is_compressed`, each byte of a file holds several bytes
    of text.
    """

    endings: tuple[str, ...]
    module: str
    documents: Literal["blank", "line"]
    is_compressed: bool = False


FORMATS: Mapping[str, Format] = {
    "text": Format((".txt", ".text", ".md", ".rst"), "format_plain_text", "blank"),
    "jsonl": Format((".jsonl", ".ndjson"), "format_json_lines", "line"),
    "csv": Format((".csv",), "format_csv", "line"),
    "tsv": Format((".tsv",), "format_csv", "line"),
    "parquet": Format((".parquet",), "format_parquet", "line", is_compressed=True),
}
BY_ENDING = {ending: name for name, format_ in FORMATS.items() for ending in format_.endings}


def resolve_document_rule(documents: str, format_: str) -> str:
    """Return what a document is in a file of this format: `file`, `line` or `blank`.

    `documents` is the setting of `tokenize`, `format_` a name in `FORMATS`. `auto` becomes the rule
    of the format: text between blank lines (`blank`) in plain text, otherwise a record (`line`).
    Raises `ElmoError` if `blank` is set for a format with records.
    """
    if documents == "blank" and FORMATS[format_].documents != "blank":
        raise ElmoError(
            f"params.yaml: tokenize.documents: blank is for plain text, not for {format_}; set "
            "auto, or line for records"
        )
    return FORMATS[format_].documents if documents == "auto" else documents
