"""Compare tokenizing to shards with `map` of Hugging Face datasets, with the same tokenizer.

    python -m benchmarks.tokenizing TEXT... [--tokenizer unicode] [--processes 2] [--repeat 3]

Both sides read the same text and write Arrow files, with the same number of processes. Our time
includes digests, splits, byte counts and the quality report, but not the start of Ray. The time of
datasets is that of `map` alone, without loading. Prints JSON. Requires `pip install datasets`.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import print_figures
from elmo.data.shards import Shards
from elmo.data.tokenizer import load_tokenizer
from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import TokenizeSettings
from pipeline.stages.tokenize import tokenize
from pipeline.text.input_files import find_inputs, open_input


def main() -> None:
    """Measure both sides in turn and print the medians and their ratio."""
    options = _parse_options()
    try:
        import datasets
    except ImportError:
        sys.exit("error: datasets is missing; run: pip install datasets")
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder, workers.session():
        text = _write_one_file(options.text, Path(folder), options.megabytes)
        our_runs, peer_runs = [], []
        for repetition in range(options.repeat):
            out = Path(folder) / f"{repetition}"
            our_runs.append(_measure_ours(text, out / "ours", options))
            peer_runs.append(_measure_datasets(datasets, text, out / "theirs", options))
    print_figures(_summarize_runs(our_runs, peer_runs, options))


def _measure_ours(text: Path, out: Path, options: argparse.Namespace) -> dict[str, float]:
    params = TokenizeSettings(
        options.tokenizer, "line", "line", 0.01, 0.0, 0, 0, 0, 1.0, (), options.shard_bytes
    )
    cluster = Cluster(workers=0, cpus=1, gpu=False, actors=options.processes)

    def run_tokenize() -> None:
        inputs, work = find_inputs([str(text)]), Location(text.parent / "work")
        tokenize(inputs, Location(out), params, column="text", work=work, cluster=cluster)

    return {"seconds": _measure_seconds(run_tokenize), "tokens": Shards(out).tokens()}


def _measure_datasets(
    datasets: Any, text: Path, out: Path, options: argparse.Namespace
) -> dict[str, float]:
    tokenizers: list[Any] = []

    def tokenize_batch(batch: dict[str, list[str]]) -> dict[str, list[list[str]]]:
        if not tokenizers:
            tokenizers.append(load_tokenizer(options.tokenizer))
        return {"tokens": tokenizers[0].split(batch["text"])}

    results: dict[str, Any] = {}
    dataset = datasets.load_dataset("text", data_files=str(text), cache_dir=str(out), split="train")

    def run_map() -> None:
        results["tokens"] = dataset.map(
            tokenize_batch,
            batched=True,
            num_proc=options.processes,
            remove_columns=["text"],
            load_from_cache_file=False,
        )

    map_seconds = _measure_seconds(run_map)
    tokens_column = results["tokens"].data.column("tokens")
    tokens = sum(len(chunk.flatten()) for chunk in tokens_column.chunks)
    return {"seconds": map_seconds, "tokens": tokens}


def _summarize_runs(
    our_runs: list[dict[str, float]], peer_runs: list[dict[str, float]], options: Any
) -> dict[str, Any]:
    if our_runs[0]["tokens"] != peer_runs[0]["tokens"]:
        sys.exit(f"error: {our_runs[0]['tokens']} and {peer_runs[0]['tokens']} tokens, must agree")
    tokens = our_runs[0]["tokens"]
    shards_seconds = median(run["seconds"] for run in our_runs)
    map_seconds = median(run["seconds"] for run in peer_runs)
    return {
        "tokens": tokens,
        "tokenizer": options.tokenizer,
        "processes": options.processes,
        "shards_tokens_per_second": round(tokens / shards_seconds),
        "datasets_map_tokens_per_second": round(tokens / map_seconds),
        "ratio_to_map_alone": round(map_seconds / shards_seconds, 2),
    }


def _write_one_file(texts: list[str], folder: Path, megabytes: int) -> Path:
    """Write the first distinct lines of the text, up to `megabytes`, to one file for both sides;
    the stage would leave copies out."""
    out, line_hashes = folder / "text.txt", set[int]()
    with out.open("wb") as file:
        for text in find_inputs(texts):
            with open_input(text.url, compression=text.compression) as source:
                for line in source:
                    if file.tell() < megabytes * 10**6 and hash(line) not in line_hashes:
                        line_hashes.add(hash(line))
                        file.write(line)
    return out


def _measure_seconds(function: Callable[[], None]) -> float:
    start_time = time.perf_counter()
    function()
    return time.perf_counter() - start_time


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", nargs="+", help="files, folders, globs or URLs of text")
    parser.add_argument("--tokenizer", default="unicode", choices=["whitespace", "unicode"])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1000, help="read at most this much text")
    parser.add_argument("--shard-bytes", type=int, default=16 << 20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
