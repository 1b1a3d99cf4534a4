"""Docstrings: their prose is kept, unwrapped, in the order of the source; the rest is counted."""

import ast
from inspect import cleandoc

from pipeline.text.docstrings import docstrings, plain_paragraphs

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


def test_prose_is_unwrapped_and_what_is_no_prose_is_left_out() -> None:
    assert plain_paragraphs(cleandoc(DOCSTRING)) == [
        "Return the mean of values, which must not be empty.",
        "The mean is math.fsum divided by the number of values:",
        "Prose goes on after the code as before.",
        "The numbers to take the mean of, in any order.",
        "This is a note of the kind that stays.",
        "the first point is one paragraph of its own",
        "and the second point is another",
    ]


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
