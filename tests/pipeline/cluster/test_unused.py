"""What `elmo unused` lists and removes: outputs that neither git, a worktree nor a job names."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fsspec.config import conf, set_conf_env

from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.cluster import storage
from pipeline.commands.cli import cli
from tests.programs import ROOT, call

OWN = os.environ | {"DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(ROOT), "ELMO_ACTORS": "1"}
OWN |= {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b.c"}
OWN |= {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b.c"}


def shell(*command: str, cwd: Path = Path()) -> None:
    call(*command, env=OWN, cwd=cwd)


def unused(*options: str) -> None:
    cli.main(["unused", *options], standalone_mode=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in git and DVC, whose output lies at a URL; the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FSSPEC_LOCAL_AUTO_MKDIR", "true")
    OWN["FSSPEC_LOCAL_AUTO_MKDIR"] = "true"
    set_conf_env(conf)
    outs = {"outs": ["data/shards/general"], "cmd": "true"}
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": {"tokenize": outs}}))
    Path("cluster.yaml").write_text(f"storage: local://{tmp_path}/bucket\n")
    Path(".gitignore").write_text("/work\n/cluster.yaml\n/data\n")
    shell("git", "init", "-q", "-b", "main")
    shell("dvc", "init", "-q")
    yield folder


def make_shards(text: str, *, cwd: Path = Path()) -> str:
    """Publish an output that holds `text`, as the stage does; return its name."""
    with contextlib.chdir(cwd):
        url, named = storage.storage_url(), Location("data/shards/general")
        folder = storage.begin_output(named, url, depends=text, resumes=False)
        folder.write("part", text.encode())
        folder.write("manifest.json", json.dumps(text).encode())
        storage.publish_output(named, folder, url)
        shell("dvc", "commit", "-q", "-f")
        return storage.read_pointer(Path("data/shards/general")).folder


def commit(*, cwd: Path = Path()) -> None:
    shell("git", "add", ".", cwd=cwd)
    shell("git", "commit", "-qm", "x", cwd=cwd)


@pytest.mark.slow
def test_what_git_a_worktree_or_a_job_names_stays(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards of a branch merged with `-s ours`, of a commit that was taken back, of a second
    worktree without a commit, of a job, of this folder, and of nothing any more."""
    url = f"local://{tmp_path}/bucket"
    make_shards("0.1")
    commit()
    shell("git", "checkout", "-qb", "other")
    merged = make_shards("0.2")
    commit()
    shell("git", "checkout", "-q", "main")
    shell("git", "merge", "-q", "-s", "ours", "-m", "ours", "other")
    shell("git", "branch", "-qD", "other")
    taken_back = make_shards("0.3")
    commit()
    shell("git", "reset", "-q", "--hard", "HEAD^")
    shell("git", "worktree", "add", "-q", str(tmp_path / "second"))
    shutil.copyfile("cluster.yaml", tmp_path / "second" / "cluster.yaml")
    elsewhere = make_shards("0.4", cwd=tmp_path / "second")
    of_job = make_shards("0.6")
    pointer = Path("data/shards/general/.stored").read_bytes()
    Location(f"{url}/jobs/elmo-a/data/shards/general").write(".stored", pointer)
    experiments = Path(".dvc/tmp/exps")  # one has the output, another its dvc.lock alone
    tried = make_shards("0.65")
    shutil.copytree("data", experiments / "a" / "data")
    locked = make_shards("0.66")
    (experiments / "b").mkdir()
    shutil.copyfile("dvc.lock", experiments / "b" / "dvc.lock")
    nothing = make_shards("0.7")
    here = make_shards("0.8")
    before = Location(url).sizes()
    assert len({merged, taken_back, elsewhere, of_job, tried, locked, nothing, here}) == 8
    unused()
    assert capsys.readouterr().out.split() == [f"{url}/{nothing}"]
    assert Location(url).sizes() == before
    unused("--remove")
    assert storage.read_output(url, nothing) is None
    after = Location(url).sizes()
    for name in (merged, taken_back, elsewhere, of_job, tried, locked, here):
        output = storage.read_output(url, name)
        assert output is not None
        place = name.rpartition("/")[0]
        assert all(after[f"{place}/{output.folder}/{one}"] for one in output.sizes)
    assert storage.delete_lost_pointers(url) == []
    unused()
    assert "0 unused outputs found" in capsys.readouterr().err


@pytest.mark.slow
def test_what_does_not_carry_the_mark_of_an_output_stays(project: Path, tmp_path: Path) -> None:
    """A user's files beside the outputs, a link out of the storage, an output in progress."""
    url, bucket, photos = f"local://{tmp_path}/bucket", tmp_path / "bucket", tmp_path / "photos"
    make_shards("0.1")
    place = bucket / "data" / "shards" / "general"
    photos.mkdir()
    (photos / "a.jpg").write_text("mine")
    own = [bucket / "photos" / "2024010112000000" / "a.jpg", place / "2024010112000000.json"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    nothing = make_shards("0.2")
    output = storage.read_output(url, nothing)
    assert output is not None
    shutil.rmtree(place / output.folder)  # in its place, a link to files of the same names
    for file in output.sizes:
        (photos / file).write_text("mine")
    (place / output.folder).symlink_to(photos)
    begun = storage.begin_output(Location("data/shards/general"), url, depends="x", resumes=False)
    begun.write("manifest.json", b"{}")
    record = storage.StoredOutput(begun.folder_name, begun.sizes())
    (place / "0123456789abcdef.json").write_bytes(
        b'{"kind": "elmo-output", "folder": "%b", "sizes": {"manifest.json": 2}}'
        % record.folder.encode()
    )
    unused("--remove")  # the output in progress is between its record and its pointer
    assert (place / "0123456789abcdef.json").exists() and begun.exists("manifest.json")
    make_shards("0.3")
    unused("--remove")
    assert storage.read_output(url, nothing) is None
    assert all(path.read_text() == "{}" for path in own)
    assert {path.name for path in photos.iterdir()} == {"a.jpg", *output.sizes}


def test_a_killed_output_goes_on_with_the_same_inputs_alone(project: Path, tmp_path: Path) -> None:
    url, named = f"local://{tmp_path}/bucket", Location("data/shards/general")

    def begin(depends: str, *, writes: str = "") -> Location:
        folder: Location = storage.begin_output(named, url, depends=depends, resumes=True)
        for name in ("part", "manifest.json") if writes else ():
            folder.write(name, json.dumps(writes).encode())
        return folder

    killed = begin("a", writes="1")
    again = begin("a")
    assert again == killed and [*again.sizes()] == ["part"], "its manifest is written last"
    other = begin("b", writes="2")
    assert other != killed and not killed.sizes()
    notes = Location(f"{url}/unfinished").sizes()
    note = Location(f"{url}/unfinished").read(*notes)
    storage.publish_output(named, other, url)
    assert not Location(f"{url}/unfinished").sizes()
    Location(f"{url}/unfinished").write(*notes, note)  # killed before that
    equal = begin("b", writes="2")
    assert equal != other and other.sizes()
    assert storage.published_location(equal, url) == other
    part = other.read("part")
    other.delete("part")
    assert storage.published_location(equal, url) == equal, "the other one is not whole"
    other.write("part", part)
    storage.publish_output(named, equal, url)
    assert other.sizes() and not equal.sizes(), "one of two equal outputs is kept"


@pytest.mark.slow
def test_nothing_is_removed_where_not_all_can_be_read(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"local://{tmp_path}/bucket"
    make_shards("0.1")
    commit()
    make_shards("0.2")
    make_shards("0.3")
    before = Location(url).sizes()

    def refused(match: str) -> None:
        with pytest.raises(ElmoError, match=match):
            unused("--remove")
        assert Location(url).sizes() == before

    shutil.move(".dvc/cache", "cache")
    refused("outputs of commits are not in DVC's cache.*--all-commits")
    shutil.move("cache", ".dvc/cache")
    mark = Path("data/shards/general/.stored")
    whole = mark.read_bytes()
    mark.write_bytes(b"{")
    refused("is not a pointer of this version")
    mark.write_bytes(whole)
    shutil.move(".git", "git")
    refused("commits of this folder can't be read: .*git")
    shutil.move("git", ".git")
    shell("git", "clone", "-q", "--depth", "1", f"file://{project}", str(tmp_path / "shallow"))
    for name in (".dvc/cache", "cluster.yaml"):
        os.symlink(project / name, tmp_path / "shallow" / name)
    monkeypatch.chdir(tmp_path / "shallow")
    refused("git fetch --unshallow --all")
    monkeypatch.chdir(project)
    shell("git", "config", "remote.origin.promisor", "true")
    refused("this clone is partial")
    shell("git", "config", "--unset", "remote.origin.promisor")
    removed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Location, "delete_all", lambda _, names: removed.extend(names))
        unused("--remove")
    records = [name for name in removed if re.fullmatch(r".*/[0-9a-f]{16}\.json", name)]
    assert records == removed[: len(records)], "a kill leaves no record of what is not there"
    unused("--remove")
    assert Location(url).sizes() != before
    Path("cluster.yaml").unlink()
    with pytest.raises(ElmoError, match="cluster.yaml: storage is empty"):
        unused()


def test_a_storage_that_keeps_nothing_is_refused(project: Path) -> None:
    Path("cluster.yaml").write_text("storage: memory://bucket/mine\n")
    with pytest.raises(ElmoError, match="use an object store"):
        unused()
