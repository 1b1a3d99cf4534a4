"""What the driver of each stage asks of a store that answers after 30 ms, and how long it waits.

    python -m benchmarks.latency [--shards 100 1000 10000] [--milliseconds 30]

The store is a file system of fsspec in this process that really sleeps, and counts requests as
s3fs makes them: two to copy a file, one for a thousand names or deletions. Requests of the main
thread are those that wait for one another. What workers do is done at once and not counted, so a
stage's seconds are its driver's. Prints JSON.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.machine import show
from benchmarks.manifests import SHAPE, WORDS
from elmo.data.characters import Characters
from elmo.data.vocabulary import Vocabulary
from elmo.io.location import Location
from elmo.model.folder import save_model
from elmo.nn.bilm import BiLM
from elmo.settings import StoreSettings
from elmo.store.build import build
from pipeline.cluster import restarts, storage, workers
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import TokenizeSettings, VocabSettings
from pipeline.stages import tokenize, vocab
from pipeline.text.input_files import find_inputs

URL = "slow://bucket/elmo"
LISTED = 1000  # names in a list, deletions in a request
NOTES = 64  # workers that train
FILES = 500  # of a project, most of them in DVC's cache
LINES = 16  # of a piece: its train and its held-out shard


class Slow(MemoryFileSystem):
    """Files in memory; each request takes `seconds`, is counted, and sleeps."""

    protocol = "slow"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    seconds = 0.0
    requests = 0
    alone = 0  # of the main thread
    quiet = False
    _inside = threading.local()
    _lock = threading.Lock()

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """One request for a thousand names."""
        with self._asked() as ask:
            listed = super().ls(path, detail=detail, **kwargs)
            ask(-(-max(1, len(listed)) // LISTED))
            return listed

    def find(self, path: str, **kwargs: Any) -> Any:
        """The same, whatever the folders."""
        with self._asked() as ask:
            listed = super().find(path, **kwargs)
            ask(-(-max(1, len(listed)) // LISTED))
            return listed

    def info(self, path: str, **kwargs: Any) -> Any:
        """One request, and another where there is none of that name: it could be a folder."""
        with self._asked() as ask:
            ask(1 if path in self.store else 2)
            return super().info(path, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> Any:
        """As `info`."""
        with self._asked() as ask:
            ask(1 if self._strip_protocol(path) in self.store else 2)
            return super().exists(path, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> Any:
        """It asks for the size first."""
        with self._asked() as ask:
            ask(2)
            return super().cp_file(path1, path2, **kwargs)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> Any:
        """A list, and a thousand deletions in each request."""
        with self._asked() as ask:
            files = super().find(path)
            ask(2 * -(-max(1, len(files)) // LISTED))
            return super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Reading asks for the size, then for the bytes."""
        with self._asked() as ask:
            ask(2 if "r" in mode else 1)
            return super().open(path, mode, **kwargs)

    @contextmanager
    def _asked(self) -> Iterator[Callable[[int], None]]:
        """Yield what counts requests and sleeps, but for what one method asks of another."""
        inside = getattr(self._inside, "depth", 0)

        def ask(requests: int) -> None:
            if inside or Slow.quiet:
                return
            with self._lock:
                Slow.requests += requests
                Slow.alone += requests * (threading.current_thread() is threading.main_thread())
            time.sleep(requests * Slow.seconds)

        self._inside.depth = inside + 1
        try:
            yield ask
        finally:
            self._inside.depth = inside


def _single(name: str) -> Callable[..., Any]:
    """A method of one request."""

    def method(self: Slow, path: str, *arguments: Any, **options: Any) -> Any:
        with self._asked() as ask:
            ask(1)
            return getattr(MemoryFileSystem, name)(self, path, *arguments, **options)

    return method


for _name in ("cat_file", "pipe_file", "put_file", "get_file", "rm_file", "modified", "size"):
    setattr(Slow, _name, _single(_name))


@contextmanager
def quietly() -> Iterator[None]:
    """What workers do: neither counted nor slow."""
    Slow.quiet = True
    try:
        yield
    finally:
        Slow.quiet = False


class Meter:
    """Takes the figures of stages: seconds without those of the workers, and requests."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self._working = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What a stage takes."""
        Slow.requests, Slow.alone, self._working = 0, 0, 0.0
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began - self._working
        self.figures[name] = {
            "seconds": round(seconds, 1),
            "requests": Slow.requests,
            "one after another": Slow.alone,
        }

    def work(self, function: Callable[[Any], Any], items: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Do the workers' part, as `workers.tasks` does it elsewhere."""
        for item in items:
            began = time.monotonic()
            with quietly():
                result = function(item)
            self._working += time.monotonic() - began
            yield result

    def embed(
        self, kind: Callable[..., Any], arguments: Sequence[Any], jobs: Sequence[Any]
    ) -> Iterator[Any]:
        """The same for a store."""
        with quietly():
            embedder = kind(*arguments)
        return self.work(embedder, jobs)


def measure(shards: int, home: Path) -> dict[str, dict[str, float]]:
    """What each stage asks and waits for a corpus of about so many shards; works in `home`."""
    Slow.store.clear()
    meter = Meter()
    os.chdir(home)
    workers.tasks = meter.work  # type: ignore[assignment]
    lines = [" ".join([*WORDS[k % 5 :], str(k)]) for k in range(LINES * shards // 2)]
    text = "".join(f"{line:63.63}\n" for line in lines).encode()
    model = _model(home / "model")
    with quietly():
        Location(URL).write("text.txt", text)
    with meter.stage("corpus: digests"):
        inputs = find_inputs([f"{URL}/text.txt"])
    unfinished, cluster = storage._own(URL), Cluster(actors=1)
    params = TokenizeSettings(
        tokenizer="whitespace",
        sentences="line",
        documents="line",
        heldout=0.5,
        shard_bytes=LINES * 64,
    )
    with meter.stage("tokenize"):
        work, made = Location(f"{unfinished}/work"), Location(f"{unfinished}/data/shards")
        tokenize.tokenize(inputs, made, params, column="text", work=work, cluster=cluster)
    with meter.stage("tokenize: published"):
        storage.publish(Location("data/shards"), made, URL)
    read = storage.read_from(Location("data/shards"), URL)
    counting = VocabSettings(
        min_count=1, max_words=0, characters="bytes", max_characters=50, min_character_count=1
    )
    with meter.stage("vocab"):
        vocab.run(
            read,
            Location(f"{unfinished}/data/vocab"),
            counting,
            work=work,
            cluster=cluster,
        )
    with meter.stage("features"):
        made = Location(f"{unfinished}/data/features")
        settings = StoreSettings()
        build(made, shards=read, model=model, settings=settings, run=meter.embed)
    with meter.stage("features: published"):
        storage.publish(Location("data/features"), made, URL)
    return meter.figures


def measure_rest(home: Path) -> dict[str, dict[str, float]]:
    """The same of what does not depend on the corpus."""
    Slow.store.clear()
    meter, run = Meter(), Location(f"{URL}/run")
    with quietly():
        for rank in range(NOTES):
            restarts.record_worker_start(run, rank, NOTES, f"10.0.0.{rank}")
        for number in range(FILES):
            folder = Location(f"{URL}/project/.dvc/cache/files/md5/{number % 256:02x}")
            folder.write(str(number), b"cached")
    with meter.stage(f"a loss among {NOTES} workers"):
        restarts.describe_losses({"0": restarts.LOSSES["health check (failed|timed out)"]}, run)
    with (
        meter.stage(f"notes of {NOTES} workers removed"),
        restarts.show_worker_count(run, label="run"),
    ):
        pass
    with meter.stage(f"a project of {FILES} files fetched"):
        kept = Location(f"{URL}/project")
        kept.get_all(kept.tree(), home / "fetched")
    return meter.figures


def _model(folder: Path) -> Path:
    bilm = BiLM(SHAPE, characters=Characters().size)
    bilm.reset_parameters(1)
    words = Vocabulary(["<S>", "</S>", "<UNK>", *WORDS])
    save_model(
        folder,
        bilm=bilm,
        vocabulary=words,
        characters=Characters(),
        softmax=None,
        training={},
        tokenizer=tokenize.installed_tokenization("whitespace", "line"),
    )
    return folder


def main() -> None:
    """Print the figures of each number of shards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--milliseconds", type=float, default=30)
    options = parser.parse_args()
    fsspec.register_implementation("slow", Slow, clobber=True)
    Slow.seconds = options.milliseconds / 1000
    figures: dict[str, Any] = {}
    for shards in options.shards:
        with tempfile.TemporaryDirectory() as home:
            figures[f"{shards} shards"] = measure(shards, Path(home))
    with tempfile.TemporaryDirectory() as home:
        figures["of any corpus"] = measure_rest(Path(home))
    show(figures)


if __name__ == "__main__":
    main()
