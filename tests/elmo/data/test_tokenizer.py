"""How text is cut is a part of a model: the same there and here, or refused with the remedy."""

import sys
from importlib import metadata
from typing import Any

import pytest

from elmo.data.tokenizer import (
    NO_TOKENIZER,
    TOKENIZERS,
    TextTokenizer,
    Tokenization,
    installed_tokenization,
    load_tokenizer,
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


def test_sentences_are_cut_as_described() -> None:
    pytest.importorskip("syntok")
    described = installed_tokenization("whitespace", "split")
    assert described.splitter == {"syntok": metadata.version("syntok")}
    sentences = TextTokenizer(described)(TEXT)
    assert [tokens[-1] for tokens in sentences][:2] == ["here.", "3.14!"]
    assert len(sentences) == 4
    assert described.same_tokens(installed_tokenization("whitespace"))


def other(**changes: Any) -> Tokenization:
    whole = {"name": "unicode", "libraries": {}, "pattern": "", "sentences": "line"}
    return Tokenization(**(whole | changes))


@pytest.mark.parametrize(
    ("tokenization", "message"),
    [
        (NO_TOKENIZER, r"has no tokenizer of its own; give it token lists .*--pretokenized"),
        (
            other(name="nltk"),
            "config.json: tokenizer: no 'nltk'; there are whitespace, unicode, korean, japanese",
        ),
        (
            other(name="whitespace", libraries={"numpy": "0.1"}),
            r"needs numpy 0\.1, .* is installed; run: pip install 'numpy==0\.1'",
        ),
        (
            other(name="whitespace", libraries={"no-such-package": "1"}),
            "needs no-such-package 1, which is not installed; run: pip install",
        ),
        (other(name="whitespace", pattern="x"), "cuts words by another pattern"),
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
        with pytest.raises(ElmoError, match=r"s: was tokenized by .* model m reads .* korean"):
            ours.check_shards(theirs, model="m", shards="s")
