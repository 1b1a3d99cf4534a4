"""The vocabulary stage against counting tokens in Python.

    python -m benchmarks.vocabulary TEXT... [--tokenizer unicode] [--min-count 2] [--repeat 3]

Both sides end with the same words.txt. Python counts the tokens of the shards, sentence by
sentence, with `Counter`, and, as the fastest it can do, the same tokens from a text file by
`str.split`. Ours is the stage whole, checksums included, in one process. Prints JSON.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import show
from elmo.data.shards import Shards
from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import TokenizeSettings, VocabSettings
from pipeline.stages import vocab
from pipeline.stages.tokenize import tokenize
from pipeline.text.input_files import find_inputs

MARKS = ["<S>", "</S>", "<UNK>"]


def main() -> None:
    """Measure all sides in turn and print the medians and their ratios."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = _shards(options, folder / "shards")
        text = folder / "text.txt"
        with text.open("w", encoding="utf-8") as file:
            file.writelines(" ".join(row) + "\n" for row in _rows(shards))
        workers.tasks = _here  # type: ignore[assignment]
        times: dict[str, list[float]] = {"stage": [], "shards": [], "text": []}
        for _ in range(options.repeat):
            times["stage"].append(_seconds(lambda: _stage(shards, folder / "ours", options)))
            times["shards"].append(_seconds(lambda: _count_shards(shards, folder, options)))
            times["text"].append(_seconds(lambda: _count_text(text, folder, options)))
            _same(folder)
        show(_report(shards, times, folder, options))


def _shards(options: argparse.Namespace, out: Path) -> Shards:
    params = TokenizeSettings(options.tokenizer, "line", "line", 0.0, options.shard_bytes)
    cluster = Cluster(workers=0, cpus=1, gpu=False, actors=os.cpu_count() or 1)
    tokenize(
        find_inputs(options.text),
        Location(out),
        params,
        column="text",
        work=Location(out.parent / "runs"),
        cluster=cluster,
    )
    return Shards(out)


def _stage(shards: Shards, out: Path, options: argparse.Namespace) -> None:
    params = VocabSettings(options.min_count, 0, "bytes", 1, 50)
    cluster = Cluster(workers=0, cpus=1, gpu=False, actors=1)
    vocab.run(
        shards.location, Location(out), params, work=Location(out.parent / "runs"), cluster=cluster
    )


def _count_shards(shards: Shards, folder: Path, options: argparse.Namespace) -> None:
    counts: Counter[str] = Counter()
    for row in _rows(shards):
        counts.update(row)
    _write(counts, folder / "from-shards.txt", options.min_count)


def _count_text(text: Path, folder: Path, options: argparse.Namespace) -> None:
    counts: Counter[str] = Counter()
    with text.open(encoding="utf-8") as file:
        for line in file:
            counts.update(line.split())
    _write(counts, folder / "from-text.txt", options.min_count)


def _write(counts: Counter[str], out: Path, min_count: int) -> None:
    chosen = [word for word in counts if counts[word] >= min_count and word not in MARKS]
    words = sorted(chosen, key=lambda word: (-counts[word], word))
    out.write_text("".join(f"{word}\n" for word in [*MARKS, *words]), encoding="utf-8")


def _rows(shards: Shards) -> Iterator[list[str]]:
    for entry in shards.entries("train"):
        shard = shards.open(entry)
        yield from (shard.tokens(row) for row in range(len(shard)))


def _same(folder: Path) -> None:
    ours = (folder / "ours" / "words.txt").read_bytes()
    for name in ("from-shards.txt", "from-text.txt"):
        if (folder / name).read_bytes() != ours:
            sys.exit(f"error: {name} differs from words.txt")


def _report(
    shards: Shards, times: dict[str, list[float]], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    stage, from_shards, from_text = (median(times[side]) for side in ("stage", "shards", "text"))
    return {
        "tokens": shards.tokens("train"),
        "words": len((folder / "from-text.txt").read_text(encoding="utf-8").splitlines()),
        "shards": len(shards.entries("train")),
        "repeat": options.repeat,
        "stage_seconds": round(stage, 4),
        "python_from_shards_seconds": round(from_shards, 3),
        "python_from_text_seconds": round(from_text, 3),
        "ratio_to_python_from_shards": round(from_shards / stage, 1),
        "ratio_to_python_from_text": round(from_text / stage, 1),
    }


def _here(function: Callable[[Any], Any], items: Any, **_: Any) -> Iterator[Any]:
    yield from map(function, items)


def _seconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", nargs="+", help="files, folders, globs or URLs of text")
    parser.add_argument("--tokenizer", default="unicode", choices=["whitespace", "unicode"])
    parser.add_argument("--min-count", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shard-bytes", type=int, default=64 << 20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
