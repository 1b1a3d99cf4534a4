"""Merging the counts of many shards' types: time and peak memory by the number of distinct types.

    python -m benchmarks.vocabulary_merge [--types 50000000] [--shards 64] [--rows 1500000]

Each of the shards counts `rows` types drawn from all, so that most are seen in a few shards. The
counts lie in files, as the stage leaves them; files are made first and not timed. Prints JSON.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.machine import show
from elmo.location import Location
from pipeline import vocab
from pipeline.text.hashing import hash_strings


def main() -> None:
    """Make the files, merge them, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", type=int, default=50_000_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_500_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{k}.arrow" for k in range(options.shards)]
        written = sum(_write(path, k, options) for k, path in enumerate(paths))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        merged = vocab.merge([vocab._read_counts(Location(folder), path.name) for path in paths])
        seconds = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert merged.tokens == written
    figures = {
        "shards": options.shards,
        "rows": options.shards * options.rows,
        "distinct types": len(merged.types),
        "seconds": round(seconds, 1),
        "peak_mb": round(peak / 1024),
        "peak_mb_before": round(before / 1024),
        "types_mb": round((merged.types.nbytes + merged.counts.nbytes) / 2**20),
    }
    show(figures)


def _write(path: Path, seed: int, options: argparse.Namespace) -> int:
    """The counts of one shard; how many tokens they count."""
    generator = np.random.default_rng(seed)
    numbers = np.unique(generator.integers(0, options.types, options.rows))
    types = pc.binary_join_element_wise("type", pa.array(numbers).cast(pa.string()), "")
    counts = generator.integers(1, 9, len(numbers))
    hashes = hash_strings(types)
    order = np.argsort(hashes, kind="stable")
    columns = {"type": types.take(pa.array(order)), "count": counts[order], "hash": hashes[order]}
    batch = pa.record_batch(columns).replace_schema_metadata({"sentences": "1"})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    return int(counts.sum())


if __name__ == "__main__":
    main()
