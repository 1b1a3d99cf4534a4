"""Example queries for neighbours, from a new project's own text: for its report."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from elmo.data.tokenizer import TextTokenizer
from elmo.errors import ElmoError
from elmo.store.neighbors import parse_query

from ..text.accounting import Accounting
from ..text.input_files import InputFile
from ..text.pieces import plan_pieces
from ..text.text_blocks import read_blocks

_LINE = 200  # characters of a line that may be an example
_LINES = 2000  # that are looked at
_WORDS = 200  # that are tried, the best first
_EXAMPLES = 3
_FEW = 5  # a token that occurs less often than this has hardly neighbours
_COMMONEST = 0.4  # share of the text that tokens make up which are too common to tell much


def example_queries(
    inputs: Sequence[InputFile], tokenize: TextTokenizer, *, documents: str, column: str
) -> list[str]:
    """Return lines of the text with one token in brackets each, for the report's neighbours.

    `documents` and `column` are the settings of the project. The tokens differ, and have content as
    far as their form and number tell (`_has_content`); those that occur most often come first,
    after them the rare ones, then the commonest of all.
    """
    counts: Counter[str] = Counter()
    prose: list[str] = []
    others: list[str] = []  # where there is no prose
    for line in islice(_lines(inputs, documents, column), _LINES):
        if len(line) > _LINE:
            line = line[:_LINE].rpartition(" ")[0] or line[:_LINE]
        tokens = [token for sentence in tokenize(line) for token in sentence]
        counts.update(tokens)
        if len(tokens) > 3 and line.isprintable() and "[" not in line and "]" not in line:
            (prose if _is_prose(line, tokens) else others).append(line)
    prose.sort(key=lambda line: len(line) > _LINE // 2)  # the shorter ones read better
    commonest = _commonest(counts)
    words = [*filter(_has_content, counts)] or [*filter(str.isalpha, counts)]
    words.sort(key=lambda token: (token in commonest, counts[token] < _FEW, -counts[token]))
    for lines in (prose, others):
        found = (_first_marked(lines, word, tokenize) for word in words[:_WORDS])
        if marked := [*islice(filter(None, found), _EXAMPLES)]:
            return marked
    return []


def _is_prose(line: str, tokens: Sequence[str]) -> bool:
    """Tell whether a line is text of words, and not a row of a table, code or an address."""
    if any(mark in line for mark in ("://", "www.", "|", "`")):
        return False
    return 3 * sum(map(str.isalpha, tokens)) >= 2 * len(tokens)


def _commonest(counts: Counter[str]) -> set[str]:
    """Return the tokens of letters that are the commonest and make up `_COMMONEST` of the text."""
    words = [(word, count) for word, count in counts.most_common() if word.isalpha()]
    left = _COMMONEST * sum(count for _, count in words)
    commonest = set()
    for word, count in words:
        if count < _FEW or (left := left - count) < 0:
            break
        commonest.add(word)
    return commonest


def _has_content(token: str) -> bool:
    """Tell whether a token looks like a word with content, in any language.

    Excluded are English stop words, words of few letters (of one, where letters are syllables),
    and words in hiragana alone, which in Japanese are mostly grammar.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if not token.isalpha() or token.lower() in ENGLISH_STOP_WORDS:
        return False
    if all("\u3041" <= character <= "\u309f" for character in token):
        return False
    return len(token) >= (4 if token.lower() != token.upper() else 2)


def _first_marked(lines: Iterable[str], word: str, tokenize: TextTokenizer) -> str:
    """Return the first line of which a word is a token, with it in brackets; empty if none is.

    Where spaces divide words the token begins one: in Korean that is no ending and no particle.
    """
    unspaced = re.match("[\u3040-\u30ff\u3400-\u9fff]", word)
    begins = re.compile(word if unspaced else rf"(?<!\S){word}")
    for line in lines:
        if (found := begins.search(line)) is not None:
            candidate = f"{line[: found.start()]}[{word}]{line[found.end() :]}"
            if _asks(candidate, tokenize):
                return candidate
    return ""


def _asks(text: str, tokenize: TextTokenizer) -> bool:
    """Tell whether the brackets hold one token of the tokenizer's."""
    try:
        parse_query(text, tokenize=tokenize)
    except (ElmoError, ValueError):
        return False
    return True


def _lines(inputs: Sequence[InputFile], documents: str, column: str) -> Iterator[str]:
    """Yield the lines at the heads of files."""
    for input_ in inputs:
        pieces = plan_pieces([input_], shard_bytes=1 << 16, documents=documents)
        if not pieces:
            continue
        blocks = read_blocks(
            pieces[0][0],
            column=column,
            documents="line",
            size=1 << 16,
            accounting=Accounting(),
        )
        if (block := next(blocks, None)) is not None:
            yield from filter(None, map(str.strip, block.text.decode("utf-8").splitlines()))
