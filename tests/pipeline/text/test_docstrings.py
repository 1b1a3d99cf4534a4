"""Docstrings: their prose is kept, unwrapped, in the order of the source; the rest is counted."""

import ast
from inspect import cleandoc

from pipeline.text.docstrings import SAMPLES, LeftOut, docstrings, plain_paragraphs

DOCSTRING = """Return the mean of `values`, which must not be empty.

    Notes
    -----
    The mean is :func:`~math.fsum` divided
    by the *number* of values::

        code(that) is dropped

    Prose goes on after the code [1]_ as before.

    Parameters
    ----------
    values : iterable
        The numbers to take the mean of,
        in any order.

    .. math:: x = y

        of which nothing is kept

    .. note:: This is a note of the kind that stays.

    - the first point is one
      paragraph of its own
    - and the second point is another

    >>> mean([1, 2])
    1.5

    ====  ====
    a     b
    ====  ====
    """


def test_prose_is_unwrapped_and_what_is_no_prose_is_counted() -> None:
    dropped = LeftOut()
    assert plain_paragraphs(cleandoc(DOCSTRING), dropped) == [
        "Return the mean of values, which must not be empty.",
        "The mean is math.fsum divided by the number of values:",
        "Prose goes on after the code as before.",
        "The numbers to take the mean of, in any order.",
        "This is a note of the kind that stays.",
        "the first point is one paragraph of its own",
        "and the second point is another",
    ]
    assert dropped.counts == {
        "code": 2,
        "heading": 2,
        "not prose": 1,
        "directive": 1,
        "doctest": 1,
        "table": 1,
    }
    assert {reason: set(lines) for reason, lines in dropped.samples().items()} == {
        "code": {"code(that) is dropped", "of which nothing is kept"},
        "heading": {"Notes", "Parameters"},
        "not prose": {"values : iterable"},
        "directive": {".. math:: x = y"},
        "doctest": {">>> mean([1, 2]) 1.5"},
        "table": {"==== ==== a b ==== ===="},
    }


def test_samples_of_what_is_left_out_are_few_and_the_same_in_any_order() -> None:
    texts = [f"x{k} = {k}" for k in range(50)] + ["half a pair \ud800 " + "y" * 200]
    there, back = LeftOut(), LeftOut()
    for text in texts:
        there.add("code", text)
    for text in reversed(texts):
        back.add("code", text)
    assert there.samples() == back.samples()
    assert len(there.samples()["code"]) == SAMPLES < there.counts["code"] == len(texts)
    long = LeftOut()
    long.add("table", texts[-1])
    (line,) = long.samples()["table"]
    assert len(line) == 160 and line.startswith("half a pair ? yyy") and line.endswith("y…")


def test_docstrings_come_in_the_order_of_the_source() -> None:
    source = (
        '"""One."""\nclass A:\n    """Two."""\n    def f(self):\n        """Three."""\n'
        'if True:\n    async def g():\n        """Four."""\ndef h():\n    x = """not one"""\n'
    )
    assert list(docstrings(source)) == ["One.", "Two.", "Three.", "Four."]
    every = [
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert {text for text in every if text} == set(docstrings(source))
