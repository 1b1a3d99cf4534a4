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

from elmo.tasks import seeds
from elmo.tasks.task import Task
from tests.elmo.tasks.test_task import labelled, taught
from tests.files import contents

SEEDS = [0, 1, 2]
ROOT = Path(__file__).resolve().parents[3]


def train(folder: Path, **options: Any) -> Path:
    data = labelled("tagging", 40), labelled("tagging", 12, 1)
    return taught("tagging", *data, folder, changes={"epochs": 3}, seeds=SEEDS, **options)


def seed_processes(pid: int | None = None) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # it has ended
            found += [process] * any("spawn_main" in word for word in process.cmdline())
    return found


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.parametrize("is_killed", [False, True])
def test_where_a_seed_is_trained_changes_nothing(
    is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of seed 1 trains it to the end, or is killed, and seed 1 is trained here."""
    alone = contents(train(tmp_path / "alone"))
    monkeypatch.setattr(seeds, "PROCESS_START_SECONDS", 0.0)
    torch.set_num_threads(2)
    reports: list[tuple[str, int]] = []
    work = tmp_path / "several" / "runs"

    def report(kind: str, figures: dict[str, float]) -> None:
        reports.append((kind, int(figures[kind])))
        if reports == [("seed", 0), ("epoch", 1), ("epoch", 2)]:
            (process,) = seed_processes()
            if is_killed:
                process.kill()
            wait_until(lambda: not seed_processes())
            assert len({path.parent for path in work.glob("*/epoch-*")}) == 2 - is_killed

    assert contents(train(tmp_path / "several", report=report)) == alone
    assert seed_processes() == []
    assert reports == [
        pair for seed in SEEDS for pair in (("seed", seed), *(("epoch", k) for k in (1, 2, 3)))
    ]
    Task.load(tmp_path / "several" / "task", seed=2)


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from elmo.nn.processes import helper_process
from elmo.tasks import seeds
from elmo.tasks.kinds import task_settings
from tests.elmo.tasks.test_seeds import slow_network

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    network = partial(slow_network, folder)
    folders = {0: folder / "0"}
    training = seeds.SeedTraining(network, [], [], None, task_settings("tagging", {}), folders)
    with helper_process(seeds._train_in_process, training, 0) as process:
        process.join()
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
        (process,) = seed_processes(starter.pid)
        state = Path(f"/proc/{process.pid}/status").read_text()
        blocked = int(state.partition("SigBlk:")[2].split()[0], 16)
        assert blocked & 1 << signal.SIGINT - 1
        if how == signal.SIGINT:
            os.killpg(starter.pid, how)
        else:
            starter.kill()
        _, said = starter.communicate(timeout=300)
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    finally:
        starter.kill()
    assert said.count(b"Traceback") == (how == signal.SIGINT)  # of the one that started it


def slow_network(folder: Path, *, seed: int) -> Any:
    (folder / "begun").touch()
    time.sleep(1000)
