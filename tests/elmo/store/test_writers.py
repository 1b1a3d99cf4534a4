"""Several processes at one store: what is published stays, and one of two writers is told."""

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.data.shards import write_shards
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.settings import StoreSettings
from elmo.store import FeatureStore, maintenance
from elmo.store.build import append, build, run_serially
from elmo.store.maintenance import compact, prune, verify

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = StoreSettings(row_group_tokens=64)
WRITER = """
import sys
from pathlib import Path
from elmo.errors import ElmoError
from elmo.store.build import append, build, run_serially
from elmo.settings import StoreSettings

command, store, shards, model, work = sys.argv[1:]

def run(kind, arguments, jobs):
    parts = list(run_serially(kind, arguments, jobs))
    print("ready", flush=True)
    sys.stdin.readline()
    return parts

given = {"shards": Path(shards), "model": Path(model), "run": run}
try:
    if command == "append":
        append(store, **given)
    else:
        build(store, settings=StoreSettings(row_group_tokens=64), work=work, **given)
except ElmoError as error:
    sys.exit(f"error: {error}")
"""


class Writer:
    """A process that has written its parts and waits before it publishes them."""

    def __init__(self, command: str, store: Path, shards: Path, model: Path) -> None:
        given = [command, store, shards, model, store.parent / "work"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, *map(str, given)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> None:
        """Until its parts are written."""
        line = self.process.stdout.readline()
        assert line == "ready\n", self.process.stderr.read()

    def end(self) -> tuple[int, str]:
        """Let it publish; return its exit code and what it said."""
        _, said = self.process.communicate("\n")
        return self.process.returncode, said


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of shards: first, second, third."""
    folder = tmp_path_factory.mktemp("shards")
    for name in ("first", "second", "third"):
        write_shards(folder / name, [[name, f"w{k}"] for k in range(40)], shard_sentences=10)
    return folder


@pytest.fixture
def store(tmp_path: Path, shards: Path, tiny_model_folder: Path) -> Path:
    out = tmp_path / "store"
    build(out, shards=shards / "first", model=tiny_model_folder, settings=SETTINGS)
    return out


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    started: list[Writer] = []
    yield started
    for writer in started:
        writer.process.kill()
        writer.process.wait()


@pytest.mark.slow
def test_two_appends_at_once_and_a_prune_lose_nothing(
    store: Path, shards: Path, tiny_model_folder: Path, writers: list[Writer]
) -> None:
    before = files(store)
    for name in ("second", "third"):
        writers.append(Writer("append", store, shards / name, tiny_model_folder))
    for writer in writers:
        writer.wait()
    assert prune(store) == []  # both are alive
    ends = [writer.end() for writer in writers]
    assert sorted(code for code, _ in ends) == [0, 1]
    said = max(ends)[1]
    assert "another process published version 2 meanwhile" in said and said.count("\n") == 1
    assert verify(store).version == 2
    assert {name: files(store)[name] for name in before} == before
    lost = ("second", "third")[[code for code, _ in ends].index(1)]
    append(store, shards=shards / lost, model=tiny_model_folder)
    assert len(FeatureStore(store)) == 120
    verify(store)
    verify(store, version=1)


@pytest.mark.slow
def test_an_append_that_a_compaction_overtakes_is_told(
    store: Path, shards: Path, tiny_model_folder: Path, writers: list[Writer]
) -> None:
    writers.append(Writer("append", store, shards / "second", tiny_model_folder))
    writers[0].wait()
    compact(store, part_tokens=1000)
    code, said = writers[0].end()
    assert (code, "another process published version 2" in said) == (1, True)
    assert verify(store).made_by == "compact"
    verify(store, version=1)


@pytest.mark.slow
def test_a_compaction_that_begins_during_a_prune_waits_for_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compaction = threading.Thread(target=compact, args=(store,), kwargs={"part_tokens": 1000})
    names = maintenance.versions

    def versions(location: Location) -> dict[int, str]:
        present = names(location)
        monkeypatch.setattr(maintenance, "versions", names)
        compaction.start()
        compaction.join(2.0)  # long enough to publish its version, were it let
        return present

    monkeypatch.setattr(maintenance, "versions", versions)
    assert prune(store) == []
    compaction.join()
    assert verify(store).made_by == "compact"


def test_a_prune_keeps_all_where_what_it_keeps_is_damaged(store: Path) -> None:
    compact(store, part_tokens=1000)
    (new,) = [part.file for part in verify(store).parts]
    (store / new).write_bytes((store / new).read_bytes()[:-20])
    before = files(store)
    with pytest.raises(ElmoError, match=new):
        prune(store)
    assert files(store) == before


@pytest.mark.slow
def test_what_a_killed_append_left_is_resumed_or_pruned(
    store: Path, shards: Path, tiny_model_folder: Path, writers: list[Writer]
) -> None:
    whole = files(store)
    writers.append(Writer("append", store, shards / "second", tiny_model_folder))
    writers[0].wait()
    writers[0].process.send_signal(signal.SIGKILL)
    writers[0].process.wait()
    left = set(files(store)) - set(whole)
    assert len([name for name in left if name.startswith("part-")]) == 4
    saved = Path(shutil.copytree(store, store.parent / "copy"))
    (saved / ".new-0123456789abcdef").write_text("half of a part")
    prune(saved)
    assert files(saved) == whole

    def resumed(kind, arguments, jobs):
        embedder = kind(*arguments)
        embedder._write = None
        return map(embedder, jobs)

    append(store, shards=shards / "second", model=tiny_model_folder, run=resumed)
    verify(store)


@pytest.mark.slow
def test_of_two_equal_builds_both_succeed(
    tmp_path: Path, shards: Path, tiny_model_folder: Path, writers: list[Writer]
) -> None:
    for _ in range(2):
        given = (tmp_path / "new", shards / "first", tiny_model_folder)
        writers.append(Writer("build", *given))
    for writer in writers:
        writer.wait()
    assert [writer.end() for writer in writers] == [(0, ""), (0, "")]
    assert verify(tmp_path / "new").version == 1
    assert list((tmp_path / "work").iterdir()) == []


def test_a_build_over_a_store_adds_a_version_and_over_anything_else_is_refused(
    tmp_path: Path, store: Path, shards: Path, tiny_model_folder: Path
) -> None:
    before = files(store)
    given = {"model": tiny_model_folder, "settings": SETTINGS}
    assert build(store, shards=shards / "first", **given).version == 1
    assert files(store) == before
    assert build(store, shards=shards / "second", **given).version == 2
    assert {name: files(store)[name] for name in before} == before
    verify(store)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ElmoError, match="mine: holds thesis.txt and is not a store"):
        build(tmp_path / "mine", shards=shards / "first", **given)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ElmoError, match="file: is no folder; choose a folder"):
        build(tmp_path / "file", shards=shards / "first", **given)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_another_kind_of_device_resumes_nothing(
    tmp_path: Path, shards: Path, tiny_model_folder: Path
) -> None:
    seen = {}

    def stop(device):
        def run(kind, arguments, jobs):
            seen[device] = jobs
            if device == "cpu":
                list(run_serially(kind, arguments, jobs))
            raise KeyboardInterrupt

        return run

    for device in ("cpu", "cuda", "cuda:1"):
        with pytest.raises(KeyboardInterrupt):
            build(
                tmp_path / "store",
                shards=shards / "first",
                model=tiny_model_folder,
                settings=SETTINGS,
                work=tmp_path / "work",
                device=device,
                run=stop(device),
            )
    prints = {device: {job.origin.fingerprint for job in jobs} for device, jobs in seen.items()}
    assert not prints["cpu"] & prints["cuda"]
    assert prints["cuda"] == prints["cuda:1"]
    store = tmp_path / "on_cpu"
    manifest = build(store, shards=shards / "first", model=tiny_model_folder, settings=SETTINGS)
    assert [source.device for source in manifest.sources] == ["cpu"]


def files(folder: Path) -> dict[str, bytes]:
    names = [path for path in folder.rglob("*-*") if not path.name.startswith(".writing")]
    return {path.name: path.read_bytes() for path in sorted(names)}
