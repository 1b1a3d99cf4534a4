"""Data and models at a URL: the same bytes as on a disk, and in the project only manifests."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from fsspec.config import conf, set_conf_env

from elmo.data.shards import Shards
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import sha256
from pipeline.cluster import job, results, storage, submit
from pipeline.commands.cli import cli
from tests.pipeline import here
from tests.small_disk import small_disk

ROOT = Path(__file__).resolve().parents[3]
WORDS = "the cat sat on a mat while an old dog slept near the open door today".split()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with little text and a tiny network; the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    lines = [" ".join(WORDS[(k * m) % len(WORDS)] for m in range(1, 9)) for k in range(40)]
    Path("text.txt").write_text("\n\n".join(lines) + "\n")
    for name in ("map_actors", "map_tasks"):  # Ray is no part of this
        monkeypatch.setattr(f"pipeline.cluster.workers.{name}", getattr(here, name))
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
    records = {name for name in published if re.search("/[0-9a-f]{16}.json$", name)}
    assert len(records) == len(list(Path().glob("*/**/.stored")))
    written = {name: sha for name, sha in published.items() if name not in records}
    assert {re.sub("/[0-9a-f]{16}/", "/", name): sha for name, sha in written.items()} == on_disk
    assert len(written) == len(on_disk)
    assert files_below(Location("curves")) == curves
    assert Path("registered.json").exists()
    left = [path for path in Path("work").rglob("*") if path.name != storage.PROJECT_ID_FILE]
    assert {path.suffix for path in left} <= {".log"}  # a slow stage's lines
    here = [path.name for folder in ("data", "models") for path in Path(folder).rglob("*")]
    assert not [name for name in here if name.endswith((".arrow", ".parquet", ".safetensors"))]
    for folder in ("models/finetune", "data/shards/domain"):
        manifest = next(path for path in Path(folder).iterdir() if path.name != job.POINTER_FILE)
        assert sha256(manifest) == storage.resolve_input(Location(folder)).sha256(manifest.name)


CORPUS = ("corpus", "data/corpus", "--work", "work")
GENERAL = ("tokenize", "data/corpus", "general", "data/shards/general", "--work", "work")
VOCAB = ("vocab", "data/shards/general", "data/vocab", "--work", "work")


@pytest.fixture
def tokenized(project: Path, bucket: str) -> Path:
    """A project whose corpus and general shards are at the URL; the current folder."""
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    run(*CORPUS)
    run(*GENERAL)
    return project


def test_a_lost_part_is_made_again_and_what_a_rerun_has_made_stays(
    tokenized: Path, bucket: str
) -> None:
    """A shard is deleted; the rerun makes an output with the same manifest."""
    first = storage.resolve_input(Location("data/shards/general"))
    pointer = Path("data/shards/general/.stored").read_bytes()
    shard = next(name for name in first.names() if name.endswith(".arrow"))
    first.delete(shard)
    run(*GENERAL)
    second = storage.resolve_input(Location("data/shards/general"))
    assert second != first and second.exists(shard)
    assert Path("data/shards/general/.stored").read_bytes() == pointer  # nothing reruns after it
    run(*GENERAL)  # an equal one that is whole is kept
    assert storage.resolve_input(Location("data/shards/general")) == second
    assert storage.delete_lost_pointers(bucket) == []
    runs = [Path(".dvc/cache/runs/ab") / name / "lock" for name in ("general", "domain")]
    for path in runs:  # of DVC, which would bring the pointer back
        path.parent.mkdir(parents=True)
        path.write_text(f"outs:\n- path: data/shards/{path.parent.name}\n  md5: x\n")
    second.write(shard, b"cut off")
    assert storage.delete_lost_pointers(bucket) == ["data/shards/general"]
    assert [path.exists() for path in runs] == [False, True]


@pytest.mark.parametrize("name", ["general", "domain"])
def test_the_pointers_stay_where_the_url_is_a_slip(project: Path, bucket: str, name: str) -> None:
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    run(*CORPUS)
    run("tokenize", "data/corpus", name, f"data/shards/{name}", "--work", "work")
    Path("cluster.yaml").write_text(f"storage: {bucket}/slip\n")
    with pytest.raises(ElmoError, match=r"slip: has none of this project's 2 outputs.*rm -r"):
        run(*CORPUS)
    assert len(list(Path("data").rglob(".stored"))) == 2


def test_the_only_output_is_made_again_where_it_is_lost(project: Path, bucket: str) -> None:
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    run(*CORPUS)
    storage.resolve_input(Location("data/corpus")).remove()
    Path("data/corpus/mine.txt").write_text("mine")
    with pytest.raises(ElmoError, match="data/corpus: contains mine.txt"):
        storage.delete_lost_pointers(bucket)
    Path("data/corpus/mine.txt").unlink()
    assert storage.delete_lost_pointers(bucket) == ["data/corpus"]
    assert not Path("data/corpus").exists()


def test_work_in_progress_is_found_from_a_machine_of_another_name(
    tokenized: Path, bucket: str, tmp_path: Path
) -> None:
    """A training that is killed, then its project copied to a machine called otherwise."""
    run(*VOCAB)
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["pretrain"]["training"] |= {"epochs": 400, "evaluate_every": 50}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    pretrain = ["pretrain", "data/shards/general", "data/vocab", "models/pretrain"]
    pretrain += ["--curves", "curves/pretrain", "--work", "work"]
    quick = os.environ | {"PYTHONPATH": str(ROOT), "ELMO_CHECKPOINT_MINUTES": "0.02"}
    command = [sys.executable, "-m", "pipeline", *pretrain]
    running = subprocess.Popen(command, env=quick, stderr=subprocess.PIPE, text=True)
    whole = re.compile(r"unfinished/[0-9a-f]{16}/work/pretrain/\w+/checkpoints/.*/state\.json")
    while not any(map(whole.search, Location(bucket).sizes())):
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.2)
    running.kill()
    running.communicate()
    there = tmp_path.parent / f"{tmp_path.name}-there"
    shutil.copytree(tokenized, there, ignore=shutil.ignore_patterns("bucket"))
    renamed = ["unshare", "-u", "bash", "-c", 'hostname elsewhere; exec "$@"', "-", *command]
    if subprocess.run(renamed[:5] + ["-", "true"], capture_output=True).returncode:
        pytest.skip("this machine can't be called otherwise")
    again = subprocess.Popen(renamed, env=quick, cwd=there, stderr=subprocess.PIPE, text=True)
    assert again.stderr is not None
    lines = [""]
    while "resuming from step" not in lines[-1]:
        lines.append(again.stderr.readline())
        assert lines[-1], "".join(lines)
    again.kill()
    again.communicate()
    assert len((Location(bucket) / "unfinished").folders()) == 1


def test_what_an_earlier_commit_names_is_still_there(tokenized: Path, bucket: str) -> None:
    """Two revisions of the shards, and a reader of the first while the second is made."""
    first = storage.resolve_input(Location("data/shards/general"))
    reader = Shards(first)
    shutil.copytree("data/shards/general", "first")
    set_heldout(0.4)
    run(*GENERAL)
    second = storage.resolve_input(Location("data/shards/general"))
    assert first != second
    assert Shards(second).digest != reader.digest == Shards(first).digest
    assert all(reader.open(entry).tokens(0) for entry in reader.entries("train"))  # goes on reading
    shutil.rmtree("data/shards/general")
    shutil.copytree("first", "data/shards/general")  # as `dvc checkout` of the first commit
    run(*VOCAB)
    train = [reader.open(entry) for entry in reader.entries("train")]
    sentences = sum(bool(shard.tokens(k)) for shard in train for k in range(len(shard)))
    counts = storage.resolve_input(Location("data/vocab")).read("counts.txt").split()
    assert int(counts[0]) == sentences  # of the first revision's training text
    set_heldout(0.2)
    run(*GENERAL)
    again = storage.resolve_input(Location("data/shards/general"))
    assert again == first  # an equal output has one name
    assert len((Location(bucket) / "data" / "shards" / "general").folders()) == 2


def test_a_pointer_to_nothing_is_said_and_made_again(
    tokenized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.resolve_input(Location("data/shards/general")).remove()
    with pytest.raises(ElmoError, match=r"data/shards/general/[0-9a-f]{16}/manifest.json: no such"):
        run(*VOCAB)
    run(*CORPUS)  # what `dvc repro` begins with
    assert "data/shards/general: is missing at" in capsys.readouterr().out
    assert not Path("data/shards/general").exists()
    with pytest.raises(ElmoError, match="data/shards/general: .* run the stage"):
        run(*VOCAB)
    Path("cluster.yaml").unlink()
    with pytest.raises(ElmoError, match="data/corpus: .* set storage in cluster.yaml"):
        run(*GENERAL)


def test_at_a_url_nothing_is_replaced(project: Path, bucket: str) -> None:
    run(*CORPUS)
    mine = ("tokenize", "data/corpus", "general", f"{bucket}/mine", "--work", "work")
    run(*mine)
    with pytest.raises(ElmoError, match="mine: already exists"):
        run(*mine)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL that a disk stands behind, for processes that are started here too."""
    monkeypatch.setenv("FSSPEC_LOCAL_AUTO_MKDIR", "true")
    set_conf_env(conf)
    return f"local://{tmp_path}/bucket"


def test_a_job_writes_its_project_in_a_folder_of_its_own(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one left in DVC's cache, the next one has; each has its own dvc.lock."""
    jobs = Location(f"{bucket}/jobs")
    object_ = ".dvc/cache/files/md5/ab/" + "c" * 30

    def stages(command: list[str], folder: Path, variables: dict[str, str]) -> int:
        assert variables["ELMO_STORAGE"] == bucket and jobs.folders()
        assert (folder / object_).exists() == (command[0] == "second")
        (folder / "dvc.lock").write_text(command[0])
        (folder / "metrics").mkdir()
        (folder / "metrics" / "vocab.json").write_text(command[0])
        (folder / object_).parent.mkdir(parents=True, exist_ok=True)
        (folder / object_).write_text("cached")
        (folder / ".dvc" / "tmp").write_text("not kept")
        return 7

    monkeypatch.setattr(job, "run", stages)
    monkeypatch.setattr(job, "_init_dvc", lambda home, variables: (home / ".dvc").mkdir())
    for word in ("first", "second"):
        (tmp_path / word).mkdir()
        monkeypatch.setenv(job.JOB_VARIABLE, word)
        assert job._run_at_url(bucket, [word], tmp_path / word, {}) == 7
        assert not (tmp_path / word).exists()
    names = {"dvc.lock", "job.json", "metrics/vocab.json"}
    assert (jobs / "first").sizes().keys() == names | {object_}
    assert (jobs / "second").sizes().keys() == names  # nothing is written twice
    assert (jobs / "first").read("dvc.lock") == b"first"
    assert Location(bucket).folders() == ["jobs"]


def test_what_has_changed_in_a_jobs_project_is_saved_again(bucket: str, tmp_path: Path) -> None:
    target = Location(f"{bucket}/jobs/one")

    def work() -> Iterator[bool]:
        for name in ("a", "b"):
            (tmp_path / "home" / name).write_text("1")
        yield False
        (tmp_path / "home" / "a").write_text("two")
        (tmp_path / "home" / "b").unlink()
        yield True

    (tmp_path / "home").mkdir()
    looks = work()
    stop: Any = SimpleNamespace(wait=lambda _: next(looks))
    job._upload_changes(tmp_path / "home", target, set(), stop, [""])
    assert {name: target.read(name) for name in target.sizes()} == {"a": b"two"}


@pytest.mark.usefixtures("bucket")
def test_a_project_that_can_not_be_saved_is_an_error_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk of 256 kB stands behind the URL; the stage writes a megabyte."""
    home = tmp_path / "home"
    home.mkdir()

    def stage(command: list[str], folder: Path, variables: dict[str, str]) -> int:
        (folder / "dvc.lock").write_bytes(os.urandom(1 << 20))
        return 0

    monkeypatch.setattr(job, "run", stage)
    monkeypatch.setattr(job, "_init_dvc", lambda home, variables: None)
    with small_disk(tmp_path / "disk", "256k") as disk:
        assert job._run_at_url(f"local://{disk}/bucket", ["stage"], home, {}) == 1
    said = capsys.readouterr().out
    assert "No space left on device" in said and f"); it is in {home} on " in said
    assert (home / "dvc.lock").stat().st_size == 1 << 20


PROGRAM = """
import os, sys
from pathlib import Path
from pipeline.cluster import job
url, home, package = sys.argv[1:]
job.PACKAGE = Path(package)
command = [sys.executable, "-m", "dvc", "repro", "-q", "vocab"]
sys.exit(job._run_at_url(url, command, Path(home), dict(os.environ)))
"""


class Jobs:
    """Jobs at one URL, from copies of one project, each a process of its own."""

    def __init__(self, project: Path, bucket: str) -> None:
        self.project, self.bucket = project, bucket
        self.environment = os.environ | {
            "DVC_NO_ANALYTICS": "1",
            "PYTHONPATH": str(ROOT),
            "ELMO_ACTORS": "1",
            job.PROJECT_VARIABLE: "0123456789abcdef",
        }
        params = Path("params.yaml").read_text()  # jobs have another folder
        Path("params.yaml").write_text(params.replace("text.txt", str(project / "text.txt")))
        shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
        Path("cluster.yaml").write_text(f"storage: {bucket}\n")
        self.dvc("init", "-q", "--no-scm")

    def dvc(self, *command: str, cwd: Path = Path()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dvc", *command],
            env=self.environment,
            cwd=cwd,
            text=True,
            capture_output=True,
        )

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start the job `name` of this folder, as it is now."""
        home, package = self.project / f"{name}-home", self.project / f"{name}-package"
        home.mkdir()
        submit.pack(package, {}, params=Path("params.yaml"), state=True)
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.bucket, str(home), str(package)],
            env=self.environment | {job.JOB_VARIABLE: name},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, name: str) -> str:
        """Run a job to its end; return what it printed."""
        running = self.start(name)
        printed = running.communicate(timeout=500)[0]
        assert running.returncode == 0, printed
        return printed


def set_heldout(share: float) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["tokenize"]["heldout"] = share
    Path("params.yaml").write_text(yaml.safe_dump(params))


@pytest.mark.slow
def test_two_jobs_at_once_at_one_url_are_both_right(
    project: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other params; each result is that of a disk, and the later one to come back takes nothing
    of the earlier one."""
    jobs = Jobs(project, bucket)
    shares = {"one": 0.2, "two": 0.4}
    running = {}
    for name, share in shares.items():
        set_heldout(share)
        running[name] = jobs.start(name)
    for one in running.values():
        printed = one.communicate(timeout=500)[0]
        assert one.returncode == 0, printed
    for name, share in shares.items():
        set_heldout(share)
        shutil.copytree(
            project, f"../{project.name}-{name}", ignore=shutil.ignore_patterns("bucket")
        )
        monkeypatch.chdir(f"../{project.name}-{name}")
        results.copy_results(bucket, name, old_lock=b"")
        done = jobs.dvc("repro", "vocab")
        assert done.returncode == 0, done.stderr
        assert set(re.findall("Running stage '([^']*)'", done.stdout)) == {"corpus"}
        at_url = storage.resolve_input(Location("data/shards/general"))
        found = {one: at_url.sha256(one) for one in at_url.names()}
        Path("cluster.yaml").unlink()
        shutil.rmtree("data")
        Path("dvc.lock").unlink()
        assert jobs.dvc("repro", "-q", "vocab").returncode == 0
        here = Location("data/shards/general")
        assert {one: here.sha256(one) for one in here.names()} == found
        monkeypatch.chdir(project)
    records = [key for key in Location(bucket).sizes() if re.search(r"general/\w{16}\.json", key)]
    assert len(records) == 2


@pytest.mark.slow
def test_what_a_job_left_is_brought_back(project: Path, bucket: str) -> None:
    """Then neither DVC here nor the next job repeats a stage; an output made here stays."""
    jobs = Jobs(project, bucket)
    assert " sentences, " in jobs.run("first")
    assert len(results.copy_results(bucket, "first", old_lock=b"")) > 5
    assert Path("metrics/vocab.json").exists() and Path("data/vocab/.stored").exists()
    done = jobs.dvc("repro", "vocab")
    assert set(re.findall("Running stage '([^']*)'", done.stdout)) == {"corpus"}, done.stdout
    before = Path("dvc.lock").read_bytes()
    assert " sentences, " not in jobs.run("second")
    records = [name for name in Location(bucket).sizes() if re.search(r"/\w{16}\.json", name)]
    assert len(records) == 3  # corpus, general text and vocabulary, as before
    assert results.copy_results(bucket, "second", old_lock=before) == []
    assert "Running stage 'vocab'" not in jobs.dvc("repro", "vocab").stdout
    shutil.rmtree("data/vocab")
    Path("data/vocab").mkdir()
    Path("data/vocab/words.txt").write_text("made here")
    with pytest.raises(ElmoError, match="cannot be copied here: .*data/vocab"):
        results.copy_results(bucket, "first", old_lock=b"")
    assert Path("data/vocab/words.txt").read_text() == "made here"
    assert Path("dvc.lock").read_bytes() == before
    Path("dvc.lock").unlink()
    with pytest.raises(ElmoError, match="cannot be copied here: .*data/vocab"):
        results.copy_results(bucket, "first", old_lock=b"")
    assert not Path("dvc.lock").exists()


def test_nothing_that_a_bucket_holds_is_written_outside_the_results(
    project: Path, bucket: str
) -> None:
    """Keys and names with `..`, hidden folders, absolute paths, links, and content of others."""
    Jobs(project, bucket)
    Path(".git").mkdir()
    own = Location(f"{bucket}/jobs/bad")
    hostile = ["../../../evil.txt", ".git/config", "/evil.txt", "a/../../evil.txt", "out/evil.txt"]
    Path("out").symlink_to(project.parent)
    evil = hashlib.md5(b"evil").hexdigest()
    object_ = f".dvc/cache/files/md5/{evil[:2]}/{evil[2:]}"
    before = {path for path in project.parent.rglob("*") if "bucket" not in path.parts}

    def lock(out: dict[str, Any]) -> bytes:
        return yaml.safe_dump({"schema": "2.0", "stages": {"vocab": {"outs": [out]}}}).encode()

    own.write(object_, b"evil")
    for key in (".git/config", "evil.txt", "data/evil.txt"):
        own.write(key, b"evil")
    for name in hostile:
        own.write("dvc.lock", lock({"path": name, "md5": evil}))
        with pytest.raises(ElmoError):
            results.copy_results(bucket, "bad", old_lock=b"")
        listing = json.dumps([{"relpath": name, "md5": evil}]).encode()
        folder = hashlib.md5(listing).hexdigest() + ".dir"
        own.write(f".dvc/cache/files/md5/{folder[:2]}/{folder[2:]}", listing)
        own.write("dvc.lock", lock({"path": "data/vocab", "md5": folder}))
        if name != "out/evil.txt":  # a name within the output
            with pytest.raises(ElmoError):
                results.copy_results(bucket, "bad", old_lock=b"")
    for wrong in ("../../../../evil", "0" * 32, "--force"):
        own.write(f".dvc/cache/files/md5/00/{'0' * 30}", b"evil")
        own.write("dvc.lock", lock({"path": "data/vocab", "md5": wrong}))
        with pytest.raises(ElmoError):
            results.copy_results(bucket, "bad", old_lock=b"")
    after = {path for path in project.parent.rglob("*") if "bucket" not in path.parts}
    assert not [path for path in after - before if path.is_file() and "cache" not in path.parts]
    assert not Path("dvc.lock").exists() and not Path(".git/config").exists()
    for name in hostile[:4]:
        Location(bucket).write(
            "out/a.json", msgspec.json.encode(storage.StoredOutput("0" * 16, {name: 4}))
        )
        with pytest.raises(ElmoError, match="is not the name of a result"):
            storage.read_output(bucket, "out/a")
    keys = ["bad/.dvc/cache/runs/ab/../../../../d"]
    jobs = SimpleNamespace(sizes=lambda: keys, get=None)  # nothing is asked for
    job._copy_dvc_cache(jobs, Path())


def test_no_login_is_sent_or_shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cluster.yaml a job gets the settings, in the file of variables that is deleted."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@mlflow")
    login = "s3://key:hunter2@bucket/x"
    Path("cluster.yaml").write_text(f"storage: {login}\n")
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    sent: dict[str, Any] = {}

    class Client:
        def get_address(self) -> str:
            return "http://head"

        def submit_job(self, **given: Any) -> None:
            sent.update(given)
            package = Path(given["runtime_env"]["working_dir"])
            for path in package.rglob("*"):
                if path.is_file() and "hunter2" in path.read_text(errors="replace"):
                    sent.setdefault("files", []).append(path.name)
            sent["variables"] = json.loads((package / job.ENVIRONMENT_FILE).read_text())

    monkeypatch.setattr(submit, "connect", lambda address: Client())
    submit.submit(
        [],
        address=None,
        folder=None,
        command=None,
        variables=[],
        params=Path("params.yaml"),
        say=lambda line: sent.setdefault("said", []).append(line),
    )
    assert sent.pop("files") == [job.ENVIRONMENT_FILE]
    assert sent.pop("variables")["ELMO_STORAGE"] == login
    assert "hunter2" not in repr(sent)


def test_a_folder_of_ones_own_is_not_taken_for_an_outputs_manifests(
    project: Path, bucket: str
) -> None:
    Path("cluster.yaml").write_text(f"storage: {bucket}\n")
    Path("data/corpus").mkdir(parents=True)
    Path("data/corpus/mine.txt").write_text("mine")
    with pytest.raises(ElmoError, match=r"data/corpus: .*found mine.txt"):
        run(*CORPUS)
    Path("data/corpus/mine.txt").unlink()
    run(*CORPUS)
    run(*CORPUS)  # over its own
    Path("data/corpus/mine.txt").write_text("mine")
    with pytest.raises(ElmoError, match=r"data/corpus: contains mine.txt, which"):
        run(*CORPUS)
    assert Path("data/corpus/mine.txt").read_text() == "mine"
