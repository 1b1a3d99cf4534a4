"""The held-out part of a text, and other ways to divide one of few documents.

Which documents are held out follows from their hashes alone (`documents`). Of few of them that may
be none, or the longest: then each line of plain text is taken for a document, or another share is
held out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from elmo.errors import ElmoError

from ..settings.params import TokenizeSettings
from ..terminal.progress import say
from . import accounting
from .documents import document_rule
from .input_files import InputFile
from .shard_builder import PieceResult

_LARGE = 200_000_000  # bytes of a text that is not divided anew
_MANY = 1000  # documents of a text that is not, since of as many some are held out
LEAST_HELD_OUT = 2000  # tokens below which chance moves a perplexity by several per cent


def divide(
    inputs: Sequence[InputFile],
    params: TokenizeSettings,
    run_pieces: Callable[[TokenizeSettings], list[PieceResult]],
    *,
    redivide: bool,
) -> tuple[TokenizeSettings, list[PieceResult]]:
    """Tokenize all pieces so that some documents are held out and most are not.

    `run_pieces(settings)` returns the results of the pieces. Where the share in `params` is not 0
    and holds out no document, or most of the text, other settings are tried and printed if
    `redivide` is set and the text is small; else `ElmoError` is raised. Returns the settings that
    were used, and the results.
    """
    how, results = params, run_pieces(params)
    first = poor = _poorly_divided(inputs, results, how)
    while poor:
        change = _other_division(inputs, results, how, params, poor, redivide=redivide)
        how = replace(how, **change)
        results = run_pieces(how)
        poor = _poorly_divided(inputs, results, how)
    if first:
        changed = [
            f"tokenize.{name} {value}"
            for name in ("documents", "heldout")
            if (value := getattr(how, name)) != getattr(params, name)
        ]
        say(f"{inputs[0].url}: {first}: this text is divided with {' and '.join(changed)}")
    return how, results


def _poorly_divided(
    inputs: Sequence[InputFile], results: Sequence[PieceResult], how: TokenizeSettings
) -> str:
    """Say what is wrong with what is held out; empty if nothing is."""
    total = accounting.sum_accounts(result.accounting for result in results)
    if not total.tokens:
        raise ElmoError(f"{inputs[0].url}: no tokens in this text; it holds white space alone")
    documents = total.train_documents + total.heldout_documents
    of = f"of {documents:,} document{'s' * (documents != 1)}"
    heldout = sum(
        entry.tokens for result in results for entry in result.shards if entry.split == "heldout"
    )
    if not how.heldout:
        return ""
    if not total.heldout_documents:
        return f"{of} none is held out with tokenize.heldout {how.heldout}"
    if not total.train_documents:
        return f"{of} all are held out with tokenize.heldout {how.heldout}"
    if how.heldout <= 0.5 and total.tokens >= LEAST_HELD_OUT and 2 * heldout > total.tokens:
        return f"{of} those held out with tokenize.heldout {how.heldout} have most of the tokens"
    return ""


def _other_division(
    inputs: Sequence[InputFile],
    results: Sequence[PieceResult],
    how: TokenizeSettings,
    given: TokenizeSettings,
    poor: str,
    *,
    redivide: bool,
) -> dict[str, Any]:
    """Return the change of `how` to try next; raise `ElmoError` with what is `poor` if there is
    none, or it is not ours to choose."""
    share = _share(min(one.lowest for one in results), max(one.highest for one in results))
    ways: dict[str, Any] = {}
    if any(document_rule(how.documents, one.format) != "line" for one in inputs):
        ways["documents"] = "line"
    if share is not None and how.heldout == given.heldout:
        ways["heldout"] = share
    documents = sum(r.accounting.train_documents + r.accounting.heldout_documents for r in results)
    small = documents < _MANY and sum(one.bytes for one in inputs) < _LARGE
    for name, value in ways.items() if redivide and small else ():
        if name != "documents" or how.documents == "auto":
            return {name: value}
    asked = " or ".join(f"tokenize.{name} to {value}" for name, value in ways.items())
    raise ElmoError(f"{inputs[0].url}: {poor}; {f'set {asked}' if ways else 'name more text'}")


def _share(lowest: int, highest: int) -> float | None:
    """The shortest decimal, of two digits or more, that puts a document on either side, given the
    extreme hashes."""
    for digits in range(2, 10):
        share = (lowest * 10**digits // 2**64 + 1) / 10**digits
        if share < 1 and lowest < int(share * 2**64) <= highest:
            return share
    return None
