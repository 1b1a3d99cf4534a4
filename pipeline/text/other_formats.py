"""Files that are not plain text, recognized by their content, with the tool that converts each."""

import re

from elmo.errors import ElmoError

_RECORDS_REMEDY = "rename it to end in .jsonl and name the text field with corpus.column"
_TABLE_REMEDY = "rename it to end in .tsv or .csv and name the text column with corpus.column"
MARKUP = "extract its text: trafilatura --input-dir IN --output-dir OUT (Wikipedia: wikiextractor)"
_PANDOC_REMEDY = "convert it to text: pandoc --to plain"
_MAX_CHECKED_LINES = 200
_MAX_CHECKED_CHARACTERS = 1 << 14

# The first bytes of a file, its kind, and the remedy.
_SIGNATURES = (
    (rb"%PDF-", "a PDF file", "extract its text: pdftotext"),
    (rb"\{\\rtf|\xd0\xcf\x11\xe0", "a word processor file", "save it as text"),
    (rb"%!PS", "a PostScript file", "extract its text: ps2ascii"),
    (rb"PK\x03\x04", "an archive or an office document", "unpack it, or save it as text"),
    (rb"(?s).{257}ustar", "a tar archive", "unpack it"),
    (rb"\x1f\x8b", "compressed with gzip", "unpack it, or rename it to end in .gz"),
    (rb"BZh[1-9]1AY", "compressed with bzip2", "unpack it, or rename it to end in .bz2"),
    (rb"\xfd7zXZ\x00", "compressed with xz", "unpack it, or rename it to end in .xz"),
    (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it, or rename it to end in .zst"),
    (rb"PAR1[\x00-\x1f]", "a Parquet file", "rename it to end in .parquet"),
    (rb"ARROW1|Obj\x01|ORC[\0-\x1f]|\x89HDF|SQLite f", "a file of tabular data", "save it as CSV"),
    (rb"\x89PNG|GIF8\da|\xff\xd8\xff|RIFF[^\0]*\0", "a binary file", "name text files"),
    (rb"II\*\x00|MM\x00\*|\x7fELF", "a binary file", "name text files"),
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", "UTF-32", "save it as UTF-8: iconv -f UTF-32 -t UTF-8"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    (rb"[^\r\n]*\r[^\n]+\Z", "text with the line ends of old Macs", r"convert them: tr '\r' '\n'"),
)
# A JSON array of arrays or strings after its [; not [[a link]] or ["Yes", he said].
_JSON_ARRAY = r"\[\s*([\"\[\{\]]|-?\d[\d.]*\s*,)|\"[^\n\"]*\"\s*(,\s*[\"\[\{\dn]|\]\s*(\[|\Z))"
# The beginning of a text after white space, its kind, and the remedy.
_BEGINNINGS = (
    (rf"\[\s*(\{{\s*[\"\}}]|{_JSON_ARRAY})", "a JSON array", "convert it: jq -c '.[]'"),
    (r"\{[^\n]*\}\s*\n\s*\{\s*\"", "JSON lines", _RECORDS_REMEDY),
    (r"\{\s*\"[^\"\n]*\"\s*:", "JSON", f"convert it (jq -c .), {_RECORDS_REMEDY}"),
    (r"(<!--.*?-->\s*)*<(!doctype|html|head|body|\?xml|mediawiki|tei|svg|rss)\b", "", MARKUP),
    (r"(%[^\n]*\s+)*\\(documentclass|documentstyle|begin\{|usepackage)", "TeX", _PANDOC_REMEDY),
    (r"@(article|book|inproceedings|misc|string|phdthesis)\s*\{", "BibTeX", "name text files"),
    (r"From \S+ +(mon|tue|wed|thu|fri|sat|sun) ", "a mailbox", "extract the message texts"),
    (r"(return-path|received|message-id|mime-version):\s", "an email", "extract its text"),
    (r"WEBVTT|1\r?\n\d\d:\d\d:\d\d[,.]\d{3} --> ", "subtitles", "remove the numbers and times"),
    (r"#!\s*/", "a program", "name text files"),
)
# A pattern of lines, the share of matching lines above which a text is of this kind, the kind, and
# the remedy.
_HTML_TAG = r"</(?!s>)[a-z]|<(p|br|div|span|li|ul|tr|td|table|h\d)\b[^<>]*>|<\w+\s+[\w:-]+="
_TIMESTAMP = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d/\w{3}/\d{4}[: ]|\w{3} [ \d]\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d"
)
_LINE_PATTERNS = (
    (r"\s*\{.*\}\s*,?\s*$", 0.5, "JSON lines", _RECORDS_REMEDY),
    (rf".*?({_HTML_TAG})|\s*<!--", 0.5, "", MARKUP),
    (r"\s*(\\[a-z]+\*?[\{\[]|\\item\b|%)", 0.3, "TeX", _PANDOC_REMEDY),
    (r"(msgid|msgstr|#[:,.]) ", 0.5, "a PO file of translations", "extract its texts"),
    (rf"[\[(<]?({_TIMESTAMP})|\d+\.\d+\.\d+\.\d+ \S+ \S+ \[", 0.5, "a log", "remove its times"),
    (r"\d+\t[^\t]*$", 0.8, "a table", _TABLE_REMEDY),
    (r"\s*\"[^\"]*\"(,(\"[^\"]*\"|[\d.]*))+\s*$", 0.8, "a table", _TABLE_REMEDY),
    (r"\S+( \S+){0,3} ([BIESLU][-_]\S+|O)\s*$", 0.8, "a labelled file", "it is for `elmo task`"),
)


def check_plain_text(name: object, head: bytes, option: str = "corpus.column") -> None:
    """Raise `ElmoError` if the first bytes of a file show that it is not plain text.

    `option` is the setting that names the text column, for the remedy.
    """
    if (recognized := recognize_format(head)) is not None:
        kind, remedy = recognized
        remedy = remedy.replace("corpus.column", option)
        raise ElmoError(f"{name}: is {kind}, not plain text; {remedy}")


def recognize_format(head: bytes) -> tuple[str, str] | None:
    """Return the kind of a file, by its first bytes, and the remedy; None for plain text."""
    for signature, kind, remedy in _SIGNATURES:
        if re.match(signature, head):
            return kind, remedy
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    for beginning, kind, remedy in _BEGINNINGS:
        if re.match(beginning, text[:_MAX_CHECKED_CHARACTERS], re.IGNORECASE | re.DOTALL):
            return kind or "HTML or XML", remedy
    lines = [line for line in text.split("\n")[:_MAX_CHECKED_LINES] if line.strip()]
    for line_pattern, share, kind, remedy in _LINE_PATTERNS:
        pattern = re.compile(line_pattern, re.IGNORECASE if not kind else 0)
        if sum(bool(pattern.match(line[:2000])) for line in lines) > share * max(len(lines), 2):
            return kind or "HTML or XML", remedy
    return ("a table, such as CoNLL-U", _TABLE_REMEDY) if _is_table(lines) else None


def _is_table(lines: list[str]) -> bool:
    """Tell whether most lines have the same number of tabs, two or more."""
    counts = [line.count("\t") for line in lines if not line.startswith("#")]
    mode = max(set(counts), key=counts.count, default=0)
    return mode > 1 and len(counts) > 2 and counts.count(mode) > 0.7 * len(counts)
