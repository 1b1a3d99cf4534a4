"""Arguments of the public classes that are of the wrong kind: refused by name, never misread."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from elmo import Elmo, ElmoError, Embedder, FeatureStore, ScalarMix
from elmo.model.batches import Carry
from elmo.model.folder import load_model
from elmo.store.neighbors import neighbors, parse_query
from elmo.train.perplexity import perplexity
from tests.elmo.conftest import WHITESPACE, make_store, save_tiny_model


class Public(NamedTuple):
    """What is called wrongly."""

    folder: Path
    embedder: Embedder
    elmo: Elmo
    store: FeatureStore


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Public:
    folder = tmp_path_factory.mktemp("public")
    save_tiny_model(folder / "model")
    model, sentences = folder / "model", [["the", "gift"], ["he", "has"]]
    store = FeatureStore(make_store(folder, sentences, model, tokenizer=WHITESPACE))
    return Public(model, Embedder.load(model), Elmo(model), store)


TOKENS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "sentences must be a list of token lists, found a NoneType"),
    "a number": (5, "sentences must be a list of token lists, found a int"),
    "a text": ("he has", "found a string; tokenize it"),
    "bytes": (b"he", "sentence 0: must be a list of tokens, found 104"),
    "texts": (["he has"], "sentence 0: must be a list of tokens, found a string; split it"),
    "numbers": ([["he"], 1], "sentence 1: must be a list of tokens, found 1"),
    "tokens that are none": ([["he", None]], "sentence 0: token 1 must be a string, found None"),
    "lists in lists": ([[["he"]]], r"sentence 0: token 0 must be a string, found \['he'\]"),
    "a dictionary": ({}, "sentences must be a list of token lists, found a dict"),
    "dictionaries": ([{"he": 1}], "sentence 0: must be a list of tokens, found {'he': 1}"),
    "a cell of an array": ([np.array("he")], "sentence 0: must be a list of tokens, found array"),
    "sets": ([{"he"}], "sentence 0: must be a list of tokens, found {'he'}"),
    "a generator": ((["he"] for _ in "ab"), "sentences must be a list of token lists"),
}


@pytest.mark.parametrize("what", TOKENS)
def test_what_is_no_list_of_token_lists(public: Public, what: str) -> None:
    sentences, message = TOKENS[what]
    calls: list[Callable[[Any], Any]] = [public.embedder.embed, public.elmo]
    for call in calls:
        with pytest.raises(ElmoError, match=message):
            call(sentences)


WRONG: dict[str, tuple[Callable[[Public], object], str]] = {
    "layers of embed": (
        lambda p: p.embedder.embed([["he"]], layers=1),  # type: ignore[arg-type]
        "layers must be a list of numbers, such as",
    ),
    "no layers": (lambda p: p.embedder.encode("he", layers=[]), "layers must be a list"),
    "layers in words": (lambda p: p.embedder.encode("he", layers="0,1"), "layers must be a list"),  # type: ignore[arg-type]
    "a layer that is none": (
        lambda p: p.embedder.embed([["he"]], layers=["top"]),  # type: ignore[list-item]
        "layers must be among 0 to 2, found top",
    ),
    "half a layer": (lambda p: p.embedder.encode("he", layers=[1.0]), "found 1.0"),  # type: ignore[list-item]
    "a mask of layers": (
        lambda p: p.embedder.embed([["he"]], layers=np.array([True, False, True])),  # type: ignore[arg-type]
        "layers must be among 0 to 2, found True",
    ),
    "a mix of three dimensions": (
        lambda p: ScalarMix(3)(torch.ones(3, 1, 4), torch.ones(3, 1)),
        r"layers must be \(3, sentences, tokens, dim\) to mix, found \(3, 1, 4\)",
    ),
    "ids of one dimension": (lambda p: p.elmo(torch.zeros(0)), r"ids must be \(sentences, tokens"),
    "a path for a store": (
        lambda p: neighbors("store", p.embedder, ["he"], 0),  # type: ignore[arg-type]
        "store must be a FeatureStore, found 'store'",
    ),
    "a truth for a position": (
        lambda p: neighbors(p.store, p.embedder, ["he"], False),
        "position must be from 0 to 0, found False",
    ),
    "two sentences to carry": (
        lambda p: list(p.embedder.embed_stream([[["he"], ["a"]]], state=Carry())),
        "with a Carry, each text must be a list of one sentence",
    ),
    "ids of another model": (lambda p: p.elmo(torch.full((1, 1, 50), 999)), "from 0 to 261"),
    "ids that are no integers": (lambda p: p.elmo(torch.ones(1, 1, 50)), "ids must be integers"),
    "a store without a name": (lambda p: FeatureStore(""), "the folder's name is empty, found ''"),
    "layers of a store": (lambda p: FeatureStore(p.store.path, layers=1), "must be a list"),  # type: ignore[arg-type]
    "no layers of a store": (lambda p: FeatureStore(p.store.path, layers=[]), "must be a list"),
    "half a position": (
        lambda p: neighbors(p.store, p.embedder, ["he"], 0.0),  # type: ignore[arg-type]
        "position must be from 0 to 0, found 0.0",
    ),
    "a misspelt state": (
        lambda p: p.embedder.embed([["he"]], state="carried"),  # type: ignore[arg-type]
        "state must be 'reset', 'carry' or a Carry, found 'carried'",
    ),
    "a state of a stream": (
        lambda p: list(p.embedder.embed_stream([[["he"]]], state="carry")),  # type: ignore[arg-type]
        "state must be 'reset' or a Carry, found 'carry'",
    ),
    "a text in a stream": (
        lambda p: list(p.embedder.embed_stream(["he has"])),
        "must be a list of token lists, found a string",
    ),
    "a number in place of a stream": (
        lambda p: list(p.embedder.embed_stream(5)),  # type: ignore[arg-type]
        "texts must be a list or another iterable, found 5",
    ),
    "tokens to cut": (lambda p: p.embedder.tokenize(["he"]), "a text must be a string"),  # type: ignore[arg-type]
    "a batch size": (lambda p: p.embedder.embed([["he"]], "2"), "must be a whole number of 1"),  # type: ignore[arg-type]
    "a truth": (lambda p: p.embedder.embed([["he"]], True), "must be a whole number of 1"),
    "no batch": (lambda p: p.embedder.embed([["he"]], 0), "must be a whole number of 1"),
    "no precision": (lambda p: Embedder.load(p.folder, precision="half"), "precision must be"),  # type: ignore[arg-type]
    "a misspelt pooling": (
        lambda p: p.embedder.encode("he", "sum"),  # type: ignore[arg-type]
        "pooling must be one of mean, first, last, max, none",
    ),
    "tokens to encode": (
        lambda p: p.embedder.encode([["a"]]),
        "text 0: .*pass token lists to embed",
    ),  # type: ignore[list-item]
    "no model's name": (lambda p: Embedder.load(""), "the model's name is empty"),
    "a zero byte": (lambda p: p.embedder.encode("he \0"), "a zero byte"),
    "a zero byte in a token": (lambda p: p.embedder.embed([["he\0"]]), "without zero bytes"),
    "half a surrogate pair in a token": (
        lambda p: p.embedder.encode_types(["he\ud800"]),
        "token 0 must be UTF-8 without zero bytes",
    ),
    "half a surrogate pair": (lambda p: p.embedder.encode("he \ud800"), "is not UTF-8"),
    "a text for types": (lambda p: p.embedder.encode_types("he"), "must be a list of tokens"),
    "a misspelt split": (
        lambda p: p.store.ids("held-out"),
        "split must be train or heldout, found 'held-out'",
    ),
    "blocks of no split": (lambda p: list(p.store.blocks(split="test")), "split must be train"),
    "a misspelt device": (
        lambda p: Embedder.load(p.folder, device="gpu"),
        "device must be cpu or cuda, found 'gpu'",
    ),
    "a position beyond": (
        lambda p: neighbors(p.store, p.embedder, ["he"], 1),
        "position must be from 0 to 0, found 1",
    ),
    "a text to compare": (
        lambda p: neighbors(p.store, p.embedder, "he has", 0),
        "sentence 0: must be a list of tokens, found a string",
    ),
    "an array of a text": (
        lambda p: p.embedder.encode([np.array(["he", "has"], object)[:, None]]),
        r"text 0: must be a string, found array\(\[\['he'\], \['has'\]\], dtype=object\)$",
    ),
    "texts to measure": (
        lambda p: perplexity(load_model(p.folder), ["he has"]),
        "sentence 0: must be a list of tokens, found a string",
    ),
    "a query of tokens": (lambda p: parse_query(["[he]"]), "the text must be a string"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_an_argument_that_can_not_be(public: Public, what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises(ElmoError, match=message):
        call(public)


@pytest.mark.parametrize("folder", [None, 5, ["model"], b"model"])
def test_a_folder_is_a_text_or_a_path(
    public: Public, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = [Embedder.load]
    if not isinstance(folder, list):  # several stores are read as one
        calls.append(FeatureStore)
    for call in calls:
        with pytest.raises(TypeError, match="a string or a Path"):
            call(folder)
    assert not list(tmp_path.iterdir())
