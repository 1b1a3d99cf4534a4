"""Text → sentences → tokens, by libraries loaded only when they are asked for.

A tokenizer never loses or rewrites a character that is not white space: its tokens, joined, are
the text without white space. That is how the tokenize stage accounts for every byte.

`Tokenization` is what shards and models record of how their text was cut, and `TextTokenizer` does
the same to other text. A new tokenizer is a function in this file and an entry of `_MAKERS`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, Literal

import msgspec

from elmo.errors import ElmoError, Mismatch

WORD_PATTERN = r"\p{Han}|\d+(?:[.,]\d+)*|[\w&&[^\p{Han}]]+(?:['’][\w&&[^\p{Han}]]+)*|[^\s\w]"
_MAY_END = re.compile(r"[.!?…:;。！？][^\w\s]*\s*\S")
_FULL_STOP = re.compile(r"(?<=[。！？])(?![。！？」』）])")

SplitTexts = Callable[[Sequence[str]], list[list[str]]]


class Tokenization(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How text became sentences of tokens: a part of a model's identity.

    `name` is a tokenizer's name, or `none` where token lists came from a program. `libraries` are
    the versions of the packages that cut words, `splitter` of those that cut sentences; `sentences`
    is `line` (each line is one) or `split`.
    """

    name: str
    libraries: dict[str, str] = {}
    pattern: str = ""
    sentences: Literal["line", "split"] = "line"
    splitter: dict[str, str] = {}

    def __str__(self) -> str:
        """In words, for messages."""
        versions = ", ".join(f"{name} {version}" for name, version in self.libraries.items())
        return f"{self.name} ({versions})" if versions else self.name

    def same_tokens(self, other: "Tokenization") -> bool:
        """Whether both cut a sentence into the same tokens; how sentences are cut may differ."""
        return (self.name, self.libraries, self.pattern) == (
            other.name,
            other.libraries,
            other.pattern,
        )

    def check_shards(self, other: "Tokenization", *, model: object, shards: object) -> None:
        """Refuse shards that another tokenizer cut than the model's own, which this one is.

        Shards made from token lists carry no tokenizer and are taken as they are.
        """
        if other.name != NONE.name and not self.same_tokens(other):
            raise Mismatch(
                f"{shards}: was tokenized by {other}, and the model {model} reads tokens of "
                f"{self}; tokenize the text anew with that one, or choose another model"
            )


NONE = Tokenization("none")


@dataclass(frozen=True)
class Tokenizer:
    """How texts become tokens: `split` maps texts to token lists.

    With `apart` its tokens never span ASCII white space and do not depend on what is around it,
    so each distinct stretch between white space needs splitting only once; a stretch that the
    regular expression `whole` matches is a token as it is. `libraries` are the packages it uses
    and their versions.
    """

    name: str
    apart: bool
    whole: str
    split: SplitTexts
    libraries: dict[str, str]
    pattern: str = ""


class TextTokenizer:
    """Cuts text as a model's training text was cut; `ElmoError` where its library is missing."""

    def __init__(self, tokenization: Tokenization) -> None:
        if tokenization.name == NONE.name:
            raise ElmoError(
                "the model was trained on token lists and has no tokenizer of its own; give it "
                "token lists (on the command line: --pretokenized)"
            )
        if tokenization.name not in TOKENIZERS:
            raise ElmoError(
                f"the model's config.json: tokenizer: no {tokenization.name[:40]!r}; there are "
                f"{', '.join(TOKENIZERS)}; install the version of this package that trained the "
                "model, or give it token lists"
            )
        self.tokenization = tokenization
        _check_versions(tokenization.libraries, tokenization.name)
        self._tokenizer = tokenizer(tokenization.name)
        if self._tokenizer.pattern != tokenization.pattern:
            raise ElmoError(
                f"the model's tokenizer {tokenization.name} cuts words by another pattern than "
                "this version does; install the version of this package that trained the model"
            )
        self._sentences: Callable[[str], list[str]] | None = None
        if tokenization.sentences == "split":
            _check_versions(tokenization.splitter, "split")
            self._sentences = sentence_splitter()[0]

    def __call__(self, text: str) -> list[list[str]]:
        """The sentences of a text, each a list of its tokens; none is without tokens."""
        lines = text.split("\n")
        if self._sentences is not None:
            lines = [sentence for line in lines for sentence in self._sentences(line)]
        return [tokens for tokens in self._tokenizer.split(lines) if tokens]


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name; `ElmoError` where its library is not installed."""
    if name not in _MAKERS:
        raise ElmoError(f"tokenizer: no {name!r}; there are {', '.join(TOKENIZERS)}")
    return _MAKERS[name]()


def describe(name: str, sentences: Literal["line", "split"] = "line") -> Tokenization:
    """Return what a tokenizer of that name, and sentences cut this way, record of themselves, as
    installed."""
    chosen = tokenizer(name)
    splitter = sentence_splitter()[1] if sentences == "split" else {}
    return Tokenization(name, chosen.libraries, chosen.pattern, sentences, splitter)


def sentence_splitter() -> tuple[Callable[[str], list[str]], dict[str, str]]:
    """A function that cuts a line into sentences, white space kept, and the packages it uses.

    A line in which nothing can end a sentence is not looked at further; ideographic full stops,
    after which no space stands, are cut at first.
    """
    segmenter = _library("syntok.segmenter", "text", "tokenize.sentences: split")
    syntok = import_module("syntok.tokenizer").Tokenizer(
        emit_hyphen_or_underscore_sep=True, replace_not_contraction=False
    )

    def split(line: str) -> list[str]:
        if not _MAY_END.search(line):
            return [line]
        return [sentence for part in _FULL_STOP.split(line) for sentence in _by_syntok(part)]

    def _by_syntok(part: str) -> list[str]:
        if not _MAY_END.search(part):
            return [part] if part else []
        starts = [s[0].offset for s in segmenter.split(syntok.tokenize(part)) if s]
        ends = [*starts[1:], len(part)]
        starts[:1] = [0]
        return [part[start:end] for start, end in zip(starts, ends, strict=True)]

    return split, _versions("syntok")


def _whitespace() -> Tokenizer:
    def split(texts: Sequence[str]) -> list[list[str]]:
        return [text.split() for text in texts]

    return Tokenizer("whitespace", True, r"[^\pZ\x00-\x20\x85]+", split, {})


def _unicode() -> Tokenizer:
    library = _library("tokenizers", "text", "tokenizer unicode")
    pattern = library.Regex(WORD_PATTERN)
    splitter = library.pre_tokenizers.Split(pattern, behavior="removed", invert=True)

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [[token for token, _ in splitter.pre_tokenize_str(text)] for text in texts]

    return Tokenizer("unicode", True, "[A-Za-z]+", split, _versions("tokenizers"), WORD_PATTERN)


def _korean() -> Tokenizer:
    """Morphemes as they are written: those that share a syllable stay one token."""
    kiwi = _library("kiwipiepy", "korean", "tokenizer korean").Kiwi(num_workers=1)

    def split(texts: Sequence[str]) -> list[list[str]]:
        analysed = kiwi.tokenize(list(texts))
        return [
            _at_starts(text, [t.start for t in tokens])
            for text, tokens in zip(texts, analysed, strict=True)
        ]

    return Tokenizer("korean", False, "", split, _versions("kiwipiepy", "kiwipiepy_model"))


def _japanese() -> Tokenizer:
    fugashi = _library("fugashi", "japanese", "tokenizer japanese")
    _library("unidic_lite", "japanese", "tokenizer japanese")
    tagger = fugashi.Tagger("-Owakati")

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [[part for word in tagger(text) for part in str(word).split()] for text in texts]

    return Tokenizer("japanese", False, "", split, _versions("fugashi", "unidic-lite"))


_MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "whitespace": _whitespace,
    "unicode": _unicode,
    "korean": _korean,
    "japanese": _japanese,
}
TOKENIZERS = tuple(_MAKERS)


def _at_starts(text: str, starts: Sequence[int]) -> list[str]:
    """Cut `text` where tokens start and at white space; all of it is in the pieces."""
    cuts = sorted({0, *starts, len(text)})
    pieces = (text[a:b] for a, b in zip(cuts, cuts[1:], strict=False))
    return [token for piece in pieces for token in piece.split()]


def _library(module: str, extra: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ElmoError(
            f"{purpose} needs a library: pip install 'elmo-pipeline[{extra}]'"
        ) from None


def _versions(*packages: str) -> dict[str, str]:
    return {package: metadata.version(package) for package in packages}


def _check_versions(libraries: dict[str, str], name: str) -> None:
    """Refuse other versions than a model was trained with: they may cut other tokens."""
    wanted = " ".join(f"'{package}=={version}'" for package, version in libraries.items())
    for package, version in libraries.items():
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed = ""
        if installed != version:
            raise ElmoError(
                f"the model's tokenizer {name} needs {package} {version}, "
                f"{f'{installed} is installed' if installed else 'which is not installed'}; "
                f"run: pip install {wanted}"
            )
