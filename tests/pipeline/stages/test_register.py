"""The registry: once for each content, with its lineage, and a champion that only the better one
replaces."""

import json
import os
import re
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch

from elmo.data.shards import write_shards
from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import read_json
from elmo.model.embedder import Embedder
from elmo.model.folder import load_model
from elmo.settings import StoreSettings
from elmo.store.build import build
from pipeline.cluster import submit
from pipeline.settings.params import RegisterSettings
from pipeline.stages import register
from pipeline.tracking import champion, origin, pyfunc, registry, served_model
from pipeline.tracking.runs import start_run
from tests.elmo.conftest import save, save_tiny_model

ROOT = Path(__file__).resolve().parents[3]
PARAMS = RegisterSettings(name="tiny", margin=0.01)


@pytest.fixture
def inputs(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "one.db").write_bytes(empty_database.read_bytes())
    (tmp_path / "two.db").write_bytes(empty_database.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/one.db")
    sentences = [["a", "gift"], ["he", "has"], ["the", "gift"], ["for", "he"]]
    write_shards(tmp_path / "shards", sentences, heldout_every=2)
    save_tiny_model(tmp_path / "model")
    return tmp_path


def score(value: float) -> dict[str, Any]:
    text = {"average": value, "forward": value, "backward": value, "tokens": 4}
    return {"before": {"general": text}, "after": {"domain": text, "general": text}}


def alter(inputs: Path, *, by: float, perplexity: float | None = None, run_id: str = "") -> None:
    """Give the model other weights, and write its store."""
    save_tiny_model(inputs / "model")
    model = load_model(inputs / "model")
    with torch.no_grad():
        next(model.bilm.parameters()).add_(by)
    training = {"stage": "finetune", "run_id": run_id, "params": {"training": {"rows": 4}}}
    if perplexity is not None:
        training |= {"perplexity": score(perplexity)}
    save(inputs / "model", model, training=training)
    store(inputs)


def store(inputs: Path) -> None:
    build(
        inputs / "store", shards=inputs / "shards", model=inputs / "model", settings=StoreSettings()
    )


def run(inputs: Path, *, store: str = "") -> dict[str, Any]:
    return register.run(
        Location(inputs / "model"),
        Location(store or inputs / "store"),
        inputs / "registered.json",
        PARAMS,
        general=Location(inputs / "shards"),
        domain=Location(inputs / "shards"),
    )


def aliases() -> dict[int, list[str]]:
    return {row.version: row.aliases for row in champion.list_versions("tiny")}


@pytest.mark.slow
def test_the_same_content_is_registered_once(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(inputs)
    assert run(inputs)["version"] == 1
    first = (inputs / "registered.json").read_bytes()
    sent: list[str] = []
    with monkeypatch.context() as patched:
        for call in ("set_model_version_tag", "set_registered_model_alias"):
            patched.setattr(mlflow.MlflowClient, call, lambda *_, call=call: sent.append(call))
        assert run(inputs)["version"] == 1
    assert not sent, "what the registry has is not sent again"
    assert (inputs / "registered.json").read_bytes() == first
    (version,) = champion.list_versions("tiny")
    digest = load_model(inputs / "model").digest
    assert (
        version.tags["model_digest"]
        == digest
        == read_json(inputs / "registered.json")["model_digest"]
    )
    read = {tag.partition(".")[0] for tag in version.tags}
    few = {"model_digest", "words", "heldout", "store", "commit"}
    assert read == few, "they are read by people"
    assert str(inputs / "store") in version.tags.values()
    described = mlflow.MlflowClient().get_registered_model("tiny").description
    assert "models:/tiny@champion" in described
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{inputs}/two.db")
    assert run(inputs)["version"] == 1, "an empty registry gets the model anew"
    assert aliases() == {1: ["candidate", "champion"]}


@pytest.mark.slow
def test_champion_moves_only_when_perplexity_is_lower_by_the_margin(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(inputs, by=0.0, perplexity=100.0)
    assert run(inputs)["decision"] == "champion is version 1, the first"
    alter(inputs, by=0.1, perplexity=99.5)
    decision = run(inputs)["decision"]
    assert decision.startswith("champion stays version 1: ")
    assert "perplexity 99.5" in decision and "1.00%" in decision
    assert aliases() == {1: ["champion"], 2: ["candidate"]}
    alter(inputs, by=0.2, perplexity=98.9)
    assert run(inputs)["decision"] == (
        "champion moved from version 1 to 3: domain perplexity 98.9, the champion's 100"
    )
    alter(inputs, by=0.0, perplexity=100.0)
    found = run(inputs)
    assert found["version"] == 1, "an older content is the older version"
    assert "champion stays version 3: version 1 is older" in found["decision"]
    assert aliases() == {1: [], 2: [], 3: ["candidate", "champion"]}  # nothing moves back
    search = mlflow.MlflowClient.search_model_versions
    monkeypatch.setattr(
        mlflow.MlflowClient,
        "search_model_versions",
        lambda self, query, **named: search(self, query, max_results=1, **named),
    )
    assert [*aliases()] == [3, 2, 1], "MLflow answers in pages"
    mlflow.MlflowClient().delete_registered_model_alias("tiny", "champion")
    alter(inputs, by=0.3, perplexity=1.0)
    assert run(inputs)["decision"] == "no version has the alias champion; set it in MLflow"


@pytest.mark.slow
def test_an_experiment_registers_nothing_unless_it_is_asked_to(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(inputs, by=0.0, perplexity=100.0)
    run(inputs)
    alter(inputs, by=0.1, perplexity=10.0)
    monkeypatch.setenv("DVC_EXP_NAME", "mild-idea")
    found = run(inputs)
    assert found["version"] == 0 and "this is an experiment" in register.summary(found)
    assert read_json(inputs / "registered.json")["version"] == 0
    assert aliases() == {1: ["candidate", "champion"]}
    monkeypatch.setenv("ELMO_REGISTER", "1")
    assert run(inputs)["version"] == 2
    assert aliases() == {1: [], 2: ["candidate", "champion"]}


@pytest.mark.parametrize(
    ("changed", "margin", "is_better", "why"),
    [
        ({"perplexity.after.general": "99"}, 0.01, True, "99, the champion's 100"),
        ({"perplexity.after.general": "99.01"}, 0.01, False, "not lower by 1.00%"),
        ({"perplexity.after.general": "100"}, 0.0, False, "not lower by 0.00%"),
        (
            {"perplexity.after.general": "110", "perplexity.after.domain": "49"},
            0.01,
            True,
            "domain perplexity 49, the champion's 50",
        ),
        (
            {"perplexity.after.general": "90", "words": "other"},
            0.01,
            False,
            "with a different vocabulary",
        ),
        (
            {"perplexity.after.general": "90", "heldout.general": "other"},
            0.01,
            False,
            "version 2 was measured on different held-out general text",
        ),
        ({}, 0.01, False, "version 2 has no held-out perplexity"),
    ],
)
def test_a_better_version_has_the_perplexity_that_the_margin_asks_for(
    changed: dict[str, str], margin: float, is_better: bool, why: str
) -> None:
    texts = {"heldout.general": "g", "heldout.domain": "d", "words": "w"}
    tags = texts | {"perplexity.after.general": "100", "perplexity.after.domain": "50"}
    versions = [champion.ModelVersion(k, "", [], t) for k, t in ((1, tags), (2, texts | changed))]
    found, reason = champion.judge_rival(*versions, margin=margin)
    assert found == is_better and why in reason


@pytest.mark.slow
def test_a_version_belongs_to_the_run_that_trained_it(inputs: Path) -> None:
    with start_run("finetune", PARAMS, inputs={}) as log:
        log.log_metrics({"after.domain.average": 100.0})
    alter(inputs, by=0.0, perplexity=100.0, run_id=log.run_id)
    run(inputs)
    (version,) = champion.list_versions("tiny")
    assert version.run_id == log.run_id
    trained = mlflow.MlflowClient().get_run(log.run_id).data.tags["mlflow.source.git.commit"]
    assert version.tags["commit"] == trained
    (logged,) = mlflow.MlflowClient().search_logged_models(["1"])
    assert logged.params["training.rows"] == "4"
    shown = {one.key: one.value for one in logged.metrics if one.key.startswith("perplexity")}
    compared = {f"perplexity.after.{text}": 100.0 for text in ("domain", "general")}
    assert shown == compared | {"perplexity.before.general": 100.0}
    assert {tag for tag in version.tags if tag.startswith("perplexity")} == {*compared}
    alter(inputs, by=0.1, perplexity=90.0, run_id="0" * 32)
    run(inputs)
    source = mlflow.MlflowClient().get_run(champion.list_versions("tiny")[0].run_id)
    assert source.data.tags["stage"] == "register", "the training run is in another registry"
    assert source.data.metrics["perplexity.after.domain"] == 90.0


def test_versions_are_compared_by_the_text_that_is_held_out_alone(tmp_path: Path) -> None:
    """Of two sentences the second is held out, or none is."""
    digests = []
    for number, words in enumerate(("ab", "cb", "ac", "ab")):
        sentences, every = [[word] for word in words], 2 * (number < 3)
        shards = write_shards(tmp_path / str(number), sentences, heldout_every=every)
        digests.append(register.heldout_digest(shards))
    assert digests[0] == digests[1] != digests[2] != "" and digests[3] == ""


def test_a_model_that_can_not_serve_its_example_is_refused(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(inputs)
    broken = inputs / "pyfunc.py"
    source = Path(pyfunc.__file__).read_text(encoding="utf-8")
    broken.write_text(source.replace("def load_context(self, context", "def load_context(self, c"))
    assert broken.read_text(encoding="utf-8") != source
    monkeypatch.setattr(pyfunc, "__file__", str(broken))
    with pytest.raises(ElmoError, match="model: MLflow can't serve this model"):
        run(inputs)
    assert champion.list_versions("tiny") == []
    (logged,) = mlflow.MlflowClient().search_logged_models(["1"])
    assert logged.status == "FAILED"
    assert not (inputs / "registered.json").exists()


def test_a_job_of_a_cluster_knows_the_commit_that_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`elmo submit` sends no folder of git."""
    here = origin.commit_tags()
    sent: dict[str, str] = {}

    class Stop(Exception):
        pass

    def keep(package: Path, variables: dict[str, str], **_: object) -> None:
        sent.update(variables)
        raise Stop

    monkeypatch.setattr(submit, "pack", keep)
    with pytest.raises(Stop):
        submit.submit(
            ["vocab"],
            address="http://127.0.0.1:1",
            folder="/shared/elmo",
            command=None,
            variables=[],
            params=Path("params.yaml"),
            say=print,
        )
    monkeypatch.chdir(tmp_path)
    assert origin.commit_tags() == {}
    monkeypatch.setenv(origin.COMMIT_VARIABLE, sent[origin.COMMIT_VARIABLE])
    assert origin.commit_tags() == here != {}


@pytest.mark.slow
def test_the_first_of_two_versions_wins(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process publishes the same content between our look and our version."""
    alter(inputs, by=0.0, perplexity=100.0)
    looks = []
    find = champion.find_version

    def late(name: str, digest: str) -> int | None:
        looks.append(name)
        return None if len(looks) == 2 else find(name, digest)

    run(inputs)
    monkeypatch.setattr(registry, "find_version", late)
    looks.append("the look of the stage itself")
    with start_run("register", PARAMS, inputs={}) as log:
        (before,) = champion.list_versions("tiny")
        tags = before.tags
        version, _ = registry.register(
            inputs / "model", name="tiny", margin=0.01, tags=tags, run_id=log.run_id
        )
    assert version == 1
    assert aliases() == {1: ["candidate", "champion"], 2: []}


def test_a_registered_model_is_loaded_by_its_name_and_its_signature_has_types(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(inputs)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run(inputs)
    assert os.environ["MLFLOW_EXPERIMENT_NAME"] == "mine"  # also after MLflow was told its id
    model = mlflow.pyfunc.load_model("models:/tiny@champion")
    signature = model.metadata.signature.to_dict()
    loaded = Embedder.from_pretrained("models:/tiny@champion")
    expected = Embedder.load(inputs / "model").encode("he has")
    np.testing.assert_array_equal(loaded.encode("he has"), expected)
    with pytest.raises(ElmoError, match="models:/tiny@nobody: the registry has no such model"):
        Embedder.from_pretrained("models:/tiny@nobody")
    assert "any" not in signature["inputs"] + signature["outputs"]
    assert [one["name"] for one in json.loads(signature["inputs"])] == ["text", "tokens"]


def test_a_login_of_the_stores_address_is_in_no_tag(inputs: Path) -> None:
    address = "memory://me:hunter2@bucket/store"
    settings = StoreSettings()
    places = {"shards": inputs / "shards", "model": inputs / "model", "work": inputs / "work"}
    build(address, settings=settings, **places)
    run(inputs, store=address)
    (version,) = champion.list_versions("tiny")
    assert "memory://bucket/store" in version.tags.values()
    assert "hunter2" not in str(version.tags)


def test_what_serving_needs_is_what_the_library_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (needed,) = re.findall(r"^dependencies = \[(.*)\]$", project, re.MULTILINE)
    assert sorted(served_model.LIBRARIES) == sorted(re.findall(r'"([\w-]+)', needed))
    cut = Tokenization("unicode", {"tokenizers": "0.20.1"}, "", "split", {"syntok": "1.4.4"})
    named = dict(line.split("==") for line in served_model.requirements(cut))
    assert named.keys() >= {"mlflow", "msgspec"}
    assert (named["tokenizers"], named["syntok"]) == ("0.20.1", "1.4.4")  # as the model records
