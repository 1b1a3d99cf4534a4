"""A store that is made again: what is still right is taken over, and readers and kills come at any
moment."""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest
from msgspec import to_builtins

from elmo.data.manifest import ShardsCounts, TokenizerEntry, write_manifest
from elmo.data.shards import SHARD_FILE_PATTERN, describe_shard, shard_name, write_shards
from elmo.errors import ElmoError, Mismatch
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import ShardEmbedder, build, run_serially
from elmo.store.manifest import MANIFEST_PATH, SourceShard
from elmo.store.verify import verify
from elmo.store.writer import PartOrigin
from tests.files import contents, flip

SETTINGS = StoreSettings(row_group_tokens=16)
SENTENCES = 12  # of a file

Texts = Mapping[str, list[list[str]]]


def text(name: str, sentences: int = SENTENCES) -> list[list[str]]:
    """Return the sentences of a file, which no other file has; some of them are blank."""
    draw = random.Random(name)
    return [[f"{name}{draw.randrange(9)}"] * draw.randrange(6) for _ in range(sentences)]


FILES = {name: text(name) for name in ("a", "b", "c")}
NEW = text("new", sentences=7)
BETWEEN = {"a": FILES["a"], "new": NEW, "b": FILES["b"], "c": FILES["c"]}


def write_files(out: Path, texts: Texts) -> Path:
    """Write shards as the tokenize stage does: one for each file, its ids counted from its own
    start."""
    entries, documents, sentences = [], 0, 0
    options = {"required": ("manifest.json",), "pattern": SHARD_FILE_PATTERN}
    with new_folder(Location(out), **options) as folder:
        for number, rows in enumerate(texts.values()):
            alone = folder / "alone"
            write_shards(alone, rows)
            path = alone / "train-00000.arrow"
            name = shard_name("train", number)
            entry = describe_shard(path, split="train", name=name)
            entries.append(
                entry.with_corpus_position(sentences_before=sentences, documents_before=documents)
            )
            path.rename(folder / name)
            shutil.rmtree(alone)
            sentences += len(rows)
            documents += len(rows) + 1  # as of a file whose last document is blank
        tokens = sum(entry.tokens for entry in entries)
        write_manifest(
            Location(folder),
            shards=entries,
            documents_by_split={"train": documents, "heldout": 0},
            tokenizer=TokenizerEntry("whitespace"),
            counts=ShardsCounts(documents, sentences, 0, tokens, 0, 0, {}),
            inputs=[],
            quality={},
        )
    return out


class Count:
    """A runner of jobs that counts what it embeds, in an order of its own."""

    def __init__(self, order: Callable[[list[Any]], Any] = list) -> None:
        self.order, self.tokens = order, 0

    def __call__(self, kind: Any, arguments: Sequence[Any], jobs: Sequence[Any]) -> Iterator[Any]:
        embedders = [kind(*arguments) for _ in range(2)]
        for number, job in enumerate(self.order([*jobs])):
            embedder: ShardEmbedder = embedders[number % 2]
            embedder._write_part = partial(self._write_part, embedder)  # type: ignore[method-assign]
            yield embedder(job)

    def _write_part(self, embedder: ShardEmbedder, job: Any) -> Any:
        part = ShardEmbedder._write_part(embedder, job)
        self.tokens += part.tokens
        return part


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    """A folder with `model`, `old`, a store of three files, `new`, one of four, and the shards of
    the latter."""
    folder = tmp_path_factory.mktemp("given")
    shutil.copytree(tiny_model_folder, folder / "model")
    for name, texts in (("old", FILES), ("new", BETWEEN)):
        write_files(folder / f"{name}-shards", texts)
        make(folder, folder / name, folder / f"{name}-shards")
    return folder


@pytest.fixture
def store(given: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(given / "old", tmp_path / "project" / "store"))


def make(given: Path, out: Path, shards: Path, **options: Any) -> None:
    build(out, shards=shards, model=given / "model", settings=SETTINGS, **options)


def tokens_of(sentences: list[list[str]]) -> int:
    return sum(map(len, sentences))


CHANGES: dict[str, tuple[Texts, int]] = {
    "nothing": (FILES, 0),
    "a file between others": (BETWEEN, tokens_of(NEW)),
    "a file at the end": ({**FILES, "new": NEW}, tokens_of(NEW)),
    "a file less": ({"b": FILES["b"], "c": FILES["c"]}, 0),
    "another order": ({"c": FILES["c"], "a": FILES["a"], "b": FILES["b"]}, 0),
    "a file that is there": ({**FILES, "again": FILES["b"]}, 0),
    "a file that changed": ({**FILES, "b": NEW}, tokens_of(NEW)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_only_what_is_new_is_embedded(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, codec: Any
) -> None:
    """And the bytes are those of a store that is made from nothing."""
    texts, embedded = CHANGES[change]
    settings = StoreSettings(row_group_tokens=16, codec=codec)
    options = {"model": given / "model", "settings": settings}
    store = tmp_path / "store"
    build(store, shards=given / "old-shards", **options)
    count = Count()
    shards = write_files(tmp_path / "shards", texts)
    build(store, shards=shards, run_jobs=count, **options)
    assert count.tokens == embedded
    build(tmp_path / "fresh", shards=shards, **options)
    assert contents(store) == contents(tmp_path / "fresh")
    verify(store)
    opened = FeatureStore(store)
    assert [opened.tokens(k) for k in range(len(opened))] == sum(texts.values(), [])


def test_other_settings_or_another_model_take_nothing(given: Path, store: Path) -> None:
    from tests.elmo.conftest import save_tiny_model

    save_tiny_model(store.parent / "model", seed=5)
    options: Any = {"shards": given / "old-shards", "previous_store": given / "old"}
    for change in ({"layers": "top"}, {"precision": "bfloat16"}, {"row_group_tokens": 17}, {}):
        count, model = Count(), (given if change else store.parent) / "model"
        settings = replace(SETTINGS, **change)
        build(store, model=model, settings=settings, run_jobs=count, **options)
        assert count.tokens == tokens_of(sum(FILES.values(), []))


@pytest.mark.parametrize("kind", ["part-*", "__elmo/types-*"])
@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_part_is_embedded_again(given: Path, store: Path, kind: str, damage: str) -> None:
    path = sorted(store.glob(kind))[0]
    path.unlink() if damage == "missing" else flip(path)
    count = Count()
    make(given, store, given / "old-shards", run_jobs=count)
    assert 0 < count.tokens < tokens_of(sum(FILES.values(), []))
    assert contents(store) == contents(given / "old")


def test_the_order_of_the_work_changes_no_byte(given: Path, store: Path) -> None:
    for order in (reversed, sorted_by_name):
        shutil.copytree(given / "old", store, dirs_exist_ok=True)
        make(given, store, given / "new-shards", run_jobs=Count(order))
        assert contents(store) == contents(given / "new")
        shutil.rmtree(store)


def sorted_by_name(jobs: list[Any]) -> list[Any]:
    return sorted(jobs, key=lambda job: job.origin.part_file)


# What changes the files of a folder; `open` counts where it may write.
CHANGING = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "open"}
_on_change: Callable[[], None] | None = None


def call_before_changes(event: str, arguments: tuple[Any, ...]) -> None:
    """Call `_on_change` before the file system is changed: an audit hook of Python."""
    global _on_change
    if _on_change is None or event not in CHANGING:
        return
    if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    call, _on_change = _on_change, None
    call()
    _on_change = call


def ids_by_glob(store: Path) -> list[int]:
    """Return the sentences that a reader of all Parquet files sees."""
    table = pyarrow.dataset.dataset(sorted(map(str, store.glob("*.parquet")))).to_table()
    return table["sentence_id"].to_pylist()


def check_whole(store: Path) -> int:
    """Check that a store is the old one or the new one to whoever reads it; return its length."""
    opened = FeatureStore(store)
    assert len(opened) in (3 * SENTENCES, 3 * SENTENCES + len(NEW))
    assert ids_by_glob(store) == list(range(len(opened)))
    texts = FILES if len(opened) == 3 * SENTENCES else BETWEEN
    assert [opened.tokens(k) for k in range(len(opened))] == sum(texts.values(), [])
    return len(opened)


def test_readers_see_each_sentence_once_at_every_moment(given: Path, store: Path) -> None:
    global _on_change
    seen: list[int] = []
    sys.addaudithook(call_before_changes)
    _on_change = lambda: seen.append(check_whole(store))  # noqa: E731
    try:
        make(given, store, given / "new-shards")
    finally:
        _on_change = None
    assert len(seen) > 20 and set(seen) == {3 * SENTENCES, 3 * SENTENCES + len(NEW)}


def test_a_reader_that_has_the_old_store_open_is_told(given: Path, store: Path) -> None:
    opened = FeatureStore(store)
    opened.tokens(0)
    make(given, store, given / "new-shards")
    assert opened.tokens(1) == FILES["a"][1]  # of a part that stayed
    with pytest.raises(ElmoError, match="another store has replaced this one since it was opened"):
        opened.tokens(SENTENCES)


def make_and_die(moment: int, given: Path, out: Path) -> int:
    """Make the new store in a process that is killed before change number `moment` of the file
    system; return its exit code, which is 0 if there are fewer changes."""
    global _on_change
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = moment

    def die() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(call_before_changes)
        _on_change = die
        make(given, out, given / "new-shards")
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
def test_a_kill_at_every_moment_leaves_the_old_store_or_the_new_one(
    given: Path, tmp_path: Path
) -> None:
    expected = contents(given / "new")
    lengths = set()
    for moment in range(1000):
        store = tmp_path / str(moment) / "store"
        shutil.copytree(given / "old", store)
        code = make_and_die(moment, given, store)
        lengths.add(check_whole(store))
        make(given, store, given / "new-shards")
        assert contents(store) == expected
        assert os.listdir(store.parent) == ["store"]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert moment > 20 and len(lengths) == 2


def test_a_second_writer_of_the_same_store_is_told(given: Path, store: Path) -> None:
    work = store.parent / "work"

    def second(kind: Any, arguments: Any, jobs: Any) -> Any:
        with pytest.raises(ElmoError, match="is working here"):
            make(given, store, given / "new-shards", work=work)
        return run_serially(kind, arguments, jobs)

    make(given, store, given / "new-shards", work=work, run_jobs=second)
    assert contents(store) == contents(given / "new")
    with work_folder_lock(work / "another"):
        make(given, store, given / "old-shards", work=work)


def test_another_kind_of_device_takes_nothing(given: Path, tmp_path: Path) -> None:
    names = {}

    def stop_on(device: str) -> Any:
        def stop(kind: Any, arguments: Any, jobs: Any) -> Any:
            names[device] = {job.origin.part_file for job in jobs}
            raise KeyboardInterrupt

        return stop

    for device, run in ((name, stop_on(name)) for name in ("cpu", "cuda", "cuda:1")):
        with pytest.raises(KeyboardInterrupt):
            make(given, tmp_path / "store", given / "old-shards", device=device, run_jobs=run)
    assert not names["cpu"] & names["cuda"]
    assert names["cuda"] == names["cuda:1"]
    assert os.listdir(tmp_path) == []
    (manifest,) = FeatureStore(given / "old").manifests
    assert manifest.source.device == "cpu"


def test_several_stores_are_read_as_one(given: Path, tmp_path: Path) -> None:
    paths = []
    for name in FILES:
        shards = write_files(tmp_path / f"{name}-shards", {name: FILES[name]})
        make(given, tmp_path / name, shards)
        paths.append(tmp_path / name)
    joined, whole = FeatureStore(paths), FeatureStore(given / "old")
    assert len(joined) == len(whole) == 3 * SENTENCES
    for k in range(len(whole)):
        assert joined.tokens(k) == whole.tokens(k)
        np.testing.assert_array_equal(joined[k], whole[k])
    assert joined.ids("train").tolist() == whole.ids("train").tolist()
    assert [n for block in joined.blocks() for n in block.sentence_ids] == list(range(len(whole)))
    documents = [joined.part(n).document_ids for n in joined.part_numbers()]
    assert all(one[-1] < two[0] for one, two in zip(documents, documents[1:], strict=False))
    longer = FeatureStore([given / "old", paths[0]])  # the last of its 36 sentences is document 37
    assert longer.sentences(38).tolist() == [36]
    assert (joined.counts.tokens, joined.counts.parts) == (whole.counts.tokens, 3)
    assert len({FeatureStore(path).digest for path in paths} | {joined.digest}) == 4
    assert FeatureStore(paths[:1]).digest == FeatureStore(paths[0]).digest


def test_stores_that_do_not_belong_together_are_refused(given: Path, tmp_path: Path) -> None:
    from tests.elmo.conftest import save_tiny_model

    save_tiny_model(tmp_path / "model", seed=5)
    shards = given / "old-shards"
    build(tmp_path / "other", shards=shards, model=tmp_path / "model", settings=SETTINGS)
    build(tmp_path / "top", shards=shards, model=given / "model", settings=StoreSettings("top"))
    with pytest.raises(Mismatch, match="other: was made by model .*; stores read as one"):
        FeatureStore([given / "old", tmp_path / "other"])
    settings = replace(SETTINGS, precision="bfloat16")
    build(tmp_path / "rounded", shards=shards, model=given / "model", settings=settings)
    for name in ("top", "rounded"):
        with pytest.raises(Mismatch, match=f"{name}: was made with other settings than .*old"):
            FeatureStore([given / "old", tmp_path / name])
    with pytest.raises(ElmoError, match="found an empty list"):
        FeatureStore([])


def test_a_part_is_named_by_its_vectors_and_its_ids() -> None:
    origin = PartOrigin("train", SourceShard("a", "0" * 64), 0, 0, 0, {"model": "a"})
    offsets = ("sentence_offset", "document_offset", "position")
    changes: list[dict[str, Any]] = [{}, {"inputs": {}}, *({name: 1} for name in offsets)]
    assert len({replace(origin, **change).part_file for change in changes}) == 5


def test_parts_are_in_the_order_of_their_names(given: Path) -> None:
    (manifest,) = FeatureStore(given / "new").manifests
    names = [part.file for part in manifest.parts]
    assert names == sorted(names)
    assert [part.first_sentence_id for part in manifest.parts] == [0, 12, 19, 31]
    assert set(contents(given / "new")) == {
        MANIFEST_PATH,
        *(path for part in manifest.parts for path in (part.path, part.types.path)),
    }
    assert to_builtins(manifest)["schema"] == 4
