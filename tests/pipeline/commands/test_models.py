"""One text meets one model through one tokenizer, in every command; and what commands refuse."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest

from elmo.data.tokenizer import TOKENIZERS, Tokenization, installed_tokenization
from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.neighbors import most_distinct_layer, random_cosine
from pipeline.cluster import workers
from pipeline.commands import models
from tests.elmo.conftest import WHITESPACE, make_store, save_tiny_model
from tests.elmo.data.test_tokenizer import needed
from tests.pipeline import here
from tests.pipeline.command_line import elmo
from tests.pipeline.stages import test_register
from tests.pipeline.stages.test_tokenize import in_order, make

LINES = [
    "나는 밥을 먹었다. 정말 좋았어요!",
    "",
    "오늘은 학교에 간다.",
    "吾輩は猫である。 名前はまだ無い。",
]


def embed(model: Path, data: bytes, out: Path, **changes: Any) -> list[np.ndarray]:
    options = dict(pretokenized=False, batch_size=8, state="reset", layers="all", dtype="float32")
    options |= dict(precision="float32", overwrite=False, device="cpu", column="text")
    command = models.embed.callback
    assert command is not None
    command(model=model, source=io.BytesIO(data), output=out, **(options | changes))
    archive = np.load(out)
    assert sorted(archive, key=int) == [str(k) for k in range(len(archive))]
    return [archive[str(k)] for k in range(len(archive))]


@pytest.mark.parametrize("sentences", ["line", "split"])
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.slow
def test_the_same_tokens_everywhere(
    name: str, sentences: Any, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(name)
    model = tmp_path / "model"
    save_tiny_model(model, tokenizer=installed_tokenization(name, sentences))
    embedder = Embedder.load(model)
    # The Python API.
    expected = [embedder.tokenize(line) for line in LINES]
    assert [len(of_line) for of_line in expected] == (
        [1, 0, 1, 1] if sentences == "line" else [2, 0, 1, 2]
    )
    # The tokenize stage, which made what the model was trained on.
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    monkeypatch.setattr(workers, "map_tasks", here.map_tasks)
    made = make(tmp_path / "shards", text, tokenizer=name, sentences=sentences)
    assert [row for row in in_order(made) if row] == [t for line in expected for t in line]
    # embed: each sentence alone, the tokens of a line end to end.
    vectors = embed(model, text.read_bytes(), tmp_path / "out.npz")
    for of_line, found in zip(expected, vectors, strict=True):
        parts = [np.empty((3, 0, 8), np.float32), *embedder.embed(of_line)]
        np.testing.assert_allclose(found, np.concatenate(parts, 1), atol=1e-5)
    # perplexity.
    code, scored, error = elmo("perplexity", model, "--input", text, "--sentences")
    assert (code, error) == (0, "")
    tokens = [" ".join(token for sentence in of_line for token in sentence) for of_line in expected]
    assert [line.split("\t")[2] for line in scored.splitlines()] == tokens
    # neighbors: the word is cut with all that stands around it.
    build(tmp_path / "store", shards=tmp_path / "shards", model=model, settings=StoreSettings())
    seen: list[Any] = []
    monkeypatch.setattr(
        "elmo.store.neighbors.neighbors", lambda *given, **_: seen.extend(given[2:4]) or []
    )
    sentence = expected[2][0]
    marked = LINES[2].replace(sentence[0], f"[{sentence[0]}]", 1)
    assert elmo("neighbors", tmp_path / "store", marked, "--model", model)[0] == 0
    assert seen == [sentence, 0]
    if sentences == "line":  # registering takes seconds
        return
    # The registered model, as any process loads it.
    tmp_path.joinpath("mlflow.db").write_bytes(empty_database.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    test_register.run(tmp_path)
    served = mlflow.pyfunc.load_model("models:/tiny@champion")
    predicted = served.predict(LINES, params={"layers": "all"})
    for found, ours in zip(predicted, vectors, strict=True):
        array = np.array(found, np.float32).reshape(ours.shape)
        np.testing.assert_allclose(array, ours, atol=1e-5)


def test_a_store_of_another_tokenizers_shards_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", tokenizer=Tokenization("whitespace"))
    with pytest.raises(ElmoError, match="was tokenized by unicode, but the model .* whitespace"):
        make_store(tmp_path, [["a"]], tmp_path / "model", tokenizer=Tokenization("unicode"))
    assert not (tmp_path / "store").exists()


def test_a_model_without_a_tokenizer_takes_pretokenized_text_only(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", tokenizer=Tokenization("none"))
    with pytest.raises(ElmoError, match="--pretokenized"):
        embed(tmp_path / "model", b"a gift\n", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
    (found,) = embed(tmp_path / "model", b"a gift\n", tmp_path / "out.npz", pretokenized=True)
    assert found.shape == (3, 2, 8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "model"
    save_tiny_model(folder)
    return folder


@pytest.mark.parametrize("pretokenized", [False, True])
def test_a_line_too_long_is_refused_before_it_is_read(
    model: Path, tmp_path: Path, pretokenized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ElmoError, match=r"^-:2: this line has 19 MB or more \(limit: 16 MiB\)"):
        data = b"a\n" + b"a " * (9 << 20)
        embed(model, data, tmp_path / "out.npz", pretokenized=pretokenized)
    with pytest.raises(ElmoError, match=r"-:1: the line has 32,769 tokens, more than 32,768"):
        embed(model, b"a " * 32_769, tmp_path / "out.npz", pretokenized=pretokenized)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def store(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    lines = [
        ["he", "has", "a", "gift"],
        ["the", "gift"],
        ["a", "new", "gift", "for"],
        ["he", "has"],
    ]
    return make_store(folder, lines * 2, model, tokenizer=WHITESPACE)


def test_neighbors_stand_beside_what_random_pairs_have(model: Path, store: Path) -> None:
    """The layer that is compared is named; with --json, all of it is in each object."""
    opened = FeatureStore(store)
    layer = most_distinct_layer(opened)
    words = ("neighbors", store, "a new [gift]", "--model", model, "-k", "2")
    random = random_cosine(opened, layer)
    code, out, error = elmo(*words)
    assert (code, out.split()[:3], out.count("\n")) == (0, ["cosine", "document", "sentence"], 3)
    shown = f"  layer {layer}: two random tokens have a cosine of {random:.3f}; to choose another"
    assert error == f"{shown} layer, pass --layer\n"
    for line in out.splitlines()[1:]:
        _, document, sentence, *_ = line.split()
        assert int(document) == opened.document(int(sentence))
    code, out, error = elmo(*words, "--json")
    assert (code, error) == (0, "")
    for one in map(json.loads, out.splitlines()):
        assert one["random_cosine"] == pytest.approx(random)
        assert one["layers"] == [f"layer_{layer}"]
        assert one["document_id"] == opened.document(one["sentence_id"])
    _, _, error = elmo(*words, "--layer", "average")
    assert error.startswith("  mean of 3 layers: ")


def test_the_model_of_a_store_is_found_in_its_project_from_any_folder(
    model: Path, store: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(store, project / "data" / "features")
    shutil.copytree(model, project / "models" / "finetune")
    for folder, name in (
        (project, "data/features"),
        (project / "data", "features"),
        (tmp_path, "project/data/features"),
        (tmp_path, str(project / "data" / "features")),
    ):
        code, out, error = elmo("neighbors", name, "a new [gift]", "-k", "1", cwd=folder)
        assert (code, out.count("\n")) == (0, 2), error


def test_a_perplexity_that_unknown_words_flatter_says_so(model: Path) -> None:
    words = ("perplexity", model, "--input", "-")
    _, out, _ = elmo(*words, stdin=b"he has a zzyzx\n")
    assert out.endswith(
        " tokens and 1 sentence end (too optimistic: 25% of the tokens are unknown words)\n"
    )
    assert elmo(*words, stdin=b"he has a gift\n")[1].endswith(
        " 4 tokens and 1 sentence end, 0.00% unknown\n"
    )
    code, out, _ = elmo(*words, "--sentences", "--json", stdin=b"he has\na gift\n")
    assert code == 0
    assert [json.loads(line)["tokens"] for line in out.splitlines()] == [
        ["he", "has"],
        ["a", "gift"],
    ]
