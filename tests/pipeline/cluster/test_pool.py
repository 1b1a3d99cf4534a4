"""Pools on a Ray with pretended GPUs: as many actors as can be placed; retries and waits end."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import ElmoError
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from tests.pipeline.cluster.fitting import fit

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def sixteen_cores_and_two_gpus() -> Iterator[Any]:
    workers._set_ray_defaults()
    import ray

    ray.init(
        address="local",
        num_cpus=16,
        num_gpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield ray
    ray.shutdown()


class Process:
    """Says which process works, once as many as are expected do: one may start late."""

    def __init__(self, folder: str, expected: int) -> None:
        self.folder, self.expected = Path(folder), expected

    def __call__(self, item: int) -> int:
        (self.folder / str(os.getpid())).touch()
        until = time.monotonic() + 60
        while len(list(self.folder.iterdir())) < self.expected and time.monotonic() < until:
            time.sleep(0.05)
        return item


class Poisoned:
    def __call__(self, item: str) -> str:
        if item == "bad.arrow":
            os.kill(os.getpid(), signal.SIGKILL)
        return item


class Unmakeable:
    def __init__(self) -> None:
        raise ElmoError("model: no such model folder")


def die(item: int) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("actors", [0, 6])
def test_two_gpus_make_two_actors_whatever_the_cores(tmp_path: Path, actors: int) -> None:
    """More that are asked for than can be placed hold up nothing."""
    here, given = Cluster(gpu=True, actors=actors), [str(tmp_path), 2]
    found = list(workers.map_actors(Process, given, range(8), cluster=here, label="features"))
    assert sorted(found) == list(range(8))
    assert len(list(tmp_path.iterdir())) == 2


def describe(what: str) -> tuple[str, bool, str, str]:
    """Return what a task sees of where it runs."""
    if not what:
        raise ElmoError("a.tsv:7: bad")
    return what, os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1"), os.getcwd(), os.environ["ELMO_X"]


def test_a_task_is_trained_where_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the project's folder, with the settings; an error there is raised here as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMO_X", "y")
    here = Cluster(cpus=1, gpu=True)
    found = workers.call_on_gpu(describe, "tags", cluster=here, label="tasks")
    assert found == ("tags", True, str(tmp_path), "y")
    with pytest.raises(ElmoError, match=r"^a\.tsv:7: bad$"):
        workers.call_on_gpu(describe, "", cluster=here, label="tasks")


def test_training_that_has_no_room_here_is_refused_at_once(tmp_path: Path) -> None:
    here = Cluster(workers=3, cpus=1, gpu=True)
    with pytest.raises(ElmoError) as caught:
        fit(tmp_path, here)
    assert str(caught.value) == (
        "train: 3 workers need 3 × 1 cores and 1 GPU, but there are 16 cores and 2 GPUs, 16 "
        "and 2 of them free; lower workers or cpus"
    )


def test_what_others_hold_is_no_room_and_the_wait_for_it_ends(
    sixteen_cores_and_two_gpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = sixteen_cores_and_two_gpus
    others = ray.util.placement_group([{"CPU": 16}])
    assert others.wait(60)
    here = Cluster(workers=2, cpus=1, wait_minutes=0.2)
    try:
        with pytest.raises(ElmoError, match="train: waited 0:12 for 2 × 1 cores.* 0 and 2 of them"):
            fit(tmp_path, here)
        with pytest.raises(
            ElmoError, match=r"count: waited 0:12 for a core.* 0 and 2 of them free"
        ):
            list(workers.map_tasks(die, range(4), cluster=here, label="count"))
    finally:
        ray.util.remove_placement_group(others)
    assert re.search("train: .*2 × 1 cores.* 16 cores and 2 GPUs, 0 ", capsys.readouterr().err)


def test_a_wait_ends_too_when_others_take_the_cores_before_ray_train_does(
    sixteen_cores_and_two_gpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another training may, whose wait ends at the same time."""
    ray, others = sixteen_cores_and_two_gpus, []
    stoppable = workers._call_stoppable

    def take_all(*given: Any) -> Any:
        others.append(ray.util.placement_group([{"CPU": 16}]))
        assert others[0].wait(60)
        return stoppable(*given)

    monkeypatch.setattr(workers, "_call_stoppable", take_all)
    here = Cluster(workers=2, cpus=1, wait_minutes=0.2)
    with pytest.raises(ElmoError, match="train: its workers did not start"):
        fit(tmp_path, here)
    ray.util.remove_placement_group(others[0])


def test_an_item_that_ends_every_worker_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    items = ["a.arrow", "bad.arrow", "c.arrow"]
    here = Cluster(actors=2)
    with pytest.raises(ElmoError, match=r"features: bad\.arrow crashed its worker 4 times"):
        list(workers.map_actors(Poisoned, [], items, cluster=here, label="features", name_of=str))
    assert "features: bad.arrow: its worker died " in capsys.readouterr().err
    with pytest.raises(ElmoError, match=r"count: 2 crashed its worker 4 times"):
        list(workers.map_tasks(die, range(4), cluster=here, label="count"))


def test_an_actor_that_cant_be_made_says_why() -> None:
    with pytest.raises(ElmoError, match="^model: no such model folder$"):
        list(workers.map_actors(Unmakeable, [], range(4), cluster=Cluster(), label="features"))
