"""Prose from Python's docstrings, without code, tables and markup."""

import ast
import os
import re
import warnings
from collections.abc import Iterator
from importlib import util
from inspect import cleandoc
from pathlib import Path

from elmo.errors import ElmoError

_BULLET = re.compile(r"(?:[-*+•]|\(?\d+[.)]|\[\d+\])\s+")
_DIRECTIVE = re.compile(r"\.\. (?:\[|_|[\w-]+::)")
_KEPT_DIRECTIVE = re.compile(r"\.\. (?:note|warning|seealso|deprecated|version\w+|tip|important)::")
_CODE = re.compile(
    r"(?:if|elif|else|for|while|with|async|def|class|import|from|try|return|raise|print|del|yield)\b"
    r"(?!.*[.?!]$)|[\w*., ]+ : "
)
_RULE = re.compile(r"[-=~*^+|#_\s]+")
_MARKUP = [
    (re.compile(r":[\w:.+-]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"`([^`<]*?)\s*<[^`>]*>`_*"), r"\1"),
    (re.compile(r"``([^`]*)``|`([^`]*)`_?"), r"\1\2"),
    (re.compile(r"(?<!\w)\*\*?(\w[^*]*)\*\*?(?!\w)"), r"\1"),
    (re.compile(r"\s*\[[\w\s]+\]_"), ""),
]
_WORD = re.compile(r"[(\"'“]*[A-Za-z][a-z]*(?:[-'’][a-z]+)*[\"'”)]*[.,;:!?]*[)\"'”]*")
_COMMON_WORDS = frozenset(
    "the a an is are be of to and or in on for if not with as by this that it from which return "
    "returns at can use used will when all has have its into was were no".split()
)


def plain_paragraphs(text: str) -> list[str]:
    """Return the English paragraphs of a docstring or reference page, without markup.

    Each is one line. Doctests, code after `::`, directives, headings, and text that is not English
    prose (grammar, tables, signatures) are left out.
    """
    return [_strip_markup(paragraph) for paragraph in marked_up_paragraphs(text)]


def marked_up_paragraphs(text: str) -> Iterator[str]:
    """Yield the same paragraphs as `plain_paragraphs`, with their reStructuredText markup."""
    skipped_indent = -1
    for indent, lines in _indented_blocks(text):
        if skipped_indent >= 0 and indent > skipped_indent:
            continue
        skipped_indent = -1
        if len(lines) > 1 and _RULE.fullmatch(lines[1]):
            lines = lines[2:]
        if not lines:
            continue
        first_line, joined_lines = lines[0], " ".join(lines)
        if any(line.startswith((">>>", "...")) for line in lines):
            continue
        if _DIRECTIVE.match(first_line) and not _KEPT_DIRECTIVE.match(first_line):
            skipped_indent = indent
        elif not _RULE.fullmatch(first_line):
            paragraph = _KEPT_DIRECTIVE.sub("", joined_lines, count=1)
            if _strip_markup(paragraph).endswith("::"):
                skipped_indent, paragraph = indent, paragraph.rstrip()[:-1]
            if _is_prose(_strip_markup(paragraph)):
                yield paragraph


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings in a module's source, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node, clean=False):
                yield cleandoc(docstring)
        for statements in ("finalbody", "orelse", "handlers", "body"):
            nodes.extend(reversed(getattr(node, statements, [])))


def package_docstrings(name: str, *, setting: str) -> Iterator[str]:
    """Yield the docstrings of an installed package.

    Raises `ElmoError`, which names the `setting`, if the package is not installed.
    """
    try:
        spec = util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ElmoError(
            f"{setting}: no installed package {name!r}; install it or name your own files"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    return folder_docstrings(folder, {"tests", "test", "__pycache__"})


def folder_docstrings(folder: Path, excluded_names: set[str]) -> Iterator[str]:
    """Yield the docstrings of all modules below a folder, in the order of the modules' names.

    Folders and files with names in `excluded_names` are left out.
    """
    files: list[Path] = []
    for directory, folders, names in os.walk(folder):
        folders[:] = set(folders) - excluded_names  # the others are not entered
        files += [
            Path(directory, name) for name in set(names) - excluded_names if name.endswith(".py")
        ]
    for path in sorted(files, key=lambda path: path.relative_to(folder).parts):
        try:
            yield from docstrings(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates and files in other encodings, not modules


def _indented_blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield blocks of lines, each with its indentation; a blank line, a new indentation or a bullet
    begins a new block."""
    lines: list[str] = []
    indent, hanging_indent = 0, -1
    for raw_line in [*text.expandtabs().split("\n"), ""]:
        line = raw_line.strip()
        line_indent = len(raw_line) - len(raw_line.lstrip())
        bullet = _BULLET.match(line)
        is_continued = lines and not bullet and line_indent in (indent, hanging_indent)
        if lines and (not line or not is_continued):
            yield indent, lines
            lines = []
        if not line:
            continue
        if not lines:
            indent = line_indent
            hanging_indent = line_indent + bullet.end() if bullet else -1
            line = line[bullet.end() :] if bullet else line
        lines.append(line)


def _strip_markup(paragraph: str) -> str:
    """Return a paragraph without inline markup."""
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.split())


def _is_prose(paragraph: str) -> bool:
    """Tell whether a paragraph is English prose: most words are plain, and one is very common."""
    words = paragraph.split()
    count = sum(_WORD.fullmatch(word) is not None for word in words)
    has_common = any(word.lower().strip(".,;:()") in _COMMON_WORDS for word in words)
    return (
        len(words) >= 4 and has_common and count >= 0.6 * len(words) and not _CODE.match(paragraph)
    )
