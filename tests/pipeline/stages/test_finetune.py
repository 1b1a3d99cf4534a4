"""finetune: what it gains on domain text, what it costs on general text, what it leaves alone."""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from elmo.data.characters import Characters
from elmo.data.shards import write_shards
from elmo.data.tokenizer import Tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.model.folder import load_model
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import Softmax
from elmo.settings import ModelShape
from elmo.train.perplexity import perplexity
from pipeline.settings.params import FinetuneSettings
from pipeline.stages import finetune
from tests.elmo.conftest import WHITESPACE, save
from tests.elmo.run_job import NETWORK, TRAINING, WORDS, sentences
from tests.pipeline.stages import test_pretrain
from tests.pipeline.stages.test_pretrain import COUNTS, HERE
from tests.pipeline.stages.test_tokenize import make

pytestmark = pytest.mark.usefixtures("own_mlflow")
PARAMS = FinetuneSettings(training=replace(TRAINING, epochs=4), new_words=3)


def task_sentences(count: int) -> list[list[str]]:
    """The same words in the other order, and two that are new."""
    return [["new", *reversed(s), "newer"] for s in sentences(count) if s]


@pytest.fixture(scope="module")
def inputs(own_mlflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `shards` of general text, `domain` and a pretrained `model`."""
    folder = test_pretrain.make_inputs(tmp_path_factory.mktemp("inputs"), tokenizer=WHITESPACE)
    how = {"heldout_every": 6, "shard_sentences": 30, "tokenizer": WHITESPACE}
    write_shards(folder / "domain", task_sentences(100), **how)
    longer = replace(test_pretrain.PARAMS, training=replace(TRAINING, epochs=8))
    test_pretrain.run(folder, folder, longer)
    return folder


def run(
    inputs: Path,
    out: Path,
    params: FinetuneSettings = PARAMS,
    *,
    model: Path | None = None,
    domain: str = "domain",
) -> dict[str, float]:
    return finetune.run(
        Location(model or inputs / "model"),
        Location(inputs / domain),
        Location(inputs / "shards"),
        Location(out / "model"),
        params,
        curves=out / "curves",
        work=Location(out / "runs"),
        cluster=HERE,
    )


@pytest.fixture(scope="module")
def tuned(inputs: Path) -> tuple[Path, dict[str, float]]:
    """The folder of a run, and its metrics."""
    return inputs / "tuned", run(inputs, inputs / "tuned")


@pytest.fixture(scope="module")
def without_new_words(inputs: Path) -> dict[str, float]:
    """The metrics of a run that adds no words."""
    return run(inputs, inputs / "same", replace(PARAMS, new_words=0))


@pytest.mark.slow
def test_the_tokenizer_travels_and_text_of_another_is_refused(
    inputs: Path, tuned: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    models = [load_model(folder / "model") for folder in (inputs, tuned[0])]
    assert [model.tokenizer for model in models] == [WHITESPACE, WHITESPACE]
    other = tmp_path / "other"
    other.mkdir()
    write_shards(other / "domain", task_sentences(30), heldout_every=6, tokenizer=Tokenization("x"))
    (other / "shards").symlink_to(inputs / "shards")
    with pytest.raises(ElmoError, match="domain: was tokenized by x, but the model .* whitespace"):
        run(other, tmp_path / "out", model=inputs / "model")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_it_learns_the_task_and_says_what_that_cost(
    inputs: Path, tuned: tuple[Path, dict[str, float]], without_new_words: dict[str, float]
) -> None:
    folder, metrics = tuned
    assert metrics["domain_gain"] > 0.2
    assert metrics["domain_perplexity_after"] == pytest.approx(
        (1 - metrics["domain_gain"]) * metrics["domain_perplexity_before"]
    )
    heldout = {
        "domain": [s for k, s in enumerate(task_sentences(100)) if k % 6 == 5],
        "general": [s for k, s in enumerate(sentences(140)) if k % 7 == 6],
    }
    child, parent = load_model(folder / "model"), load_model(inputs / "model")
    for name, text in heldout.items():
        after = perplexity(child, text).average
        assert metrics[f"{name}_perplexity_after"] == pytest.approx(after, rel=1e-4)
        before = perplexity(parent, text).average
        assert without_new_words[f"{name}_perplexity_before"] == pytest.approx(before, rel=1e-4)
    assert child.training["inputs"]["parent"] == parent.digest
    assert set(child.training["perplexity"]) == {"before", "after"}


def test_tuning_that_made_the_model_worse_is_said_to() -> None:
    figures = {"steps": 1.0, "domain_perplexity_before": 60.9, "domain_perplexity_after": 63.2}
    figures |= {"general_perplexity_before": 85.6, "general_perplexity_after": 85.1}
    worse = finetune.summary(figures | {"domain_gain": -0.038})
    assert "60.9 → 63.2 (+3.8%), general 85.6 → 85.1; worse than before" in worse
    assert "worse" not in finetune.summary(figures | {"domain_gain": 0.0})


@pytest.mark.slow
def test_words_of_the_task_come_after_the_old_ones(
    tuned: tuple[Path, dict[str, float]], without_new_words: dict[str, float]
) -> None:
    folder, metrics = tuned
    found = load_model(folder / "model").vocabulary
    assert found.words == [*WORDS, "new", "newer"]
    assert found.counts is not None and found.counts[: len(WORDS)] == COUNTS
    assert metrics["words_added"] == 2
    none = without_new_words
    assert none["words_added"] == 0 and none["domain_unk_rate"] > metrics["domain_unk_rate"] == 0


def test_new_words_share_the_probability_of_unknown_ones() -> None:
    """All words together are as likely as before: what was <UNK>'s is divided by counts."""
    torch.manual_seed(0)
    vocabulary = Vocabulary([*WORDS, "new", "newer"])
    counts = Counter({"new": 6, "newer": 3, "unseen": 2, WORDS[3]: 50})
    softmax, h_P = Softmax(len(vocabulary), 8), torch.randn(8)
    softmax.reset_parameters(1)
    old = Softmax(len(WORDS), 8)
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(old, name).copy_(getattr(softmax, name)[: len(WORDS)])
        finetune.init_new_words(softmax, vocabulary, counts, known_words=len(WORDS))
        p_old = (old.weight @ h_P + old.bias).softmax(0)
        p_new = (softmax.weight @ h_P + softmax.bias).softmax(0)
    unk = vocabulary.unk
    kept = [k for k in range(len(WORDS)) if k != unk]
    torch.testing.assert_close(p_new[kept], p_old[kept])
    shares = torch.stack([p_new[-2], p_new[-1], p_new[unk]]) / p_old[unk]
    torch.testing.assert_close(shares, torch.tensor([6.0, 3.0, 3.0]) / 12)


@pytest.mark.slow
def test_a_model_without_a_softmax_gets_a_new_one(inputs: Path, tmp_path: Path) -> None:
    parent = load_model(inputs / "model")
    vocabulary = Vocabulary(WORDS, None)
    save(tmp_path / "imported", parent, vocabulary=vocabulary, softmax=None, training={})
    metrics = run(inputs, tmp_path, model=tmp_path / "imported")
    assert metrics["domain_gain"] > 0.2
    found = load_model(tmp_path / "model")
    assert found.softmax is not None and len(found.softmax["weight"]) == len(WORDS) + 2


def test_a_token_that_readers_of_words_skip_becomes_no_word(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "domain", [["!!!MAXTERMID", "new"]] * 5)
    counts = finetune._count_types(shards)
    assert finetune._extend_vocabulary(Vocabulary(WORDS), counts, 3).words == [*WORDS, "new"]


def test_a_model_that_reads_words_is_refused(inputs: Path, tmp_path: Path) -> None:
    config = ModelShape(**(asdict(NETWORK) | {"input_words": len(WORDS)}))
    bilm = BiLM(config, character_count=Characters().size)
    softmax = Softmax(len(WORDS), NETWORK.projection)
    pieces = {"bilm": bilm, "vocabulary": Vocabulary(WORDS, COUNTS)}
    pieces |= {"softmax": dict(softmax.state_dict()), "training": {}}
    save(tmp_path / "words", load_model(inputs / "model"), **pieces)
    with pytest.raises(ElmoError, match="reads words, not characters"):
        run(inputs, tmp_path, model=tmp_path / "words")


def test_one_text_alone_tunes_nothing(inputs: Path, tmp_path: Path) -> None:
    """The model of the domain text is the one that has read it: no gain is made up."""
    figures = run(inputs, tmp_path, domain="shards")
    before, after = load_model(inputs / "model"), load_model(tmp_path / "model")
    assert after.digest == before.digest and after.training == before.training
    heldout = before.training["perplexity"]["after"]["general"]
    assert figures["domain_perplexity_after"] == heldout["average"]
    assert not {name for name in figures if "gain" in name or "before" in name or "loss" in name}
    assert finetune.summary(figures).startswith("skipped: ")
    assert finetune.describe_score(figures) == ""
    assert " given, " in finetune.describe_score(figures, "given")
    assert not (tmp_path / "runs").exists()
    for name in ("train.tsv", "heldout.tsv"):
        assert len((tmp_path / "curves" / name).read_text().splitlines()) == 1


def test_columns_kept_with_the_same_text_leave_nothing_to_tune(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [f"r{k},text {name} {k} .\n" for k in range(40)]
        (tmp_path / f"{name}.csv").write_text("id,text\n" + "".join(rows))
    general = make(tmp_path / "general", tmp_path / "a.csv")
    figures = {"average": 9.0}
    training = {"stage": "pretrain", "perplexity": {"after": {"general": figures}}}
    training["inputs"] = {"corpus": general.digest}
    for name, expected in {"a": figures, "b": None}.items():
        domain = make(tmp_path / name, tmp_path / f"{name}.csv", keep=("id",))
        places = domain.location, general.location
        assert finetune._find_pretraining_figures(training, *places) == expected
