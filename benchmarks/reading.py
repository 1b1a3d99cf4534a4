"""What a worker pays to read one window, beside how many others: 128 rows of 20 tokens each.

    python -m benchmarks.reading SHARDS VOCAB [--workers 1 8 64] [--windows 200]

`SHARDS` and `VOCAB` are outputs of the pipeline. The first worker's windows are read on one core:
tokens, their characters, reset marks and dropout's keys. Prints JSON, medians of a window.
"""

import argparse
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.machine import show
from elmo.data.characters import Characters
from elmo.data.shards import Shards
from elmo.data.stream import WindowStream
from elmo.data.vocabulary import Vocabulary
from elmo.nn.dropout import dropout_keys
from elmo.train.step import WorkerGroup

ROWS, WINDOW = 128, 20  # of each worker
WARM = 20  # windows that are not counted: the first ones open shards


def main() -> None:
    """Read windows as one of each number of workers, print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shards", type=Path)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--windows", type=int, default=200)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for size in options.workers:
        milliseconds = _windows(options.shards, options.vocab, size, options.windows)
        median = statistics.median(milliseconds)
        figures[f"{size} workers"] = {
            "ms a window": round(median, 2),
            "slowest tenth, ms": round(statistics.quantiles(milliseconds, n=10)[-1], 2),
            "tokens/s": round(ROWS * WINDOW / median * 1000),
        }
    show(figures)


def _windows(shards: Path, vocab: Path, size: int, count: int) -> list[float]:
    """Milliseconds of each window of the first of `size` workers."""
    rows = ROWS * size
    mine = WorkerGroup(rank=0, size=size).own_rows(rows)
    stream = WindowStream(
        Shards(shards),
        Vocabulary.load(vocab),
        Characters.load(vocab / "characters.json").encode,
        split="train",
        rows=rows,
        window=WINDOW,
        block_sentences=64,
        epochs=1000,
        seed=1,
        mine=mine,
    )
    windows = stream.windows(stream.first_position())
    for _ in islice(windows, WARM):
        pass
    spent = []
    for step in range(count):
        began = time.perf_counter()
        next(windows)
        for layer in range(3):
            dropout_keys(1, step, layer, rows=mine)
        spent.append(1000 * (time.perf_counter() - began))
    return spent


if __name__ == "__main__":
    main()
