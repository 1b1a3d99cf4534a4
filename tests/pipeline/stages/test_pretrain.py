"""pretrain under Ray Train: a model folder, its curves, its lineage, and never twice."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
import torch

from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.tokenizer import NO_TOKENIZER, Tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.model.folder import load_model
from elmo.settings import NetworkSettings
from elmo.train.checkpoints import CheckpointFolder
from elmo.train.perplexity import perplexity
from pipeline.settings.cluster import Cluster
from pipeline.settings.fingerprint import fingerprint
from pipeline.settings.params import PretrainSettings
from pipeline.stages import live, pretrain
from tests.elmo.conftest import save_tiny_model
from tests.elmo.run_job import NETWORK, TRAINING, WORDS, sentences
from tests.files import contents
from tests.pipeline.mlflow_process import MlflowServer

pytestmark = pytest.mark.usefixtures("own_mlflow")
HERE = Cluster(workers=0, cpus=1, gpu=False, actors=1)
SHAPE = {name: value for name, value in asdict(NETWORK).items() if name != "input_words"}
PARAMS = PretrainSettings(NetworkSettings(**SHAPE), TRAINING)
COUNTS = [120, 120, 1, *[30] * 16]


@pytest.fixture(scope="module")
def inputs(own_mlflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def make_inputs(folder: Path, *, tokenizer: Tokenization = NO_TOKENIZER) -> Path:
    """Write `shards` and `vocab` in a folder, and return it."""
    how = {"heldout_every": 7, "shard_sentences": 30, "tokenizer": tokenizer}
    write_shards(folder / "shards", sentences(140), **how)
    (folder / "vocab").mkdir()
    Vocabulary(WORDS, COUNTS).save(folder / "vocab")
    Characters().save(folder / "vocab" / "characters.json")
    return folder


def test_a_trained_model_is_taken_as_it_is(inputs: Path, tmp_path: Path) -> None:
    """Equal files, so equal vectors; only its perplexity on the text is measured."""
    given = tmp_path / "given"
    save_tiny_model(given, tokenizer=NO_TOKENIZER)
    metrics = run(inputs, tmp_path, replace(PARAMS, model=str(given)))
    assert contents(tmp_path / "model") == contents(given)
    heldout = [s for k, s in enumerate(sentences(140)) if k % 7 == 6]
    measured = perplexity(load_model(given), heldout).average
    assert metrics["heldout_perplexity"] == measured and "steps" not in metrics
    assert (tmp_path / "curves" / "train.tsv").read_text().count("\n") == 1


def test_a_model_of_another_tokenizer_is_refused(inputs: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "given")
    shutil.copytree(inputs / "vocab", tmp_path / "vocab")
    write_shards(tmp_path / "shards", sentences(20), tokenizer=Tokenization("unicode"))
    with pytest.raises(ElmoError, match="whitespace"):
        run(tmp_path, tmp_path, replace(PARAMS, model=str(tmp_path / "given")))
    assert not (tmp_path / "model").exists()


def run(
    inputs: Path, out: Path, params: PretrainSettings = PARAMS, cluster: Cluster = HERE
) -> dict[str, float]:
    return pretrain.run(
        Location(inputs / "shards"),
        Location(inputs / "vocab"),
        Location(out / "model"),
        params,
        curves=out / "curves",
        work=Location(out / "runs"),
        cluster=cluster,
    )


@pytest.fixture(scope="module")
def trained(inputs: Path) -> tuple[Path, dict[str, float]]:
    """The folder of a run, and its metrics."""
    return inputs / "trained", run(inputs, inputs / "trained")


@pytest.mark.slow
def test_it_writes_a_model_its_curves_and_its_lineage(
    inputs: Path, trained: tuple[Path, dict[str, float]]
) -> None:
    folder, metrics = trained
    model = load_model(folder / "model")
    assert model.vocabulary.words == WORDS and model.softmax is not None
    lineage = model.training
    assert lineage["stage"] == "pretrain" and lineage["run_id"]
    assert lineage["inputs"]["corpus"] == Shards(inputs / "shards").digest
    assert lineage["params"] == json.loads(json.dumps(asdict(PARAMS)))
    assert lineage["perplexity"]["after"]["general"]["average"] == metrics["heldout_perplexity"]
    assert not list((folder / "runs" / "pretrain").glob("*"))  # no work in progress is left
    for name in ("train.tsv", "heldout.tsv"):
        header, *lines = (folder / "curves" / name).read_text().splitlines()
        assert lines and all(line.count("\t") == header.count("\t") for line in lines)
    assert metrics["times_below_unigram"] == (
        metrics["unigram_perplexity"] / metrics["heldout_perplexity"]
    )
    assert metrics["tokens_seen"] == 2 * sum(
        len(s) + 1 for k, s in enumerate(sentences(140)) if k % 7 != 6 and s
    )


@pytest.mark.slow
def test_the_perplexity_it_reports_is_that_of_the_model_it_writes(
    trained: tuple[Path, dict[str, float]],
) -> None:
    folder, metrics = trained
    heldout = [s for k, s in enumerate(sentences(140)) if k % 7 == 6]
    found = perplexity(load_model(folder / "model"), heldout)
    assert found.forward == pytest.approx(metrics["heldout_forward"], rel=1e-4)
    assert found.backward == pytest.approx(metrics["heldout_backward"], rel=1e-4)
    assert found.unigram == pytest.approx(metrics["unigram_perplexity"], rel=1e-6)
    assert found.tokens == metrics["heldout_tokens"]


@pytest.mark.slow
def test_mlflow_has_the_whole_curve_once_though_its_server_was_down(
    inputs: Path, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down when training is interrupted, and again in the middle of the second start."""
    database = tmp_path / "mlflow.db"
    database.write_bytes(empty_database.read_bytes())
    server = MlflowServer(database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    tell = live.ReportWriter.__call__

    def hear(live: Any, kind: str, figures: dict[str, float]) -> None:
        tell(live, kind, figures)
        if kind == "train" and figures["step"] in (20, 40, 50, 70):
            time.sleep(1)  # the driver has read it
            if figures["step"] in (20, 50):
                server.kill()
            if figures["step"] == 70:
                server.start()
            if figures["step"] == 40 and not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt

    interrupted: list[bool] = []
    monkeypatch.setattr(live.ReportWriter, "__call__", hear)
    params = replace(PARAMS, training=replace(TRAINING, epochs=10))
    try:
        server.start()
        with pytest.raises(KeyboardInterrupt):
            run(inputs, tmp_path, params, replace(HERE, checkpoint_minutes=0.001))
        server.start()
        run(inputs, tmp_path, params)
        client = mlflow.MlflowClient(server.uri)
        (one,) = client.search_runs(["1"], "tags.stage = 'pretrain'")
        for kind, name in (("train", "perplexity"), ("heldout", "average")):
            with (tmp_path / "curves" / f"{kind}.tsv").open(newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t"))
            found = client.get_metric_history(one.info.run_id, f"{kind}.{name}")
            assert sorted(figure.step for figure in found) == [int(row["step"]) for row in rows]
            by_step = {figure.step: figure.value for figure in found}
            for row in rows:
                assert by_step[int(row["step"])] == pytest.approx(float(row[name]), rel=1e-9)
        assert one.info.status == "FINISHED" and len(rows) > 1
    finally:
        server.kill()


def work_folder(inputs: Path, out: Path, params: PretrainSettings = PARAMS) -> Path:
    """Where a run keeps its work in progress."""
    digests = {
        "corpus": Shards(inputs / "shards").digest,
        "vocabulary": pretrain.vocabulary_digest(Location(inputs / "vocab")),
    }
    key = fingerprint("pretrain", pretrain.STAGE.version, params, digests)
    return out / "runs" / "pretrain" / key


@pytest.mark.slow
def test_what_a_killed_start_left_stops_nothing_and_is_swept(inputs: Path, tmp_path: Path) -> None:
    folder = work_folder(inputs, tmp_path)
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("stop", "stop-0123abcd", ".live.json.0123abcd"):
        (folder / name).touch()
    for path in (tmp_path / ".model.0123abcd", tmp_path / ".curves.0123abcd"):
        path.mkdir()
    assert run(inputs, tmp_path)["steps"] > 10
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model", "curves", "runs"}


@pytest.mark.ray
def test_two_workers_take_the_same_steps_also_if_one_is_lost(
    inputs: Path,
    trained: tuple[Path, dict[str, float]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is killed after the first checkpoint; Ray Train restarts both, which resume from there."""
    folder, expected = trained
    two = Cluster(workers=2, cpus=1, gpu=False, actors=1, checkpoint_minutes=1e-6)

    def kill_worker() -> None:
        while not list(tmp_path.glob("runs/*/*/checkpoints/step-*")):
            time.sleep(0.01)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[0].startswith("ray::RayTrainWorker"):
                    process.kill()
                    return

    threading.Thread(target=kill_worker, daemon=True).start()
    metrics = run(inputs, tmp_path, cluster=two)
    assert re.search(r"pretrain: resuming from step [1-9]", capfd.readouterr().err)
    weights = load_model(folder / "model").bilm.state_dict()
    for name, value in load_model(tmp_path / "model").bilm.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=2e-3, atol=2e-4)
    for name in ("heldout_perplexity", "heldout_tokens"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-3)


@pytest.mark.ray
def test_what_a_worker_refuses_is_said_once_in_one_line(inputs: Path, tmp_path: Path) -> None:
    wild = replace(TRAINING, optimizer=replace(TRAINING.optimizer, lr=1e6, clip=0.0))
    two = Cluster(workers=2, cpus=1, gpu=False, actors=1)
    with pytest.raises(ElmoError, match=r"^training diverged .* lower optimizer\.lr"):
        run(inputs, tmp_path, replace(PARAMS, training=wild), two)


@pytest.mark.ray
def test_a_signal_reaches_the_workers_who_save_and_stop(inputs: Path, tmp_path: Path) -> None:
    two = Cluster(workers=2, cpus=1, gpu=False, actors=1)
    rarely = replace(TRAINING, epochs=20, evaluate_every=10_000)
    longer = replace(PARAMS, training=rarely)

    def terminate() -> None:
        while not list(tmp_path.glob("cut/runs/*/*/live.json")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path / "cut", longer, cluster=two)
    (folder,) = tmp_path.glob("cut/runs/*/*/checkpoints")
    assert CheckpointFolder(Location(folder), keep=1).steps()
    resumed = run(inputs, tmp_path / "cut", longer)
    whole = run(inputs, tmp_path / "whole", longer)
    assert resumed["steps"] == whole["steps"]
    assert resumed["heldout_perplexity"] == pytest.approx(whole["heldout_perplexity"], rel=2e-2)
