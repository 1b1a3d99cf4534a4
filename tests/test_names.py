"""The number of names that are a bare participle, adjective or pronoun, which may only fall.

A function is called after what it does or returns, a variable after what it holds.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = frozenset(
    """
    about added after again alike all allowed alone also apart arrived asked asks at bare before
    begun below beside beyond both by came cased changed checked chosen compared copied counted
    covered described done drawn dropped due each earlier enough every filled first found given
    got has heard held here how inside into judge known lacking last later launched least like
    listed loaded looked lost made many mapped marked meant measured mine missing more most
    moved named narrowed near needed new next now of old once one ones only opened other others
    ours own packed prepared present put ran reached ready real registered rest said same saved
    seen sent shifted shown signed simple since some stale stored taken tells that
    theirs there these this those told tuned twice under unnamed unordered unread
    unreadable unsent until untrained used useless usual wanted was what when where whether
    which who whole whose why within without written wrong
    """.split()
)
MOST_BARE_NAMES = {"elmo": 20, "pipeline": 3, "research": 0, "benchmarks": 0}


def bare_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name of a function, argument, variable or attribute that is a word of the list.

    A binding counts once each time; underscores around a name and its suffix of axes (`kept_BT`)
    do not count.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        if not name.startswith("__") and re.sub(r"_[A-Z0-9]+$", "", name).strip("_") in WORDS:
            yield name


@pytest.mark.parametrize("package", MOST_BARE_NAMES)
def test_a_package_has_no_more_bare_names_than_before(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    count = sum(1 for file in files for _ in bare_names(ast.parse(file.read_text("utf-8"))))
    assert count <= MOST_BARE_NAMES[package], "name the thing, or see CONTRIBUTING.md"
