"""Ray: results in order, errors as they were, deaths survived, a cluster by its address."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elmo.errors import ElmoError
from pipeline.cluster import workers as cluster
from pipeline.settings.cluster import Cluster
from tests.pipeline.cluster.fitting import fit

HERE = Cluster(workers=0, cpus=1, gpu=False, actors=2)
pytestmark = pytest.mark.ray


def square(x: int) -> int:
    return x * x


def refuse(x: int) -> int:
    if x == 2:
        raise ElmoError("file.txt:7: bad")
    return x


class Doubler:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, x: int) -> int:
        died = self.folder / "died"
        if x == 3 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * x


@pytest.fixture(scope="module", autouse=True)
def one_session() -> Iterator[None]:
    """One Ray for all tests of this file."""
    with cluster.session():
        yield


def test_results_come_in_the_order_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        found = cluster.map_tasks(square, range(9), cluster=HERE, label="square")
        assert list(found) == [x * x for x in range(9)]
        last_first = lambda make, given, items, **_: map(make(*given), [*items][::-1])  # noqa: E731
        monkeypatch.setattr(cluster, "map_actors", last_first)


def test_an_error_is_raised_as_it_was() -> None:
    with pytest.raises(ElmoError, match=r"file\.txt:7: bad"):
        list(cluster.map_tasks(refuse, range(5), cluster=HERE, label="refuse"))


def test_an_actor_that_dies_is_replaced_and_its_item_done_again(tmp_path: Path) -> None:
    found = cluster.map_actors(Doubler, [tmp_path], range(6), cluster=HERE, label="double")
    assert sorted(found) == [0, 2, 4, 6, 8, 10]
    assert (tmp_path / "died").exists()


def test_nothing_to_do_is_no_work() -> None:
    assert list(cluster.map_tasks(square, [], cluster=HERE, label="none")) == []
    assert list(cluster.map_actors(Doubler, [Path()], [], cluster=HERE, label="none")) == []


def test_a_cluster_that_would_not_train_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ElmoError, match="and workers is 0"):
        fit(tmp_path, HERE)


def test_without_gpu_the_device_is_the_processor_even_where_cuda_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray.train.torch

    class One:
        get_world_rank = get_world_size = staticmethod(lambda: 0)

    monkeypatch.setattr("ray.train.get_context", One)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: "cuda:0")
    for gpu, device in ((False, "cpu"), (True, "cuda:0")):
        loop = lambda config, rank, size, device: (config, device)  # noqa: E731
        entry = cluster._worker_loop(loop, {"a": 1}, gpu=gpu)
        assert entry() == ({"a": 1}, device)


def test_ray_train_is_not_given_the_config_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps and shows what it is given, and the config may hold an address with a login."""
    given: dict[str, object] = {}

    class Trainer:
        def __init__(self, loop: object, **options: object) -> None:
            given.update(options)

        def fit(self) -> SimpleNamespace:
            return SimpleNamespace(return_value=7)

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    config = {"uri": "https://user:hunter2@tracking"}
    assert fit(tmp_path, Cluster(workers=1, cpus=1), config=config) == 7
    assert given and "hunter2" not in repr(given)


def test_two_signals_of_one_stop_let_the_training_save(
    tmp_path: Path, terminal_signals: None
) -> None:
    """Ray signals every process of a job, and `elmo run` passes its own signal on."""
    stop = tmp_path / "stop"

    def train() -> str:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        while not stop.exists():
            time.sleep(0.01)
        return "saved"

    assert cluster._call_stoppable(train, stop) == "saved"
