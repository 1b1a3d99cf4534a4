"""Splits text into sentences and tokens, with libraries that are imported only when needed.

A tokenizer never loses or changes a character other than white space: its tokens, joined, are the
text without white space, in the tokenizer's Unicode form if it has one. The tokenize stage relies
on this to account for every byte. Long sentences are not cut here: training and embedding read them
in windows (`elmo.data.stream`, `elmo.model.batches`).

Shards and models record how their text was split as a `Tokenization`; a `TextTokenizer` splits
other text in the same way. To add a tokenizer, write a function in this file and add a record to
`TOKENIZERS`. If you change a tokenizer, keep its earlier version in `former_versions`, for the
models that record it.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Literal

import msgspec

from elmo.errors import ElmoError, Mismatch

_FORMER_PATTERN = r"\p{Han}|\d+(?:[.,]\d+)*|[\w&&[^\p{Han}]]+(?:['’][\w&&[^\p{Han}]]+)*|[^\s\w]"
# What UAX 29 never separates from the preceding character: marks, modifiers of emoji, and format
# characters, such as joiners and the soft hyphen, except the zero-width space.
_EXTEND = r"[\p{M}\p{Cf}\x{1F3FB}-\x{1F3FF}&&[^\x{200B}]]*"
_LETTERS = r"[\w&&[^\p{Han}]][\w\p{M}\p{Cf}\x{1F3FB}-\x{1F3FF}&&[^\p{Han}\x{200B}]]*"
WORD_PATTERN = (
    rf"\p{{Han}}{_EXTEND}"
    rf"|(?:\d{_EXTEND})+(?:[.,](?:\d{_EXTEND})+)*"
    rf"|{_LETTERS}(?:['’]{_LETTERS})*"
    rf"|[\x{{1F1E6}}-\x{{1F1FF}}]{{2}}{_EXTEND}"  # a flag
    rf"|[^\s\w]{_EXTEND}(?:(?<=\x{{200D}})\p{{Extended_Pictographic}}{_EXTEND})*"
)
_SENTENCE_END = re.compile(r"[.!?…:;。！？][^\w\s]*\s*\S")
_FULL_STOP = re.compile(r"(?<=[。！？])(?![。！？」』）])")

SplitTexts = Callable[[Sequence[str]], list[list[str]]]


class Tokenization(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record, in shards and models, of how a text was split into sentences and tokens.

    `name` is a tokenizer's name, or `none` for token lists that a program supplied; `pattern` is
    the regular expression of a token, if the tokenizer uses one. `libraries` has the versions of
    the packages that split words, `splitter` the versions of those that split sentences.
    `sentences` is `line` (each line is a sentence) or `split` (lines were split into sentences).
    `form` is the Unicode form to which text is converted first; empty: none.
    """

    name: str
    libraries: dict[str, str] = {}
    pattern: str = ""
    sentences: Literal["line", "split"] = "line"
    splitter: dict[str, str] = {}
    form: Literal["", "NFC"] = ""

    def __str__(self) -> str:
        """Return the tokenizer's name and library versions, for messages."""
        versions = ", ".join(f"{name} {version}" for name, version in self.libraries.items())
        return f"{self.name} ({versions})" if versions else self.name

    def has_same_tokens(self, tokenization: "Tokenization") -> bool:
        """Tell whether both give the same tokens for a sentence; how sentences are split is
        ignored."""
        return (self.name, self.libraries, self.pattern, self.form) == (
            tokenization.name,
            tokenization.libraries,
            tokenization.pattern,
            tokenization.form,
        )

    def check_shards(self, tokenization: "Tokenization", *, model: object, shards: object) -> None:
        """Raise `Mismatch` unless shards were tokenized in the same way as a model's text, which
        this describes.

        `tokenization` is that of the shards; `model` and `shards` name both in the message.
        Shards made from token lists have no tokenizer and are always accepted.
        """
        if tokenization.name != NO_TOKENIZER.name and not self.has_same_tokens(tokenization):
            raise Mismatch(
                f"{shards}: was tokenized by {tokenization}, but the model {model} requires "
                f"{self}, in the same version; tokenize the text with the model's tokenizer, or "
                "choose another model"
            )


NO_TOKENIZER = Tokenization("none")  # for token lists that a program supplied


@dataclass(frozen=True)
class TokenizerKind:
    """A tokenizer that can be chosen; the command line's help and checks follow from this record.

    `make_splitter` takes the pattern, and returns a function that splits texts into token lists. It
    needs the libraries `packages`, which the extra `extra` installs; a model records their
    versions. If it `splits_at_spaces`, each stretch between white space is tokenized independently,
    so equal stretches are tokenized once; `one_token_pattern` matches stretches that are one token.
    `pattern` is the regular expression of a token, if the tokenizer uses one, and `form` the
    Unicode form of its text; `former_versions` has the pattern and form of each earlier version.
    """

    make_splitter: Callable[[str], SplitTexts]
    packages: tuple[str, ...] = ()
    extra: str = ""
    splits_at_spaces: bool = False
    one_token_pattern: str = ""
    pattern: str = ""
    form: Literal["", "NFC"] = ""
    former_versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer ready to use: `split` maps texts to token lists, and `libraries` has the versions
    of the packages it uses."""

    name: str
    kind: TokenizerKind
    split: SplitTexts
    libraries: dict[str, str]


class TextTokenizer:
    """A callable that splits a text into sentences of tokens exactly as `tokenization` describes.

    Creating it raises `ElmoError` if `tokenization` has no tokenizer, or its libraries are missing
    or have other versions.
    """

    def __init__(self, tokenization: Tokenization) -> None:
        if tokenization.name == NO_TOKENIZER.name:
            raise ElmoError(
                "the model was trained on token lists and has no tokenizer; pass token lists (on "
                "the command line: --pretokenized)"
            )
        if tokenization.name not in TOKENIZERS:
            raise ElmoError(
                f"the model's config.json: unknown tokenizer {tokenization.name[:40]!r} (known: "
                f"{', '.join(TOKENIZERS)}); install the version of this package that trained the "
                "model, or pass token lists"
            )
        self.tokenization = tokenization
        _check_versions(tokenization.libraries, tokenization.name)
        self._tokenizer = load_recorded_tokenizer(tokenization)
        self._split_sentences: Callable[[str], list[str]] | None = None
        if tokenization.sentences == "split":
            _check_versions(tokenization.splitter, "split")
            self._split_sentences = load_sentence_splitter()[0]

    def __call__(self, text: str) -> list[list[str]]:
        """Return the sentences of a text, each a list of tokens, except those without tokens."""
        if not isinstance(text, str):
            raise ElmoError(f"a text must be a string, found {text!r:.80}")
        if not is_text(text):
            raise ElmoError(f"the text {text!r:.80} {NOT_TEXT_MESSAGE}")
        lines = text.split("\n")
        if self._split_sentences is not None:
            lines = [sentence for line in lines for sentence in self._split_sentences(line)]
        return [tokens for tokens in self._tokenizer.split(lines) if tokens]


NOT_TEXT_MESSAGE = "is not UTF-8, or has a zero byte; save it as UTF-8"


def is_text(text: str) -> bool:
    """Tell whether a text has no zero byte and can be encoded in UTF-8; a lone surrogate cannot."""
    try:
        return "\0" not in text and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:
        return False


def load_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer called `name`, one of `TOKENIZERS`; raise `ElmoError` if it is unknown or
    its packages are not installed."""
    if not isinstance(name, str) or name not in TOKENIZERS:
        raise ElmoError(f"tokenizer: unknown {name!r}; choose from {', '.join(TOKENIZERS)}")
    return _load_version(name, TOKENIZERS[name].pattern, TOKENIZERS[name].form)


def load_recorded_tokenizer(tokenization: Tokenization) -> Tokenizer:
    """Load the tokenizer that shards or a model record, in the recorded version."""
    kind = TOKENIZERS[tokenization.name]
    version = (tokenization.pattern, tokenization.form)
    if version not in ((kind.pattern, kind.form), *kind.former_versions):
        raise ElmoError(
            f"the model's tokenizer {tokenization.name} splits words with a pattern that "
            "this version does not know; install the version of this package that trained the model"
        )
    return _load_version(tokenization.name, *version)


def _load_version(name: str, pattern: str, form: str) -> Tokenizer:
    kind = TOKENIZERS[name]
    with _require_extra(kind.extra, f"tokenizer {name}"):
        split = kind.make_splitter(pattern)
        libraries = _find_versions(*kind.packages)
    if not form:
        return Tokenizer(name, kind, split, libraries)
    return Tokenizer(name, kind, lambda texts: split([*map(to_nfc, texts)]), libraries)


def to_nfc(text: str) -> str:
    """Return a text in NFC, or unchanged if it has more bytes in NFC, which is rare."""
    if unicodedata.is_normalized("NFC", text):
        return text
    composed_text = unicodedata.normalize("NFC", text)
    return composed_text if len(composed_text.encode()) <= len(text.encode()) else text


def installed_tokenization(name: str, sentences: Literal["line", "split"] = "line") -> Tokenization:
    """Return the record of the tokenizer `name` as installed here. `sentences` is `line` (one per
    line) or `split` (the sentence splitter is used)."""
    tokenizer = load_tokenizer(name)
    splitter = load_sentence_splitter()[1] if sentences == "split" else {}
    kind = tokenizer.kind
    return Tokenization(name, tokenizer.libraries, kind.pattern, sentences, splitter, kind.form)


def load_sentence_splitter() -> tuple[Callable[[str], list[str]], dict[str, str]]:
    """Return a function that splits a line into sentences, and the versions of its packages.

    The sentences keep their white space: joined, they are the line. A line without a mark that
    could end a sentence stays whole, and a Chinese or Japanese full stop always ends a sentence,
    even with no space after it.
    """
    with _require_extra("text", "tokenize.sentences: split"):
        segmenter = import_module("syntok.segmenter")
        syntok = import_module("syntok.tokenizer").Tokenizer(
            emit_hyphen_or_underscore_sep=True, replace_not_contraction=False
        )

    def split(line: str) -> list[str]:
        if not _SENTENCE_END.search(line):
            return [line]
        return [sentence for part in _FULL_STOP.split(line) for sentence in _split_by_syntok(part)]

    def _split_by_syntok(part: str) -> list[str]:
        if not _SENTENCE_END.search(part):
            return [part] if part else []
        starts = [s[0].offset for s in segmenter.split(syntok.tokenize(part)) if s]
        stops = [*starts[1:], len(part)]
        starts[:1] = [0]
        return [part[start:stop] for start, stop in zip(starts, stops, strict=True)]

    return split, _find_versions("syntok")


def _make_whitespace_splitter(_: str) -> SplitTexts:
    return lambda texts: [text.split() for text in texts]


def _make_unicode_splitter(pattern: str) -> SplitTexts:
    library = import_module("tokenizers")
    word_regex = library.Regex(pattern)
    splitter = library.pre_tokenizers.Split(word_regex, behavior="removed", invert=True)

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [[token for token, _ in splitter.pre_tokenize_str(text)] for text in texts]

    return split


def _make_korean_splitter(_: str) -> SplitTexts:
    analyzer = import_module("kiwipiepy").Kiwi(num_workers=1)

    def split(texts: Sequence[str]) -> list[list[str]]:
        morphemes = analyzer.tokenize(list(texts))
        return [
            _split_at(text, [morpheme.start for morpheme in tokens])
            for text, tokens in zip(texts, morphemes, strict=True)
        ]

    return split


def _make_japanese_splitter(_: str) -> SplitTexts:
    import_module("unidic_lite")  # the dictionary that MeCab finds
    tagger = import_module("fugashi").Tagger("-Owakati")

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [[token for word in tagger(text) for token in str(word).split()] for text in texts]

    return split


TOKENIZERS: Mapping[str, TokenizerKind] = {
    "whitespace": TokenizerKind(
        make_splitter=_make_whitespace_splitter,
        splits_at_spaces=True,
        one_token_pattern=r"[^\pZ\x00-\x20\x85]+",
    ),
    "unicode": TokenizerKind(
        make_splitter=_make_unicode_splitter,
        packages=("tokenizers",),
        extra="text",
        splits_at_spaces=True,
        one_token_pattern="[A-Za-z]+",
        pattern=WORD_PATTERN,
        former_versions=((_FORMER_PATTERN, ""),),
    ),
    "korean": TokenizerKind(  # with Kiwi; morphemes that share a syllable stay one token
        make_splitter=_make_korean_splitter,
        packages=("kiwipiepy", "kiwipiepy_model"),
        extra="korean",
        form="NFC",
        former_versions=(("", ""),),
    ),
    "japanese": TokenizerKind(
        make_splitter=_make_japanese_splitter,
        packages=("fugashi", "unidic-lite"),
        extra="japanese",
        form="NFC",
        former_versions=(("", ""),),
    ),
}


def _split_at(text: str, starts: Sequence[int]) -> list[str]:
    """Split `text` at the given token starts and at white space; only white space is lost."""
    edges = sorted({0, *starts, len(text)})
    spans = (text[start:stop] for start, stop in zip(edges, edges[1:], strict=False))
    return [token for span in spans for token in span.split()]


@contextmanager
def _require_extra(extra: str, purpose: str) -> Iterator[None]:
    """Turn an `ImportError` into an `ElmoError` that says which extra to install."""
    try:
        yield
    except ImportError:
        raise ElmoError(
            f"{purpose} needs a library: pip install 'elmo-pipeline[{extra}]'"
        ) from None


def _find_versions(*packages: str) -> dict[str, str]:
    return {package: metadata.version(package) for package in packages}


def _check_versions(libraries: dict[str, str], name: str) -> None:
    """Raise `ElmoError` unless the libraries have the recorded versions: others may split
    differently."""
    requirements = " ".join(f"'{package}=={version}'" for package, version in libraries.items())
    for package, version in libraries.items():
        try:
            installed_version = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed_version = ""
        if installed_version != version:
            problem = f"but {installed_version} is" if installed_version else "which is not"
            raise ElmoError(
                f"the model's tokenizer {name} needs {package} {version}, {problem} installed; "
                f"run: pip install {requirements}"
            )
