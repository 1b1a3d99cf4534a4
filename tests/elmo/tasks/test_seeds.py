"""Seeds trained by several processes: the same bytes, and no process is left or waited for."""

import pickle
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from elmo.errors import ElmoError
from elmo.nn.threads import module_command
from elmo.tasks import seeds
from elmo.tasks.kinds import task_settings
from elmo.tasks.task import Task
from tests.elmo.tasks.test_task import contents, labelled, taught

SEEDS = [0, 1, 2]
ORDER = [("seed", 0), *[("epoch", k) for k in (1, 2, 3)]]


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a seed is, a second process helps."""
    monkeypatch.setattr(seeds, "START", 0.0)
    torch.set_num_threads(2)


def train(folder: Path, report: Callable[[str, dict[str, float]], None] | None = None) -> Path:
    several: dict[str, Any] = {"seeds": SEEDS} | ({"report": report} if report else {})
    data = labelled("tagging", 40), labelled("tagging", 12, 1)
    return taught("tagging", *data, folder, changes={"epochs": 3}, **several)


def own_helpers(pid: int | None = None) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # it has ended
            found += [one] * ("elmo.tasks.seeds" in one.cmdline())
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
    helped = 0

    def report(kind: str, figures: dict[str, float]) -> None:
        nonlocal helped
        heard.append((kind, int(figures[kind])))
        helped = max(helped, len(own_helpers()))

    assert contents(train(tmp_path / "helped", report)) == alone
    assert helped == 1 and own_helpers() == []
    assert heard == [(kind, k if kind == "epoch" else s) for s in SEEDS for kind, k in ORDER]
    Task.load(tmp_path / "helped" / "task", seed=2)


@pytest.mark.slow
@pytest.mark.hostile
def test_a_helper_that_ends_is_one_line_and_the_rest_is_kept(tmp_path: Path, helpers: None) -> None:
    """Each epoch is reported once, though the helper's wait for their turn when it ends."""
    heard: list[tuple[str, int]] = []

    def hear(kind: str, figures: dict[str, float]) -> None:
        if kind == "epoch" or figures["seed"] not in [k for what, k in heard if what == "seed"]:
            heard.append((kind, int(figures[kind])))

    def report(kind: str, figures: dict[str, float]) -> None:
        hear(kind, figures)
        if kind == "epoch":
            for helper in own_helpers():
                wait_until(lambda: len({p.parent for p in tmp_path.glob("runs/*/epoch-*")}) > 1)
                helper.kill()
                wait_until(lambda: not own_helpers())

    with pytest.raises(ElmoError, match=r"the process that trained seed 1 was killed \(signal 9\)"):
        train(tmp_path, report)
    assert own_helpers() == [] and not (tmp_path / "task").exists()
    found = contents(train(tmp_path, hear))
    assert found == contents(train(tmp_path / "whole"))
    assert heard == [(kind, k if kind == "epoch" else s) for s in SEEDS for kind, k in ORDER]


@pytest.mark.slow
@pytest.mark.hostile
def test_a_helper_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Whatever it is doing: the pipe is closed, by that process or by its end."""
    command, variables = module_command("elmo.tasks.seeds", threads=1)
    helper = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE)
    assert helper.stdin is not None
    network = partial(slow_network, tmp_path / "begun")
    folders, settings = {1: tmp_path / "work"}, task_settings("tagging", {})
    pickle.dump(seeds.SeedTraining(network, [], [], None, settings, folders), helper.stdin)
    helper.stdin.write(b"1\n")
    helper.stdin.flush()
    try:
        wait_until((tmp_path / "begun").exists)
        helper.stdin.close()
        assert helper.wait(30) == 0
    finally:
        helper.kill()


@pytest.mark.slow
def test_what_a_helper_refuses_is_raised(tmp_path: Path) -> None:
    folders = {seed: tmp_path for seed in SEEDS}
    training = seeds.SeedTraining(no_network, [], [], None, task_settings("tagging", {}), folders)
    reports = seeds._Reports([1], folders, lambda kind, figures: None)
    with seeds._Helper(training, deque([1]), reports), pytest.raises(KeyError, match="of seed 1"):
        reports.pass_on_rest()


def no_network(*, seed: int) -> Any:
    raise KeyError(f"there is no network of seed {seed}")


def slow_network(begun: Path, *, seed: int) -> Any:
    begun.touch()
    time.sleep(1000)
