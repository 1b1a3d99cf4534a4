"""Data and models at a URL: the same bytes as on a disk, and in the project only manifests."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from fsspec.config import conf, set_conf_env

from elmo.data.shards import Shards
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import sha256
from pipeline.cluster import job, storage
from pipeline.commands.cli import cli

ROOT = Path(__file__).resolve().parents[3]
WORDS = "the cat sat on a mat while an old dog slept near the open door today".split()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with little text and a tiny network; the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    lines = [" ".join(WORDS[(k * m) % len(WORDS)] for m in range(1, 9)) for k in range(40)]
    Path("text.txt").write_text("\n\n".join(lines) + "\n")
    for name in ("tasks", "actors"):  # Ray is no part of this
        monkeypatch.setattr(f"pipeline.cluster.workers.{name}", globals()[name])
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["corpus"] |= {"general": ["text.txt"], "domain": ["text.txt"]}
    params["tokenize"] |= {"sentences": "line", "heldout": 0.2}
    params["pretrain"]["network"] |= {"char_dim": 4, "filters": [[1, 4]], "cells": 8}
    params["pretrain"]["network"] |= {"projection": 4}
    for stage in ("pretrain", "finetune"):
        params[stage]["training"] |= {"rows": 4, "window": 8, "samples": 8, "epochs": 2}
        params[stage]["training"] |= {"evaluate_every": 5}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    yield tmp_path


def tasks(function: Any, items: Any, **_: Any) -> Any:
    return [function(item) for item in items]


def actors(kind: Any, arguments: Any, items: Any, **_: Any) -> Any:
    made = kind(*arguments)
    return [made(item) for item in items]


def run(*arguments: str) -> None:
    cli.main(list(arguments), standalone_mode=False)


def run_all() -> None:
    """Every stage but the report, with the paths of dvc.yaml."""
    runs = ("--work", "work")
    run("corpus", "data/corpus", *runs)
    for text in ("general", "domain"):
        run("tokenize", "data/corpus", text, f"data/shards/{text}", *runs)
    run("vocab", "data/shards/general", "data/vocab", *runs)
    curves = ("--curves", "curves/pretrain")
    run("pretrain", "data/shards/general", "data/vocab", "models/pretrain", *curves, *runs)
    shards = ("data/shards/domain", "data/shards/general")
    curves = ("--curves", "curves/finetune")
    run("finetune", "models/pretrain", *shards, "models/finetune", *curves, *runs)
    run("features", shards[0], "models/finetune", "data/features", "--work", "work/features")
    splits = ("--general", shards[1], "--domain", shards[0])
    run("register", "models/finetune", "data/features", "registered.json", *splits)


def files_below(location: Location, prefix: str = "") -> dict[str, str]:
    """The digest of each file, but for those that name a run or a path."""
    found = {
        prefix + name: location.sha256(name)
        for name in location.names()
        if name not in ("training.json", "config.json") and not name.startswith("manifest-0")
    }
    for folder in location.folders():
        found |= files_below(location / folder, f"{prefix}{folder}/")
    return found


@pytest.mark.slow
def test_every_stage_writes_at_a_url_what_it_writes_on_a_disk(
    project: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all()
    on_disk = files_below(Location("data"), "data/") | files_below(Location("models"), "models/")
    curves = files_below(Location("curves"))
    for folder in ("data", "models", "curves", "work"):
        os.rename(folder, f"old-{folder}")
    Path("registered.json").unlink()

    monkeypatch.setenv("ELMO_STORAGE", bucket)
    run_all()
    at_url = Location(bucket)
    assert files_below(at_url / "unfinished") == {}  # of what was in progress nothing is left
    published = files_below(at_url)
    assert {re.sub("/[0-9a-f]{16}/", "/", name): sha for name, sha in published.items()} == on_disk
    assert len(published) == len(on_disk)
    assert files_below(Location("curves")) == curves
    assert Path("registered.json").exists()
    assert {path.suffix for path in Path("work").rglob("*")} <= {".log"}  # a slow stage's lines
    here = [path.name for folder in ("data", "models") for path in Path(folder).rglob("*")]
    assert not [name for name in here if name.endswith((".arrow", ".parquet", ".safetensors"))]
    for folder in ("models/finetune", "data/shards/domain"):
        manifest = next(path for path in Path(folder).iterdir() if path.name != job.STORED)
        assert sha256(manifest) == storage.read_from(Location(folder)).sha256(manifest.name)

    assert storage.forget_lost(bucket) == []
    (at_url / "data" / "shards" / "domain").remove()
    assert storage.forget_lost(bucket) == ["data/shards/domain"]
    assert not (project / "data" / "shards" / "domain").exists()


def test_what_an_earlier_commit_names_is_still_there(
    project: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two revisions of the shards, and a reader of the first while the second is made."""
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    own = ("--work", "work")
    tokenize = ("tokenize", "data/corpus", "general", "data/shards/general", *own)
    run("corpus", "data/corpus", *own)
    run(*tokenize)
    first = storage.read_from(Location("data/shards/general"))
    reader = Shards(first)
    shutil.copytree("data/shards/general", "first")
    run(*tokenize, "-S", "tokenize.heldout=0.4")
    second = storage.read_from(Location("data/shards/general"))
    assert first != second
    assert Shards(second).digest != reader.digest == Shards(first).digest
    assert all(reader.open(entry).tokens(0) for entry in reader.entries("train"))  # goes on reading
    shutil.rmtree("data/shards/general")
    shutil.copytree("first", "data/shards/general")  # as `dvc checkout` of the first commit
    run("vocab", "data/shards/general", "data/vocab", *own)
    train = [reader.open(entry) for entry in reader.entries("train")]
    sentences = sum(bool(shard.tokens(k)) for shard in train for k in range(len(shard)))
    counts = storage.read_from(Location("data/vocab")).read("counts.txt").split()
    assert int(counts[0]) == sentences  # of the first revision's training text
    run(*tokenize)
    again = storage.read_from(Location("data/shards/general"))
    assert again == first  # an equal output has one name
    assert len((Location(bucket) / "data" / "shards" / "general").folders()) == 2


def test_a_pointer_to_nothing_is_said_and_made_again(
    project: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    own = ("--work", "work")
    run("corpus", "data/corpus", *own)
    run("tokenize", "data/corpus", "general", "data/shards/general", *own)
    storage.read_from(Location("data/shards/general")).remove()
    with pytest.raises(ElmoError, match=r"data/shards/general/[0-9a-f]{16}/manifest.json: no such"):
        run("vocab", "data/shards/general", "data/vocab", *own)
    run("corpus", "data/corpus", *own)  # what `dvc repro` begins with
    assert "data/shards/general: is not at" in capsys.readouterr().out
    assert not Path("data/shards/general").exists()
    with pytest.raises(ElmoError, match="data/shards/general: this project names nothing of it at"):
        run("vocab", "data/shards/general", "data/vocab", *own)
    Path("cluster.yaml").unlink()
    with pytest.raises(ElmoError, match="data/corpus: lies at a URL; name that as storage"):
        run("tokenize", "data/corpus", "general", "data/shards/general", *own)


def test_the_storage_of_another_file_of_settings_is_used(project: Path, bucket: str) -> None:
    Path("other.yaml").write_text(f"storage: {bucket}\n")
    own = ("--work", "work")
    run("corpus", "data/corpus", *own)
    tokenize = ("tokenize", "data/corpus", "general", "data/shards/general", *own)
    run(*tokenize, "--cluster", "other.yaml")
    assert (Location(bucket) / "data" / "shards").folders() == ["general"]
    assert not list(Path("data/shards").rglob("*.arrow"))


def test_at_a_url_nothing_is_replaced(project: Path, bucket: str) -> None:
    run("corpus", "data/corpus", "--work", "work")
    tokenize = ("tokenize", "data/corpus", "general", f"{bucket}/mine", "--work", "work")
    run(*tokenize)
    with pytest.raises(ElmoError, match="mine: is there already, and at a URL nothing is replaced"):
        run(*tokenize)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL that a disk stands behind, for processes that are started here too."""
    monkeypatch.setenv("FSSPEC_LOCAL_AUTO_MKDIR", "true")
    set_conf_env(conf)
    return f"local://{tmp_path}/bucket"


def test_a_job_keeps_its_project_at_the_url(
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = Location(f"{bucket}/project")

    def stages(command: list[str], folder: Path, variables: dict[str, str]) -> int:
        assert variables["ELMO_STORAGE"] == bucket and kept.exists(job.LEASE)
        lock = folder / "dvc.lock"
        lock.write_text(lock.read_text() + "again\n" if lock.exists() else "once\n")
        (folder / "metrics").mkdir(exist_ok=True)
        (folder / "metrics" / "vocab.json").write_text(command[0])
        (folder / ".dvc" / "cache" / "files" / "md5").mkdir(parents=True, exist_ok=True)
        (folder / ".dvc" / "cache" / "files" / "md5" / "ab").write_text("cached")
        (folder / ".dvc" / "tmp").write_text("not kept")
        return 7

    monkeypatch.setattr(job, "run", stages)
    monkeypatch.setattr(job, "_init", lambda home, variables: (home / ".dvc").mkdir())
    for word in ("first", "second"):
        (tmp_path / word).mkdir()
        assert job._run_at_url(bucket, [word], tmp_path / word, {}) == 7
        assert not (tmp_path / word).exists()
    assert kept.read("dvc.lock") == b"once\nagain\n"
    assert (kept / "metrics").read("vocab.json") == b"second"
    assert (kept / ".dvc" / "cache" / "files" / "md5").names() == ["ab"]
    assert (kept / ".dvc").names() == [] and not kept.exists(job.LEASE)

    kept.write(job.LEASE, b"elmo-other")
    assert job._run_at_url(bucket, ["third"], tmp_path, {}) == 1
    assert "elmo-other is at work here" in capsys.readouterr().out
    monkeypatch.setattr(job, "_has_ended", lambda other: other == "elmo-other")
    (tmp_path / "fourth").mkdir()
    assert job._run_at_url(bucket, ["fourth"], tmp_path / "fourth", {}) == 7


def test_a_job_says_in_one_line_that_its_store_refuses(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where the URL's folder would be."""
    (tmp_path / "bucket").write_text("")
    assert job._run(bucket, ["true"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"error: {bucket}/project/at-work: ")


def test_of_jobs_that_begin_at_once_one_has_the_lease(tmp_path: Path) -> None:
    """On a disk, whose `create` is one call of the system."""
    for attempt in range(20):
        kept = Location(tmp_path / str(attempt))
        with ThreadPoolExecutor(8) as threads:
            refused = list(threads.map(lambda k: job._taken(kept, f"job {k}"), range(8)))  # noqa: B023
        assert refused.count("") == 1
        assert {other for other in refused if other} == {kept.read(job.LEASE).decode()}


def test_a_project_that_can_not_be_saved_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk of 256 kB stands behind the URL; the stage writes a megabyte."""
    disk, home = tmp_path / "disk", tmp_path / "home"
    disk.mkdir()
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can't be mounted here")
    try:
        monkeypatch.setenv("FSSPEC_LOCAL_AUTO_MKDIR", "true")
        set_conf_env(conf)

        def stage(command: list[str], folder: Path, variables: dict[str, str]) -> int:
            (folder / "dvc.lock").write_bytes(os.urandom(1 << 20))
            return 0

        monkeypatch.setattr(job, "run", stage)
        monkeypatch.setattr(job, "_init", lambda home, variables: None)
        assert job._run_at_url(f"local://{disk}/bucket", ["stage"], home, {}) == 1
        said = capsys.readouterr().out
        assert "No space left on device" in said and f"); it is in {home} on " in said
        assert (home / "dvc.lock").stat().st_size == 1 << 20
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_outputs_that_no_commit_names_are_listed_and_removed(
    project: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards of three settings: of an earlier commit, of another branch, and of neither."""
    own = os.environ | {"DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(ROOT), "ELMO_ACTORS": "1"}

    def shell(*command: str) -> None:
        subprocess.run(command, env=own, check=True, capture_output=True)

    def shards(heldout: float) -> str:
        params = yaml.safe_load(Path("params.yaml").read_text())
        params["tokenize"]["heldout"] = heldout
        Path("params.yaml").write_text(yaml.safe_dump(params))
        shell("dvc", "repro", "-q", "tokenize@general")
        return str(storage.read_from(Location("data/shards/general")))

    def commit() -> None:
        shell("git", "add", "dvc.lock", "params.yaml")
        shell("git", "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "x")

    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    with pytest.raises(ElmoError, match="commits of this folder name can't be read: .*git"):
        run("unused")
    shell("git", "init", "-q", "-b", "main")
    shell("dvc", "init", "-q")
    first = shards(0.2)
    commit()
    shell("git", "checkout", "-qb", "other")
    second = shards(0.3)
    commit()
    shell("git", "checkout", "-q", "main")
    third = shards(0.4)
    run("unused", "--remove")
    assert capsys.readouterr().out == ""  # this folder names the third
    shell("git", "checkout", "-q", "params.yaml", "dvc.lock")
    shell("dvc", "checkout", "-q", "tokenize@general")
    run("unused")
    assert capsys.readouterr().out.split() == [third]
    assert Location(third).exists("manifest.json")
    cached = [path for path in Path(".dvc/cache/files/md5").rglob("*.dir")]
    shutil.move(".dvc/cache", "cache")
    with pytest.raises(ElmoError, match="outputs of commits are not in DVC's cache.*--all-commits"):
        run("unused", "--remove")
    assert cached and Location(third).exists("manifest.json")
    shutil.move("cache", ".dvc/cache")
    run("unused", "--remove")
    assert not Location(third).names()
    assert all(Location(one).exists("manifest.json") for one in (first, second))
    Path("cluster.yaml").unlink()
    with pytest.raises(ElmoError, match="storage in cluster.yaml is empty"):
        run("unused")


@pytest.mark.slow
def test_what_a_job_left_is_brought_back(
    project: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards DVC has nothing to repeat here, and an output made here is not lost."""
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    own = os.environ | {"DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(ROOT), "ELMO_ACTORS": "1"}
    subprocess.run(["dvc", "init", "-q", "--no-scm"], env=own, check=True)
    repro = ["dvc", "repro", "vocab"]
    subprocess.run(repro, env=own, check=True, capture_output=True)
    kept = Location(f"{bucket}/project")
    for name in job._files(project):
        kept.put(name, project / name)
    for name in ("data", "metrics", "numbers", ".dvc/cache"):
        shutil.rmtree(name)
    Path("dvc.lock").unlink()
    assert storage.bring_back(bucket) > 10
    done = subprocess.run(repro, env=own, capture_output=True, text=True, check=True)
    assert "Running stage 'tokenize" not in done.stdout and "Running stage 'voc" not in done.stdout
    shutil.rmtree("data/vocab")
    Path("data/vocab").mkdir()
    Path("data/vocab/words.txt").write_text("made here")
    with pytest.raises(ElmoError, match="data/vocab: holds an output that was made here"):
        storage.bring_back(bucket)
    assert Path("data/vocab/words.txt").read_text() == "made here"


def test_a_url_to_work_at_needs_a_tracking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.cluster import submit

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for checkout, message in ((True, "not a URL"), (False, "name an MLflow server")):
        with pytest.raises(ElmoError, match=message):
            submit.submit(
                [],
                address="http://127.0.0.1:1",
                folder="s3://bucket/x",
                checkout=checkout,
                command=None,
                variables=[],
                params=Path("params.yaml"),
                say=print,
            )


@pytest.mark.slow
def test_the_next_job_runs_only_what_has_changed(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    code = "import pathlib, sys; pathlib.Path('out').mkdir(); pathlib.Path('out/a').write_text('1')"
    (tmp_path / "stage.py").write_text(f"{code}; open({str(ran)!r}, 'a').write('x')\n")
    stage = {"cmd": f"python {tmp_path / 'stage.py'}", "outs": ["out"]}
    Location(f"{bucket}/project").write(
        "dvc.yaml", yaml.safe_dump({"stages": {"a": stage}}).encode()
    )
    monkeypatch.setattr(
        job, "run", lambda what, home, env: subprocess.call(what, cwd=home, env=env)
    )
    own = os.environ | {"DVC_NO_ANALYTICS": "1"}
    for number in (1, 2):
        home = tmp_path / f"node{number}"
        home.mkdir()
        assert job._run_at_url(bucket, ["dvc", "repro", "-q"], home, own) == 0
        assert ran.read_text() == "x"


def test_a_folder_of_ones_own_is_not_taken_for_an_outputs_manifests(project: Path) -> None:
    Path("cluster.yaml").write_text("storage: memory://bucket/mine\n")
    Path("data/corpus").mkdir(parents=True)
    Path("data/corpus/mine.txt").write_text("mine")
    with pytest.raises(ElmoError, match=r"data/corpus: holds mine.txt, and no output of this"):
        run("corpus", "data/corpus", "--work", "work")
    Path("data/corpus/mine.txt").unlink()
    run("corpus", "data/corpus", "--work", "work")
    run("corpus", "data/corpus", "--work", "work")  # over its own
    Path("data/corpus/mine.txt").write_text("mine")
    with pytest.raises(ElmoError, match=r"data/corpus: holds mine.txt, which no stage has written"):
        run("corpus", "data/corpus", "--work", "work")
    assert Path("data/corpus/mine.txt").read_text() == "mine"
