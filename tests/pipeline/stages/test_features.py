"""The features stage: the same store from any number of actors, and after any number of kills."""

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from elmo.data.characters import Characters
from elmo.data.shards import write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.model.folder import save_model
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.verify import verify
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from pipeline.stages import features
from tests.elmo.run_job import NETWORK, random_bilm
from tests.files import contents
from tests.pipeline import here
from tests.pipeline.stage_runs import runs_of
from tests.small_disk import small_disk

pytestmark = pytest.mark.usefixtures("own_mlflow")
PARAMS = StoreSettings(row_group_tokens=256)
CONFIG = replace(NETWORK, filters=((1, 8), (3, 24)), cells=64, projection=32)
KILLS = int(os.environ.get("ELMO_TEST_KILLS", "2"))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and `shards`: eight shards of 40 sentences."""
    folder = tmp_path_factory.mktemp("given")
    bilm = random_bilm(CONFIG, 0.3)
    save_model(
        folder / "model",
        bilm=bilm,
        vocabulary=Vocabulary(["<S>", "</S>", "<UNK>"], None),
        characters=Characters(),
        softmax=None,
        training={"run_id": "r1"},
    )
    draw = random.Random(0)
    words = [f"w{k}" for k in range(100)]
    sentences = [draw.choices(words, k=draw.randrange(40)) for _ in range(320)]
    write_shards(folder / "shards", sentences, heldout_every=8, shard_sentences=40)
    return folder


@pytest.fixture(scope="module")
def expected(given: Path) -> dict[str, bytes]:
    """The files of the store, made here one part after another."""
    build(given / "expected", shards=given / "shards", model=given / "model", settings=PARAMS)
    return contents(given / "expected")


def run(given: Path, out: Path, actors: int) -> dict[str, float]:
    """The figures of the stage on `actors` actors."""
    return features.run(
        Location(given / "shards"),
        Location(given / "model"),
        Location(out),
        PARAMS,
        work=Location(out.parent / "runs"),
        cluster=Cluster(workers=0, cpus=1, gpu=False, actors=actors),
    )


@pytest.mark.ray
def test_the_same_bytes_from_1_and_3_actors(
    tmp_path: Path, given: Path, expected: dict[str, bytes]
) -> None:
    with workers.session():
        for actors in (1, 3):
            run(given, tmp_path / f"store{actors}", actors)
            assert contents(tmp_path / f"store{actors}") == expected
    assert not list((tmp_path / "runs").glob("*"))


DRIVER = """
    import sys, time
    from pathlib import Path
    from elmo.io.location import Location
    from elmo.store import build as store_build
    from pipeline.stages import features
    from pipeline.cluster import workers as cluster
    from pipeline.settings.cluster import Cluster
    from elmo.settings import StoreSettings

    class Slow(store_build.ShardEmbedder):
        def __call__(self, job):
            time.sleep(0.1)
            return super().__call__(job)

    store_build.ShardEmbedder = Slow
    given, out = Location(sys.argv[1]), Location(sys.argv[2])
    work = Location(Path(sys.argv[2]).parent / "runs")
    params = StoreSettings(row_group_tokens=256)
    with cluster.session():
        print("started", flush=True)
        features.run(
            given / "shards", given / "model", out, params, work=work,
            cluster=Cluster(workers=0, cpus=1, gpu=False, actors=2),
        )
"""


@pytest.mark.ray
def test_driver_and_actors_killed_at_random_instants_end_with_the_same_bytes(
    tmp_path: Path, given: Path, expected: dict[str, bytes]
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    command = [sys.executable, str(script), str(given), str(tmp_path / "store")]
    environment = {**os.environ, "PYTHONPATH": str(Path(features.__file__).parents[2])}
    draw = random.Random(time.time_ns())
    for _ in range(KILLS):
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(draw.uniform(0, 5))
            for actor in draw.sample(found := actors(process.pid), min(1, len(found))):
                os.kill(actor, signal.SIGKILL)
                time.sleep(draw.uniform(0, 2))
            process.kill()
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "store") == expected
    verify(tmp_path / "store")


def test_counts_are_the_metrics_and_the_model_is_named(
    tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cluster.workers.map_actors", here.map_actors)
    found = run(given, tmp_path / "store", 1)
    assert not list((tmp_path / "runs").glob("*"))
    assert found["sentences"] == 320
    assert found["parts"] == 8
    assert found["bytes"] == sum(p.stat().st_size for p in (tmp_path / "store").rglob("*-*.*"))
    store = FeatureStore(tmp_path / "store", model=given / "model")
    assert store.manifests[0].model.training == {}  # the run is no part of what a store is
    tags = runs_of("features")[0].data.tags
    assert tags["model_digest"] == store.model
    assert (tags["store"], tags["store_place"]) == (store.digest, str(tmp_path / "store"))


def actors(driver: int) -> list[int]:
    """The processes of a driver's actors."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            found += [process.pid] * any("ray::_Actor" in word for word in process.cmdline())
    return found


def test_a_store_that_can_not_fit_is_refused_before_the_work(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk of 256 kB."""
    monkeypatch.setattr(features, "LARGE_STORE_BYTES", 1)
    with small_disk(tmp_path / "disk", "256k") as disk:
        with pytest.raises(ElmoError) as refused:
            run(given, disk / "store", 1)
        assert os.listdir(disk) == []
    line = str(refused.value)
    assert re.search(r"store: [\d,]+ tokens need [\d.]+ [kM]B, but [\d.]+ kB is free", line)
    for way in ('features.layers to "top"', "corpus.domain", "storage"):
        assert way in line
