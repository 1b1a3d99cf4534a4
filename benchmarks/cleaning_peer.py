"""datatrove's filters and MinHash on a text, by the Python of an environment that has it.

PYTHON benchmarks/cleaning_peer.py TEXT.jsonl FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

LIMITS = {"min_bytes": 200, "max_bytes": 1_000_000, "max_symbols": 0.3}  # of benchmarks.cleaning


def main(text: Path, out: Path) -> None:
    """Write the ids of the documents that are left to `kept.json` in the folder `out`."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.filters import LambdaFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    def reader(folder: Path, pattern: str) -> Any:
        return JsonlReader(str(folder), glob_pattern=pattern, id_key="id")

    filtered, signatures, buckets, removed, kept = (
        out / name for name in ("filtered", "signatures", "buckets", "removed", "kept")
    )
    write = JsonlWriter(str(filtered), output_filename="${rank}.jsonl", compression=None)
    keep = JsonlWriter(str(kept), output_filename="${rank}.jsonl", compression=None)
    steps = [
        [reader(text.parent, text.name), LambdaFilter(_is_kept), write],
        [reader(filtered, "*.jsonl"), MinhashDedupSignature(str(signatures))],
        [MinhashDedupBuckets(str(signatures), str(buckets))],
        [MinhashDedupCluster(str(buckets), str(removed))],
        [reader(filtered, "*.jsonl"), MinhashDedupFilter(str(removed)), keep],
    ]
    for number, step in enumerate(steps):
        tasks = 14 if number == 2 else 1  # one for each bucket
        logs = str(out / "logs" / str(number))
        LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=logs).run()
    lines = [line for path in kept.glob("*.jsonl") for line in path.open(encoding="utf-8")]
    ids = sorted(int(json.loads(line)["id"]) for line in lines)
    (out / "kept.json").write_text(json.dumps(ids))


def _is_kept(document: Any) -> bool:
    """Tell whether a document is within the limits and mostly Latin."""
    text = document.text
    size = len(text.encode())
    letters = sum(character.isalpha() for character in text)
    latin = sum(character.isalpha() and character < "\u0250" for character in text)
    characters = len("".join(text.split()))
    return bool(
        LIMITS["min_bytes"] <= size <= LIMITS["max_bytes"]
        and characters - letters <= LIMITS["max_symbols"] * characters
        and 2 * latin >= letters
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
