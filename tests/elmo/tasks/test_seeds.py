"""Seeds trained by several processes: the same bytes, and no process is left or waited for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from elmo.errors import ElmoError
from elmo.tasks import seeds
from elmo.tasks.kinds import task_settings
from elmo.tasks.task import Task
from tests.elmo.tasks.test_task import contents, labelled, taught

SEEDS = [0, 1, 2]
ORDER = [("seed", 0), *[("epoch", k) for k in (1, 2, 3)]]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a seed is, a second process helps."""
    monkeypatch.setattr(seeds, "START", 0.0)
    torch.set_num_threads(2)


def train(folder: Path, report: Callable[[str, dict[str, float]], None] | None = None) -> Path:
    several: dict[str, Any] = {"seeds": SEEDS} | ({"report": report} if report else {})
    data = labelled("tagging", 40), labelled("tagging", 12, 1)
    return taught("tagging", *data, folder, changes={"epochs": 3}, **several)


def pool_processes(pid: int | None = None) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # it has ended
            found += [one] * any("spawn_main" in word for word in one.cmdline())
    return found


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_where_a_seed_is_trained_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = contents(train(tmp_path / "alone"))
    monkeypatch.setattr(seeds, "START", 0.0)
    torch.set_num_threads(2)
    heard: list[tuple[str, int]] = []
    most = 0

    def report(kind: str, figures: dict[str, float]) -> None:
        nonlocal most
        heard.append((kind, int(figures[kind])))
        most = max(most, len(pool_processes()))

    assert contents(train(tmp_path / "several", report)) == alone
    assert 1 <= most <= 2 and pool_processes() == []
    assert heard == [(kind, k if kind == "epoch" else s) for s in SEEDS for kind, k in ORDER]
    Task.load(tmp_path / "several" / "task", seed=2)


@pytest.mark.slow
@pytest.mark.hostile
def test_a_process_that_ends_is_one_line_and_the_rest_is_kept(
    tmp_path: Path, side_by_side: None
) -> None:
    """Each epoch is reported once, though the others wait for their turn when it ends."""
    heard: list[tuple[str, int]] = []

    def hear(kind: str, figures: dict[str, float]) -> None:
        if kind == "epoch" or figures["seed"] not in [k for what, k in heard if what == "seed"]:
            heard.append((kind, int(figures[kind])))

    def report(kind: str, figures: dict[str, float]) -> None:
        hear(kind, figures)
        if kind == "epoch":
            for process in pool_processes():
                wait_until(lambda: len({p.parent for p in tmp_path.glob("runs/*/epoch-*")}) > 1)
                process.kill()
                wait_until(lambda: not pool_processes())

    with pytest.raises(ElmoError, match="has ended.*OMP_NUM_THREADS=1"):
        train(tmp_path, report)
    assert pool_processes() == [] and not (tmp_path / "task").exists()
    found = contents(train(tmp_path, hear))
    assert found == contents(train(tmp_path / "whole"))
    assert heard == [(kind, k if kind == "epoch" else s) for s in SEEDS for kind, k in ORDER]


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from elmo.tasks import seeds
from elmo.tasks.kinds import task_settings
from tests.elmo.tasks.test_seeds import slow_network

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    network = partial(slow_network, folder)
    folders = {0: folder / "0"}
    training = seeds.SeedTraining(network, [], [], None, task_settings("tagging", {}), folders)
    with seeds._process_pool(training, 2) as pool:
        with seeds._interruptions_blocked():
            future = pool.submit(seeds._train_here, 0)
        future.result()
"""


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path, how: signal.Signals) -> None:
    """By Ctrl-C, which all processes of a terminal get, and where that one is killed."""
    (tmp_path / "script.py").write_text(SCRIPT)
    starter = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        # As from a terminal: the tests themselves may run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until((tmp_path / "begun").exists)
        (process,) = pool_processes(starter.pid)
        if how == signal.SIGINT:
            os.killpg(starter.pid, how)
        else:
            starter.kill()
        _, said = starter.communicate(timeout=300)
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    finally:
        starter.kill()
    assert said.count(b"Traceback") == (how == signal.SIGINT)  # of the one that started it


@pytest.mark.slow
def test_what_another_process_refuses_is_raised(tmp_path: Path, side_by_side: None) -> None:
    folders = {seed: tmp_path / str(seed) for seed in SEEDS}
    settings = task_settings("tagging", {"epochs": 3})
    training = seeds.SeedTraining(no_network, [], [], None, settings, folders)
    with seeds._process_pool(training, 1) as pool, pytest.raises(KeyError, match="of seed 1"):
        seeds._follow(pool.submit(seeds._train_here, 1), folders[1], print)


def no_network(*, seed: int) -> Any:
    raise KeyError(f"there is no network of seed {seed}")


def slow_network(folder: Path, *, seed: int) -> Any:
    (folder / "begun").touch()
    time.sleep(1000)
