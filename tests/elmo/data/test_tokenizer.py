"""How text is cut is a part of a model: the same there and here, or refused with the remedy."""

import sys
import unicodedata
from importlib import metadata
from typing import Any

import msgspec
import pytest

from elmo.data.tokenizer import (
    NO_TOKENIZER,
    TOKENIZERS,
    TextTokenizer,
    Tokenization,
    installed_tokenization,
    load_tokenizer,
    to_nfc,
)
from elmo.errors import ElmoError

TEXT = "Mr. Smith's cat isn't here. It left at 3.14!\n\n나는 밥을 먹었다. 吾輩は猫である。"


def needed(name: str) -> None:
    for package in TOKENIZERS[name].packages:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.slow
def test_a_description_names_every_package_that_cuts_words(name: str) -> None:
    needed(name)
    described = installed_tokenization(name)
    assert described.libraries == {p: metadata.version(p) for p in TOKENIZERS[name].packages}
    sentences = TextTokenizer(described)(TEXT)
    lines = [line for line in TEXT.split("\n") if line]
    assert sentences == load_tokenizer(name).split(lines)
    assert ["".join(tokens) for tokens in sentences] == ["".join(line.split()) for line in lines]


@pytest.mark.parametrize("name", [name for name, kind in TOKENIZERS.items() if kind.packages])
def test_a_missing_library_is_one_line_that_says_what_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = TOKENIZERS[name]
    for package in kind.packages:
        monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)  # import refuses these
    with pytest.raises(ElmoError, match=rf"^tokenizer {name} needs .*\[{kind.extra}\]'$"):
        load_tokenizer(name)


CLUSTERS = {  # by UAX 29: what stays whole, and what is divided
    "zero-width non-joiners": ("می‌خواهم کتاب‌ها را بخوانم .", 5),
    "zero-width joiners": ("क्‍ष है", 2),
    "soft hyphens": ("hy\xadphen\xadated text", 2),
    "a zero-width space divides": ("a\u200bb", 3),
    "word joiner": ("can\u2060not", 1),
    "flags": ("🇩🇪🇫🇷 🇰🇷", 3),
    "half a flag": ("🇩🇪🇫", 2),
    "flag of tags": ("🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f!", 2),
    "a family": ("👨‍👩‍👧‍👦👍🏽ok", 3),
    "a heart on fire": ("❤️‍🔥❤️", 2),
    "keycaps": ("1️⃣2", 1),
    "marks of ideographs": ("葛\U000e0100飾", 2),
    "decomposed letters": ("e\u0301te\u0301 n'est", 2),
    "numbers": ("3.14, 1,000 4.", 5),
}


@pytest.mark.parametrize("what", CLUSTERS)
def test_unicode_words_follow_uax_29(what: str) -> None:
    pytest.importorskip("tokenizers")
    text, count = CLUSTERS[what]
    (tokens,) = TextTokenizer(installed_tokenization("unicode"))(text)
    assert len(tokens) == count, tokens
    assert "".join(tokens) == "".join(text.split())


FORMER = r"\p{Han}|\d+(?:[.,]\d+)*|[\w&&[^\p{Han}]]+(?:['’][\w&&[^\p{Han}]]+)*|[^\s\w]"


def test_a_model_of_an_earlier_version_cuts_text_as_it_did() -> None:
    pytest.importorskip("tokenizers")
    now = installed_tokenization("unicode")
    earlier = msgspec.structs.replace(now, pattern=FORMER)
    assert TextTokenizer(earlier)("می‌خواهم 🇩🇪") == [["می", "\u200c", "خواهم", "🇩", "🇪"]]
    assert TextTokenizer(now)("می‌خواهم 🇩🇪") == [["می‌خواهم", "🇩🇪"]]
    assert TextTokenizer(earlier)(TEXT) == TextTokenizer(now)(TEXT)
    assert not earlier.has_same_tokens(now)
    with pytest.raises(ElmoError, match="install the version of this package that trained"):
        TextTokenizer(msgspec.structs.replace(now, pattern=r"\w"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("korean", "연기가 정말 좋았다! 또 보고 싶다."),
        ("japanese", "ガラスのパイプだった。ゴジラが、東京へ。"),
    ],
)
@pytest.mark.slow
def test_decomposed_text_is_cut_as_composed(name: str, text: str) -> None:
    needed(name)
    decomposed = unicodedata.normalize("NFD", text)
    assert decomposed != text
    tokenize = TextTokenizer(installed_tokenization(name))
    assert tokenize(decomposed) == tokenize(text)
    earlier = msgspec.structs.replace(installed_tokenization(name), form="")
    assert TextTokenizer(earlier)(text) == tokenize(text)
    assert "".join(t for s in TextTokenizer(earlier)(decomposed) for t in s) != "".join(
        text.split()
    )
    from elmo.tasks.formats.fields import token_offsets

    (tokens,) = tokenize(decomposed.split(" ")[0])
    ranges = token_offsets(decomposed, tokens)
    assert [to_nfc(decomposed[a:b]) for a, b in ranges] == tokens


def test_sentences_are_cut_as_described() -> None:
    pytest.importorskip("syntok")
    described = installed_tokenization("whitespace", "split")
    assert described.splitter == {"syntok": metadata.version("syntok")}
    sentences = TextTokenizer(described)(TEXT)
    assert [tokens[-1] for tokens in sentences][:2] == ["here.", "3.14!"]
    assert len(sentences) == 4
    assert described.has_same_tokens(installed_tokenization("whitespace"))


def other(**changes: Any) -> Tokenization:
    whole = {"name": "unicode", "libraries": {}, "pattern": "", "sentences": "line"}
    return Tokenization(**(whole | changes))


@pytest.mark.parametrize(
    ("tokenization", "message"),
    [
        (NO_TOKENIZER, r"has no tokenizer; pass token lists .*--pretokenized"),
        (
            other(name="nltk"),
            "config.json: unknown tokenizer 'nltk' .known: whitespace, unicode, korean, japanese",
        ),
        (
            other(name="whitespace", libraries={"numpy": "0.1"}),
            r"needs numpy 0\.1, .* is installed; run: pip install 'numpy==0\.1'",
        ),
        (
            other(name="whitespace", libraries={"no-such-package": "1"}),
            "needs no-such-package 1, which is not installed; run: pip install",
        ),
        (other(name="whitespace", pattern="x"), "with a pattern"),
        (
            other(name="whitespace", sentences="split", splitter={"syntok": "0.0"}),
            r"tokenizer split needs syntok 0\.0",
        ),
    ],
)
def test_what_cannot_be_done_here_is_refused(tokenization: Tokenization, message: str) -> None:
    with pytest.raises(ElmoError, match=message) as caught:
        TextTokenizer(tokenization)
    assert "\n" not in str(caught.value)


def test_shards_of_another_tokenizer_are_refused() -> None:
    ours = Tokenization("korean", {"kiwipiepy": "1"})
    ours.check_shards(NO_TOKENIZER, model="m", shards="s")
    ours.check_shards(
        Tokenization("korean", {"kiwipiepy": "1"}, "", "split"), model="m", shards="s"
    )
    for theirs in (Tokenization("unicode"), Tokenization("korean", {"kiwipiepy": "2"})):
        with pytest.raises(ElmoError, match=r"s: was tokenized by .* model m .* korean"):
            ours.check_shards(theirs, model="m", shards="s")
