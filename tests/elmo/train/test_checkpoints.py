"""An interrupted run ends as if it never was, on any number of workers; the best is kept."""

import json
import os
import random
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from elmo.errors import ElmoError, Mismatch
from elmo.io.location import Location
from elmo.train.checkpoints import Checkpoint, CheckpointFolder, TrainingProgress
from elmo.train.loop import fit, heldout_perplexity
from elmo.train.perplexity import PerplexityEvaluator
from elmo.train.step import WorkerGroup
from tests.elmo import run_job
from tests.elmo.run_job import make_job, weights
from tests.elmo.watching import Watching
from tests.files import flip
from tests.forked import finish, forked
from tests.programs import python

ALONE = WorkerGroup()
RISING = {"lr": 1.0, "warmup_steps": 100}  # it gets worse in the end: the last is not the best
EVERY_STEP = {"minutes": 0, "epochs": 3}


class Heard:
    """What a loop reported; may act at a step."""

    def __init__(self, at: int = -1, act: Any = None) -> None:
        self.train: list[dict[str, float]] = []
        self.heldout: list[dict[str, float]] = []
        self.machine: list[dict[str, float]] = []
        self.at, self.act = at, act

    def __call__(self, kind: str, figures: dict[str, float]) -> None:
        getattr(self, kind).append(figures)
        if figures["step"] == self.at and self.act is not None:
            self.act()


def run(folder: Path, **changes: Any) -> dict[str, Tensor]:
    job = make_job(folder, **changes)
    fit(job, workers=ALONE, report=Heard())
    return weights(job)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


def curves(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "job").glob("*.tsv")}


def processes(folder: Path, size: int, changes: dict[str, Any], stop_at: int = -1) -> list[Any]:
    """Workers of one job, started."""
    (folder / "meeting").unlink(missing_ok=True)
    return [forked(run_job.main, folder, rank, size, changes, stop_at) for rank in range(size)]


def finished(folder: Path, size: int, changes: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that a run of `size` processes ends with."""
    finish(processes(folder, size, changes))
    return load_file(folder / "end.safetensors")


@pytest.mark.slow
def test_bfloat16_trains_nearly_as_float32_and_keeps_float32_weights(tmp_path: Path) -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        heard = Heard()
        job = make_job(tmp_path / precision, precision=precision, epochs=6)
        fit(job, workers=ALONE, report=heard)
        found.append([figures["perplexity"] for figures in heard.train])
        assert {tensor.dtype for tensor in weights(job).values()} == {torch.float32}
    for exact, near in zip(*found, strict=True):
        assert abs(near / exact - 1) < 0.05


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_a_signal_saves_and_the_next_run_ends_as_one_never_stopped(
    tmp_path: Path, number: signal.Signals, terminal_signals: None
) -> None:
    whole = run(tmp_path / "whole")
    job = make_job(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        fit(job, workers=ALONE, report=Heard(10, lambda: os.kill(os.getpid(), number)))
    assert CheckpointFolder(job.folder / "checkpoints", keep=2).steps() == [10]
    assert same(run(tmp_path / "cut"), whole)
    assert curves(tmp_path / "cut") == curves(tmp_path / "whole")


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.slow
def test_a_signal_ends_an_evaluation_and_the_next_run_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    whole = run(tmp_path / "whole")
    evaluations = curves(tmp_path / "whole")["heldout.tsv"].splitlines()[1:]
    at = int(evaluations[which].split("\t")[0])
    job = make_job(tmp_path / "cut")
    before = iter(evaluations)
    perplexity = PerplexityEvaluator.perplexity

    def stopped(*given: Any, **named: Any) -> Any:
        if next(before) == evaluations[which]:
            os.kill(os.getpid(), signal.SIGTERM)
        return perplexity(*given, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PerplexityEvaluator, "perplexity", stopped)
        fit(job, workers=ALONE, report=Heard())
    assert CheckpointFolder(job.folder / "checkpoints", keep=2).steps()[-1] == at
    assert evaluations[which] not in curves(tmp_path / "cut")["heldout.tsv"]
    assert same(run(tmp_path / "cut"), whole)
    assert curves(tmp_path / "cut") == curves(tmp_path / "whole")


def _newest(folder: Path) -> str:
    return max((p.name for p in (folder / "job" / "checkpoints").glob("step-*")), default="")


@pytest.mark.slow
def test_killed_at_any_instant_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole", 1, EVERY_STEP)
    folder = tmp_path / "killed"
    draw = random.Random(0)
    for _ in range(10):
        before = _newest(folder)
        (worker,) = processes(folder, 1, EVERY_STEP)
        while worker.is_alive():
            if _newest(folder) > before:  # it trains: not killed while it starts
                time.sleep(draw.random() * 0.05)
                break
            time.sleep(0.001)
        worker.kill()
        worker.join()
    assert same(finished(folder, 1, EVERY_STEP), whole)
    assert (folder / "end.safetensors").read_bytes() == (
        tmp_path / "whole" / "end.safetensors"
    ).read_bytes()
    assert curves(folder) == curves(tmp_path / "whole")


def numbers(folder: Path, name: str) -> list[list[float]]:
    return [[float(x) for x in line.split("\t")] for line in curves(folder)[name].splitlines()[1:]]


@pytest.mark.parametrize(
    ("size", "changes"), [(2, {"softmax": "full"}), (2, {"draws": "separate"}), (3, {})]
)
@pytest.mark.slow
def test_workers_with_uneven_rows_train_as_one_does(
    tmp_path: Path, size: int, changes: dict[str, Any]
) -> None:
    one = run(tmp_path / "one", **changes)
    many = finished(tmp_path / "many", size, changes)
    for name in one:
        torch.testing.assert_close(many[name], one[name], rtol=2e-3, atol=2e-4)
    for curve in ("train.tsv", "heldout.tsv"):
        theirs, ours = (numbers(tmp_path / folder, curve) for folder in ("one", "many"))
        assert len(ours) > 1 and ours == [pytest.approx(row, rel=1e-3) for row in theirs]
    first = [numbers(tmp_path / folder, "train.tsv")[0][2] for folder in ("one", "many")]
    assert first[1] == pytest.approx(first[0], rel=1e-5)  # before any step differs


@pytest.mark.slow
def test_two_workers_stopped_go_on_as_one_or_three_with_every_token_once(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    for worker in processes(tmp_path / "3", 2, {}, stop_at=10):
        worker.join()
        assert worker.exitcode != 0
    shutil.copytree(tmp_path / "3", tmp_path / "1")
    for size in (1, 3):
        folder = tmp_path / str(size)
        again = finished(folder, size, {})
        for name in whole:
            torch.testing.assert_close(again[name], whole[name], rtol=2e-3, atol=2e-4)
        ours, theirs = (
            [line.split("\t")[:2] for line in curves(f)["train.tsv"].splitlines()]
            for f in (folder, tmp_path / "whole")
        )
        assert ours == theirs


@pytest.mark.slow
def test_three_workers_stopped_go_on_as_if_they_had_not(tmp_path: Path) -> None:
    """Of two numbers the sum is the same in any order; of three it is not."""
    whole = finished(tmp_path / "whole", 3, {})
    for worker in processes(tmp_path / "stopped", 3, {}, stop_at=10):
        worker.join()
    assert same(finished(tmp_path / "stopped", 3, {}), whole)


def test_more_workers_than_rows_are_refused() -> None:
    with pytest.raises(ElmoError, match="2 rows are too few for 3 workers"):
        WorkerGroup(0, 3).own_rows(2)
    assert [WorkerGroup(rank, 2).own_rows(2) for rank in (0, 1)] == [[0], [1]]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_deleted_with_a_word_and_the_one_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "whole")
    job = make_job(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        fit(job, workers=ALONE, report=Heard(20, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    checkpoints = tmp_path / "cut" / "job" / "checkpoints"
    flip(checkpoints / "step-000000020" / "state.safetensors", -9)
    left = checkpoints / ".step-000000021.0123abcd"
    left.mkdir()  # by a writer that was killed
    assert same(run(tmp_path / "cut"), whole)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert "checkpoint of step 20 is damaged" in line and not left.exists()


def test_a_checkpoint_of_another_format_is_refused_and_left_where_it_is(tmp_path: Path) -> None:
    progress = TrainingProgress(7, 70, {"rows": [[0, 0]]})
    kept = Checkpoint({"x": torch.ones(2)}, progress)
    checkpoints = CheckpointFolder(Location(tmp_path / "checkpoints"), keep=2)
    kept.save(checkpoints.path(7))
    state = tmp_path / "checkpoints" / "step-000000007" / "state.json"
    record = json.loads(state.read_text())
    newest = checkpoints.recover_newest()
    assert newest is not None and newest.progress == progress
    for other, advice in ((4, "upgrade elmo-pipeline"), (2, "train again with this version")):
        state.write_text(json.dumps(record | {"format": other, "more": 0}))
        with pytest.raises(Mismatch, match=rf"state\.json: has format {other}, .* {advice}"):
            checkpoints.recover_newest()
        assert checkpoints.steps() == [7]  # it is not set aside as damaged


@pytest.mark.slow
def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    job = make_job(tmp_path, epochs=4, optimizer=RISING)
    heard = Heard()
    progress = fit(job, workers=ALONE, report=heard)
    best = min(heard.heldout, key=lambda figures: figures["average"])
    steps = CheckpointFolder(job.folder / "checkpoints", keep=2).steps()
    assert best["step"] == progress.best_step < progress.step - 8
    assert steps == sorted({progress.best_step, 50, progress.step})
    assert heldout_perplexity(job, workers=ALONE).average == best["average"]


@pytest.mark.slow
def test_evaluating_during_training_changes_nothing(tmp_path: Path) -> None:
    last = []
    for every in (3, 1000):
        job = make_job(tmp_path / str(every), evaluate_every=every)
        progress = fit(job, workers=ALONE, report=Heard())
        tensors = CheckpointFolder(job.folder / "checkpoints", keep=2).load(progress.step).tensors
        last.append({name: t for name, t in tensors.items() if not name.startswith("carry")})
    assert same(*last)


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_on_the_disk_is_one_line(tmp_path: Path) -> None:
    """A limit on the size of files is the nearest to a full disk that a process can make itself."""
    code = """
import resource, sys
from pathlib import Path
from elmo.errors import ElmoError
from elmo.train.loop import fit
from elmo.train.step import WorkerGroup
from tests.elmo.run_job import make_job
job = make_job(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    fit(job, workers=WorkerGroup(), report=lambda kind, figures: None)
except ElmoError as error:
    print(error)
"""
    (line,) = python(code, tmp_path).splitlines()
    assert re.search(r"checkpoints/step-\d+: File too large", line)
    assert not (tmp_path / "job" / "checkpoints").exists()  # nor what was made to hold it


def elsewhere(folder: Path, rank: int) -> None:
    """Resume as one of two workers, of which the second sees no checkpoint; write its weights."""
    if rank == 1:
        Checkpoint.load = None  # type: ignore[method-assign, assignment]
    job = make_job(folder, optimizer=RISING)
    job = replace(job, folder=Location(folder / ("job" if rank == 0 else "other")))
    meeting = f"file://{folder.absolute()}/meeting2"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    fit(job, workers=WorkerGroup(rank, 2), report=Heard())
    torch.save(weights(job), folder / f"weights-{rank}")


def test_the_first_worker_alone_reads_checkpoints(tmp_path: Path) -> None:
    """The newest to go on from, and at the end the best."""
    for worker in processes(tmp_path, 1, {"optimizer": RISING}, stop_at=10):
        worker.join()
    finish(forked(elsewhere, tmp_path, rank) for rank in (0, 1))
    first, second = (torch.load(tmp_path / f"weights-{rank}") for rank in (0, 1))
    assert same(first, second)


def test_a_checkpoint_is_one_copy_of_the_moment_when_it_was_saved(tmp_path: Path) -> None:
    """Training goes on before the thread that writes has begun; what it waits for is one copy."""
    tensors = {"a": torch.ones(300, 7), "b": torch.ones(5, 2, dtype=torch.int64)}
    size = sum(value.nbytes for value in tensors.values())
    progress = TrainingProgress(3, 5, {"rows": [[0, 0]]})
    folder = CheckpointFolder(Location(tmp_path / "kept"), keep=1)
    begin = threading.Event()
    folder._thread.submit(begin.wait, 60)
    copying = ("empty", "clone", "_to_copy", "empty_like")
    with Watching() as seen:
        folder.save(Checkpoint(tensors, progress), best_step=None)
        progress.tokens, progress.means.steps = 7, 1
        tensors["a"].zero_()
        begin.set()
        folder.wait()
    assert sum(sum(one.bytes) for one in seen.operations if one.name in copying) == size
    saved = folder.load(3)
    assert (saved.progress.tokens, saved.progress.means.steps) == (5, 0)
    assert torch.equal(saved.tensors["a"], torch.ones(300, 7))
    assert torch.equal(saved.tensors["b"], tensors["b"])
