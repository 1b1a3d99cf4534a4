"""The peak memory of making a store: of some text, of ten times as much, and with a long sentence.

    python -m benchmarks.memory MODEL TEXT [--tokens 100000] [--long 50000]

TEXT has one sentence per line, tokens between spaces; it is repeated where it is too short. Each
store is one shard, made in a process of its own. Prints JSON: peak MB and tokens per second.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import show
from elmo.data.shards import write_shards
from elmo.settings import StoreSettings
from elmo.store.build import build


def main() -> None:
    """Make the three stores one after another."""
    options = _options()
    if options.one is not None:
        _one(options.model, options.one)
        return
    report = {}
    with tempfile.TemporaryDirectory() as name:
        for case, (tokens, longest) in {
            "text": (options.tokens, 0),
            "ten times the text": (10 * options.tokens, 0),
            f"text with a sentence of {options.long} tokens": (options.tokens, options.long),
        }.items():
            folder = Path(name) / case.replace(" ", "-")
            sentences = _sentences(options.text, tokens, longest)
            write_shards(folder / "shards", sentences, shard_sentences=len(sentences))
            command = [sys.executable, "-m", "benchmarks.memory", options.model, options.text]
            done = subprocess.run(
                [*command, "--one", folder], check=True, capture_output=True, text=True
            )
            report[case] = json.loads(done.stdout)
    show(report)


def _one(model: Path, folder: Path) -> None:
    before = _peak()
    began = time.perf_counter()
    manifest = build(
        folder / "store",
        shards=folder / "shards",
        model=model,
        settings=StoreSettings(),
        work=folder / "runs",
    )
    seconds = time.perf_counter() - began
    tokens = manifest.counts.tokens
    figures = {"tokens": tokens, "tokens/s": round(tokens / seconds)}
    print(json.dumps(figures | {"peak MB": _peak(), "before MB": before}))


def _peak() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _sentences(path: Path, tokens: int, longest: int) -> list[list[str]]:
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    sentences: list[list[str]] = []
    total = 0
    while total < tokens:
        for line in lines:
            sentences.append(line)
            total += len(line)
            if total >= tokens:
                break
    if longest:
        words = [word for line in lines for word in line]
        sentences.insert(len(sentences) // 2, (words * (longest // len(words) + 1))[:longest])
    return sentences


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--long", type=int, default=50_000)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
