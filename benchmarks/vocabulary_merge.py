"""Merging the counts of many shards' types and choosing the words: time and peak memory.

    python -m benchmarks.vocabulary_merge [--types 65000000] [--shards 64] [--rows 1500000]

Each of the shards counts `rows` types drawn from all, so that most are seen in a few shards. The
counts lie in files, as the stage leaves them; files are made first and not timed. Words are those
seen twice, characters those of all types. Prints JSON.
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
from elmo.io.location import Location
from pipeline.settings.params import VocabSettings
from pipeline.stages import vocab
from pipeline.text.text_hashes import hash_strings

WORDS = VocabSettings(
    min_count=2, max_words=0, characters="unicode", min_character_count=1, max_characters=50
)


def main() -> None:
    """Make the files, merge them, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", type=int, default=65_000_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_500_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{k}.arrow" for k in range(options.shards)]
        written = sum(_write(path, k, options) for k, path in enumerate(paths))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        merged = vocab.sum_counts(
            [vocab._read_counts(Location(folder), path.name) for path in paths]
        )
        seconds = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        words, _ = vocab._words(merged, WORDS)
        characters = vocab._characters(merged, WORDS)
        all_seconds = time.monotonic() - began
    assert merged.tokens == written
    assert characters.symbols is not None
    figures = {
        "shards": options.shards,
        "rows": options.shards * options.rows,
        "distinct types": len(merged.types),
        "words": len(words),
        "characters": len(characters.symbols),
        "merging_s": round(seconds, 1),
        "words_and_characters_s": round(all_seconds - seconds, 1),
        "peak_mb_of_merging": round(peak / 1024),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
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
