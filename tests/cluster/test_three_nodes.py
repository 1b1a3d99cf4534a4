"""The pipeline by submission on three isolated nodes against the pipeline on this machine alone.

Minutes long: `python -m pytest -m cluster tests/cluster`, as root.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.projects import ADDRESS, ROOT, digests, losses, project

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_by_submission_on_three_nodes_as_on_this_machine(
    make_nodes: Callable[[int], Any], tmp_path: Path
) -> None:
    nodes = make_nodes(3)
    nodes.start(1, cpus=0)
    for k in (2, 3):
        nodes.start(k, cpus=2)
    here = project(tmp_path / "here")
    own = nodes.environment | {"PYTHONPATH": str(ROOT), "TMPDIR": "/tmp"}
    own |= {"ELMO_CPUS": "1", "ELMO_ACTORS": "1"}  # this process, without Ray
    subprocess.run(["dvc", "init", "--no-scm", "-q"], cwd=here, env=own, check=True)
    embedded = subprocess.run(
        ["dvc", "repro", "features"], cwd=here, env=own, capture_output=True, text=True
    )
    assert embedded.returncode == 0, embedded.stdout[-3000:] + embedded.stderr[-3000:]

    shared = tmp_path / "shared"
    shared.mkdir()
    elmo = [sys.executable, "-m", "pipeline"]
    submitted = [*elmo, "submit", "features", "--address", ADDRESS, "--folder", str(shared)]
    done = nodes.run(1, *submitted, cwd=here, ELMO_WORKERS="1", ELMO_CPUS="1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "features: " in done.stdout
    expected = digests(here)
    assert len(expected) > 6
    assert digests(shared) == expected

    two = tmp_path / "two"
    two.mkdir()
    submitted[-1] = str(two)
    done = nodes.run(1, *submitted, cwd=here, ELMO_WORKERS="2", ELMO_CPUS="1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert losses(two) == pytest.approx(losses(here), rel=1e-4)


def test_a_node_that_lacks_the_shared_folder_is_named(
    make_nodes: Callable[[int], Any], tmp_path: Path
) -> None:
    nodes = make_nodes(3)
    shared = tmp_path / "shared"
    shared.mkdir()
    nodes.start(1, cpus=0)
    nodes.start(2, cpus=1)
    nodes.start(3, cpus=1, hide=[shared])
    here = project(tmp_path / "here")
    elmo = [sys.executable, "-m", "pipeline", "submit", "tokenize@general"]
    done = nodes.run(1, *elmo, "--address", ADDRESS, "--folder", str(shared), cwd=here)
    assert done.returncode != 0
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.match(r"error: node node3 \(10\.77\.0\.3\): .*/shared is not ", errors[0])


@pytest.mark.parametrize("how", ["lose", "cut_off", "preempt"])
def test_a_lost_node_and_a_stop(make_nodes: Callable[[int], Any], tmp_path: Path, how: str) -> None:
    """A node dies, no longer reaches the others, or is preempted, which is no restart that counts:
    training continues on another node, and a stop saves a checkpoint."""
    nodes = make_nodes(4)
    nodes.start(1, cpus=0)
    for k in (2, 3):
        nodes.start(k, cpus=1)
    here = project(tmp_path / "here")
    params = yaml.safe_load((here / "params.yaml").read_text())
    params["pretrain"]["training"] |= {"epochs": 10_000}
    (here / "params.yaml").write_text(yaml.safe_dump(params))
    shared = tmp_path / "shared"
    shared.mkdir()
    elmo = [sys.executable, "-m", "pipeline"]
    shell = ["bash", "-c", 'cd "$0" && exec "$@"', str(here)]
    submitted = [*elmo, "submit", "pretrain", "--address", ADDRESS, "--folder", str(shared)]
    two = {"ELMO_WORKERS": "2", "ELMO_CPUS": "1", "ELMO_RESTARTS": str(int(how != "preempt"))}
    command = nodes.on(1, *shell, *submitted, PYTHONPATH=str(ROOT), **two)
    log = (tmp_path / "log").open("w")
    running = subprocess.Popen(command, env=nodes.environment, stdout=log, stderr=log)
    await_line(tmp_path / "log", r"pretrain: .*step \d+, .*held-out", running)
    nodes.start(4, cpus=1)
    getattr(nodes, how)(3)
    step = await_line(tmp_path / "log", r"pretrain: resuming from step (\d+)", running)
    assert int(step) > 0
    job = await_line(tmp_path / "log", r"submitted (\S+) to", running)
    stopped = nodes.run(1, "ray", "job", "stop", job, "--address", ADDRESS)
    assert stopped.returncode == 0, stopped.stderr
    assert running.wait(120) == 1
    assert "stopping: saving a checkpoint" in (tmp_path / "log").read_text()
    kept = sorted((shared / "work").glob("pretrain/*/checkpoints/step-*"))
    assert kept and int(kept[-1].name.removeprefix("step-")) > int(step)


def await_line(log: Path, pattern: str, running: subprocess.Popen[bytes]) -> str:
    """Wait until the log holds the pattern; its group, if any."""
    while not (match := re.search(pattern, log.read_text())):
        assert running.poll() is None, log.read_text()[-4000:]
        time.sleep(0.5)
    return match[match.re.groups]
