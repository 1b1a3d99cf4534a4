"""A tagger learns from a store alone, and finds the layer that knows."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.data.shards import write_shards
from elmo.errors import ElmoError
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.layout import Mix
from elmo.tasks.tagger import Tagger, accuracy, train

WORDS = ["the", "gift", "late", "music", "for", "he"]
EXAMPLE = Path(__file__).parents[3] / "examples" / "tagger.py"


def sentences() -> list[list[str]]:
    draw = random.Random(0)
    return [draw.choices(WORDS, k=draw.randrange(9)) for _ in range(150)]


TAGS = [[word.upper() for word in sentence] for sentence in sentences()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("tagger")
    write_shards(folder / "shards", sentences(), heldout_every=5, shard_sentences=60)
    build(
        folder / "store",
        shards=folder / "shards",
        model=tiny_model_folder,
        settings=StoreSettings(dtype="float32"),
        work=folder / "runs",
    )
    return folder / "store"


def test_tags_of_a_word_are_learned_from_the_context_free_layer(made: Path) -> None:
    store = FeatureStore(made)
    tagger = train(store, TAGS, ids=store.ids("train"), epochs=60, lr=0.05, dropout=0.0)
    assert accuracy(tagger, store, TAGS, ids=store.ids("heldout")) > 0.95
    assert np.argmax(tagger.mix.weights) == 0
    assert sum(tagger.mix.weights) == pytest.approx(1)


@pytest.mark.slow
def test_a_bilstm_learns_what_the_neighbours_say(made: Path) -> None:
    store = FeatureStore(made, layers=[0])
    tags = [[*line[1:], "END"] if line else [] for line in TAGS]
    linear = train(store, tags, epochs=30, lr=0.05, dropout=0.0)
    deep = train(store, tags, hidden=16, epochs=30, lr=0.05, dropout=0.0)
    assert accuracy(deep, store, tags) > accuracy(linear, store, tags) + 0.2


def test_the_forward_pass_is_the_formula_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    tagger = Tagger(layers=("layer_0", "layer_1"), dim=4, tags=("a", "b"), hidden=3).eval()
    torch.nn.init.normal_(tagger.scalar_mix.weights)
    linear = Tagger(layers=("layer_0", "layer_1"), dim=4, tags=("a", "b")).eval()
    torch.nn.init.normal_(linear.scalar_mix.weights)
    vectors = torch.randn(1, 2, 5, 4)
    mixed = sum(w * vectors[0, j] for j, w in enumerate(linear.mix.weights))
    slow = linear.scores((mixed * linear.mix.gamma).float())
    mask = torch.ones(1, 5, dtype=torch.bool)
    torch.testing.assert_close(linear(vectors, mask)[0], slow)
    padded = torch.cat([vectors, torch.randn(1, 2, 3, 4)], 2)
    longer = torch.tensor([[True] * 5 + [False] * 3])
    torch.testing.assert_close(tagger(padded, longer)[:, :5], tagger(vectors, mask))


def test_the_same_seed_gives_the_same_tagger(made: Path) -> None:
    store = FeatureStore(made)
    state = torch.get_rng_state()
    first, second = (train(store, TAGS, epochs=1, seed=3).state_dict() for _ in range(2))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_saved_tagger_tags_the_same(made: Path, tmp_path: Path) -> None:
    store = FeatureStore(made)
    tagger = train(store, TAGS, epochs=1, hidden=4)
    tagger.save(tmp_path / "tagger")
    loaded = Tagger.load(tmp_path / "tagger")
    assert loaded.tag(store[:9]) == tagger.tag(store[:9])
    assert [len(tags) for tags in loaded.tag(store[:9])] == [len(s) for s in sentences()[:9]]
    assert loaded.tag([]) == []
    tagger.mix.save(tmp_path / "mix.json")
    assert Mix.load(tmp_path / "mix.json") == tagger.mix


def test_tags_that_do_not_fit_are_refused(made: Path) -> None:
    store = FeatureStore(made)
    k = next(k for k, tags in enumerate(TAGS) if len(tags) > 2)
    with pytest.raises(ElmoError, match=rf"sentence {k} has \d tokens and 1 tags"):
        train(store, [["x"] if j == k else tags for j, tags in enumerate(TAGS)], epochs=1)
    with pytest.raises(ElmoError, match="no tags to learn"):
        train(store, [[] for _ in TAGS])


@pytest.mark.slow
def test_the_example_runs_on_the_library_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "tags.txt").write_text("\n".join(" ".join(tags) for tags in TAGS) + "\n")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("ray", "mlflow", "dvc", "click", "pipeline"):
        (blocked / f"{name}.py").write_text("raise ImportError('not part of the library')\n")
    paths = f"{blocked}:{EXAMPLE.parents[1]}"
    done = subprocess.run(
        [sys.executable, EXAMPLE, made, "tags.txt"],
        cwd=tmp_path,
        env={"PYTHONPATH": paths, "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("held-out accuracy ")
    assert "layer_2 0." in done.stdout


@pytest.mark.parametrize("hidden", [0, 4])
def test_blank_sentences_have_no_tags(made: Path, hidden: int) -> None:
    store = FeatureStore(made)
    blank = [k for k, tags in enumerate(TAGS) if not tags]
    assert len(blank) > 2
    some = [*blank, next(k for k, tags in enumerate(TAGS) if tags)]
    tagger = train(store, TAGS, ids=some, hidden=hidden, epochs=2, batch_size=1)
    assert tagger.tag([store.vectors(k, layers=tagger.layers) for k in blank]) == [[]] * len(blank)
    assert accuracy(tagger, store, TAGS, ids=blank) == 0
