"""Text → sentences → tokens, by libraries loaded only when they are asked for.

A tokenizer never loses or rewrites a character that is not white space: its tokens, joined, are
the text without white space. That is what keeps the books of the tokenize stage exact.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from elmo.errors import ElmoError

WORD_PATTERN = r"\p{Han}|\d+(?:[.,]\d+)*|[\w&&[^\p{Han}]]+(?:['’][\w&&[^\p{Han}]]+)*|[^\s\w]"
_MAY_END = re.compile(r"[.!?…:;。！？][^\w\s]*\s*\S")
_FULL_STOP = re.compile(r"(?<=[。！？])(?![。！？」』）])")

Split = Callable[[Sequence[str]], list[list[str]]]


@dataclass(frozen=True)
class Tokenizer:
    """How texts become tokens: `split` maps texts to token lists.

    With `apart` its tokens never span ASCII white space and do not depend on what is around it,
    so each distinct stretch between white space needs splitting only once; a stretch that the
    regular expression `whole` matches is a token as it is.
    """

    name: str
    apart: bool
    whole: str
    split: Split
    description: dict[str, str]


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name; `ElmoError` where its library is not installed."""
    makers = {
        "whitespace": _whitespace,
        "unicode": _unicode,
        "korean": _korean,
        "japanese": _japanese,
    }
    if name not in makers:
        raise ElmoError(f"tokenize.tokenizer: no {name!r}; there are {', '.join(makers)}")
    return makers[name]()


def sentence_splitter() -> tuple[Callable[[str], list[str]], dict[str, str]]:
    """A function that cuts a line into sentences, white space kept, and what to say of it.

    A line in which nothing can end a sentence is not looked at further; ideographic full stops,
    after which no space stands, are cut at first.
    """
    segmenter = _library("syntok.segmenter", "syntok", "tokenize.sentences: split")
    words = import_module("syntok.tokenizer").Tokenizer(
        emit_hyphen_or_underscore_sep=True, replace_not_contraction=False
    )

    def split(line: str) -> list[str]:
        if not _MAY_END.search(line):
            return [line]
        return [sentence for part in _FULL_STOP.split(line) for sentence in _by_syntok(part)]

    def _by_syntok(part: str) -> list[str]:
        if not _MAY_END.search(part):
            return [part] if part else []
        starts = [s[0].offset for s in segmenter.split(words.tokenize(part)) if s]
        ends = [*starts[1:], len(part)]
        starts[:1] = [0]
        return [part[start:end] for start, end in zip(starts, ends, strict=True)]

    return split, {"library": "syntok", "version": metadata.version("syntok")}


def _whitespace() -> Tokenizer:
    def split(texts: Sequence[str]) -> list[list[str]]:
        return [text.split() for text in texts]

    return Tokenizer("whitespace", True, r"[^\pZ\x00-\x20\x85]+", split, {"name": "whitespace"})


def _unicode() -> Tokenizer:
    library = _library("tokenizers", "tokenizers", "tokenize.tokenizer: unicode")
    pattern = library.Regex(WORD_PATTERN)
    words = library.pre_tokenizers.Split(pattern, behavior="removed", invert=True)

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [[token for token, _ in words.pre_tokenize_str(text)] for text in texts]

    description = {"pattern": WORD_PATTERN, **_library_version("unicode", "tokenizers")}
    return Tokenizer("unicode", True, "[A-Za-z]+", split, description)


def _korean() -> Tokenizer:
    """Morphemes as they are written: those that share a syllable stay one token."""
    kiwi = _library("kiwipiepy", "kiwipiepy", "tokenize.tokenizer: korean").Kiwi(num_workers=1)

    def split(texts: Sequence[str]) -> list[list[str]]:
        found = kiwi.tokenize(list(texts))
        return [
            _at_starts(text, [t.start for t in tokens])
            for text, tokens in zip(texts, found, strict=True)
        ]

    return Tokenizer("korean", False, "", split, _library_version("korean", "kiwipiepy"))


def _japanese() -> Tokenizer:
    fugashi = _library("fugashi", "fugashi[unidic-lite]", "tokenize.tokenizer: japanese")
    _library("unidic_lite", "fugashi[unidic-lite]", "tokenize.tokenizer: japanese")
    tagger = fugashi.Tagger("-Owakati")

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [[part for word in tagger(text) for part in str(word).split()] for text in texts]

    description = _library_version("japanese", "fugashi")
    return Tokenizer(
        "japanese",
        False,
        "",
        split,
        {**description, "unidic-lite": metadata.version("unidic-lite")},
    )


def _at_starts(text: str, starts: Sequence[int]) -> list[str]:
    """Cut `text` where tokens start and at white space; all of it is in the pieces."""
    cuts = sorted({0, *starts, len(text)})
    pieces = (text[a:b] for a, b in zip(cuts, cuts[1:], strict=False))
    return [token for piece in pieces for token in piece.split()]


def _library(module: str, package: str, setting: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ElmoError(f"{setting} needs a library: pip install '{package}'") from None


def _library_version(name: str, package: str) -> dict[str, str]:
    return {"name": name, "library": package, "version": metadata.version(package)}
