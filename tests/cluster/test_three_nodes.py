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

from elmo.files import sha256

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
ADDRESS = "http://10.77.0.1:8265"
WORDS = "the cat sat on a mat while an old dog slept near the open door today".split()


def text(shift: int, documents: int) -> str:
    lines = []
    for k in range(documents):
        for j in range(4):
            words = [WORDS[(k * 3 + j + shift * m) % len(WORDS)] for m in range(5 + k % 6)]
            lines.append(" ".join(words) + " .")
        lines.append("")
    return "\n".join(lines) + "\n"


def project(folder: Path) -> Path:
    """The project's own graph with a small corpus and a tiny network."""
    folder.mkdir()
    (folder / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    general, task = folder.parent / "general.txt", folder.parent / "task.txt"
    general.write_text(text(1, 120))
    task.write_text(text(2, 80))
    params["corpus"] |= {"general": [str(general)], "task": [str(task)]}
    params["tokenize"] |= {"sentences": "line", "heldout": 0.2, "shard_bytes": 4096}
    params["pretrain"]["network"] |= {
        "char_dim": 4,
        "filters": [[1, 4], [2, 8]],
        "cells": 16,
        "projection": 8,
    }
    for stage in ("pretrain", "finetune"):
        params[stage]["training"] |= {"rows": 8, "window": 8, "samples": 16, "evaluate_every": 10}
        params[stage]["training"] |= {"epochs": 2, "block_sentences": 4}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def digests(folder: Path) -> dict[str, str]:
    """What must not depend on where the work was done; a store's manifest names its run."""
    names = ["models/pretrain/weights.safetensors", "models/finetune/weights.safetensors"]
    found = [folder / name for name in names]
    found += sorted((folder / "data" / "features").glob("*.parquet"))
    found += sorted((folder / "data" / "shards").rglob("*.arrow"))
    return {str(path.relative_to(folder)): sha256(path) for path in found if path.is_file()}


def losses(folder: Path) -> list[float]:
    rows = (folder / "curves" / "pretrain" / "train.tsv").read_text().splitlines()
    column = rows[0].split("\t").index("perplexity")
    return [float(row.split("\t")[column]) for row in rows[1:]]


def test_by_submission_on_three_nodes_as_on_this_machine(
    make_nodes: Callable[[int], Any], tmp_path: Path
) -> None:
    nodes = make_nodes(3)
    nodes.start(1, cpus=0)
    for k in (2, 3):
        nodes.start(k, cpus=2)
    nodes.await_nodes(3)
    here = project(tmp_path / "here")
    own = nodes.environment | {"PYTHONPATH": str(ROOT), "TMPDIR": "/tmp", "ELMO_CPUS": "1"}
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
    nodes.await_nodes(3)
    here = project(tmp_path / "here")
    elmo = [sys.executable, "-m", "pipeline", "submit", "tokenize@general"]
    done = nodes.run(1, *elmo, "--address", ADDRESS, "--folder", str(shared), cwd=here)
    assert done.returncode != 0
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.match(r"error: node node3 \(10\.77\.0\.3\): .*shared", errors[0])


def test_a_lost_node_and_a_stop(make_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    """Training goes on with the worker that is left, and a stop saves what it has."""
    nodes = make_nodes(3)
    nodes.start(1, cpus=0)
    for k in (2, 3):
        nodes.start(k, cpus=1)
    nodes.await_nodes(3)
    here = project(tmp_path / "here")
    params = yaml.safe_load((here / "params.yaml").read_text())
    params["pretrain"]["training"] |= {"epochs": 10_000}
    (here / "params.yaml").write_text(yaml.safe_dump(params))
    shared = tmp_path / "shared"
    shared.mkdir()
    elmo = [sys.executable, "-m", "pipeline"]
    shell = ["bash", "-c", 'cd "$0" && exec "$@"', str(here)]
    submitted = [*elmo, "submit", "pretrain", "--address", ADDRESS, "--folder", str(shared)]
    few = {"ELMO_WORKERS": "1", "ELMO_MAX_WORKERS": "2", "ELMO_CPUS": "1"}
    command = nodes.on(1, *shell, *submitted, PYTHONPATH=str(ROOT), **few)
    log = (tmp_path / "log").open("w")
    running = subprocess.Popen(command, env=nodes.environment, stdout=log, stderr=log)
    await_line(tmp_path / "log", r"pretrain: step \d+, held-out", running)
    nodes.lose(3)
    await_line(tmp_path / "log", r"worker \d on node3 lost: ", running)
    step = await_line(tmp_path / "log", r"pretrain: resuming from step (\d+)", running)
    assert int(step) > 0
    job = await_line(tmp_path / "log", r"submitted (\S+) to", running)
    stopped = nodes.run(1, *elmo, "stop", job, "--address", ADDRESS)
    assert stopped.returncode == 0 and f"{job}: STOPPED" in stopped.stderr
    assert running.wait(120) == 1
    assert "stopping: saving a checkpoint" in (tmp_path / "log").read_text()
    kept = sorted((shared / "runs").glob("pretrain/*/checkpoints/step-*"))
    assert kept and int(kept[-1].name.removeprefix("step-")) > int(step)


def await_line(log: Path, pattern: str, running: subprocess.Popen[bytes]) -> str:
    """Wait until the log holds the pattern; its group, if any."""
    while not (match := re.search(pattern, log.read_text())):
        assert running.poll() is None, log.read_text()[-4000:]
        time.sleep(0.5)
    return match[match.re.groups]
