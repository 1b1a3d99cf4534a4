"""Tensors wear their shape: each letter of a suffix is explained in the docstring of its file."""

import ast
import re
from pathlib import Path

import pytest

ELMO = Path(__file__).parents[2] / "elmo"
FILES = sorted(ELMO.rglob("*.py"))
SUFFIX = re.compile(r"[a-z][a-z0-9_]*_(n|[A-Zn0-9]*[A-Z][A-Zn0-9]*)\Z")


def suffixes(tree: ast.AST) -> dict[str, str]:
    """The shape suffix of each name that has one: `x_NP` → NP."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name: match[1] for name in names if (match := SUFFIX.match(name))}


def undeclared(source: str) -> list[str]:
    """Names with a letter in their suffix that the docstring's `Shapes:` does not explain."""
    tree = ast.parse(source)
    shapes = (ast.get_docstring(tree) or "").partition("Shapes:")[2]
    declared = set(re.findall(r"\b([A-Za-z])\b", shapes))
    return sorted(
        name
        for name, suffix in suffixes(tree).items()
        if not set(re.sub(r"\d", "", suffix)) <= declared
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ELMO)))
def test_each_letter_of_a_shape_is_declared_in_the_head_of_its_file(path: Path) -> None:
    assert undeclared(path.read_text(encoding="utf-8")) == []


def test_an_undeclared_letter_is_seen() -> None:
    source = '"""Shapes: N tokens."""\nx_NP = y_NQ = z_N = CONSTANT_N = 0\nself.w_N4 = h_n = 1\n'
    assert undeclared(source) == ["h_n", "x_NP", "y_NQ"]
