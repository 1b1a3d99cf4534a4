"""Held-out perplexity by the number of rows, for text of several sizes and the default network.

    python -m benchmarks.row_counts TRAIN HELDOUT OUT --tokens 20000 65000 300000
        [--rows 4 8 16 32] [--seeds 1 2 3] [--set epochs=2 --set optimizer.lr=0.003]

TRAIN and HELDOUT have one sentence per line, tokens between spaces. The network and the recipe are
those of params.yaml, on the first `--tokens` of TRAIN, changed by `--set`; words are the tokens
that occur twice or more in that text. Each combination is trained once and written to
OUT/results.json, which a second start continues: its perplexity, the steps, those that were at most
half full, and the seconds of processor time.
"""

import argparse
import json
import math
import time
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.lm_text import prepare
from benchmarks.machine import machine
from benchmarks.recipes import changed_settings
from elmo.data.characters import Characters
from elmo.data.vocabulary import NOT_WORDS, Vocabulary
from elmo.io.atomic import write_json
from elmo.io.location import Location
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import new_softmax
from elmo.settings import CheckpointSettings, ModelShape, TrainingSettings
from elmo.train.job import TrainingJob
from elmo.train.loop import fit
from elmo.train.step import WorkerGroup
from pipeline.settings.params import load

ROOT = Path(__file__).resolve().parents[1]
RARE = CheckpointSettings(minutes=1e5, keep=1)
HELDOUT_TOKENS = 10_000


def main() -> None:
    """Train each combination, and print a line for each."""
    options = _options()
    torch.set_num_threads(1)
    results_file = options.out / "results.json"
    results = json.loads(results_file.read_text())["runs"] if results_file.exists() else []
    for tokens, rows, seed in product(options.tokens, options.rows, options.seeds):
        run = {"tokens": tokens, "rows": rows, "seed": seed, "set": options.set}
        if any(run.items() <= result.items() for result in results):
            continue
        run |= _train(options, tokens, rows, seed)
        results.append(run)
        write_json(results_file, {"runs": results, "machine": machine()})
        print(json.dumps(run), flush=True)


def _train(options: argparse.Namespace, tokens: int, rows: int, seed: int) -> dict[str, Any]:
    text = _first_tokens(options.train, options.out / f"{tokens}.txt", tokens)
    heldout = _first_tokens(options.heldout, options.out / "heldout.txt", HELDOUT_TOKENS)
    shards, _ = prepare(options.out / f"shards-{tokens}", train=text, heldout=heldout)
    counts = Counter(text.read_text(encoding="utf-8").split())
    words = [word for word, n in counts.most_common() if n > 1 and word not in NOT_WORDS]
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *words])
    params = load(ROOT / "params.yaml").pretrain
    # Measured once, at the end, on all of the held-out text.
    once = {"evaluate_every": 10**9, "evaluate_tokens": 0}
    training = replace(params.training, rows=rows, seed=seed, precision="float32", **once)
    settings = changed_settings(training, options.set)
    characters = Characters()
    network = ModelShape(**vars(params.network), input_words=None)
    bilm = BiLM(network, characters=characters.size)
    bilm.reset_parameters(seed)
    softmax = new_softmax(len(vocabulary), network.projection, seed=seed + 1)
    name = "-".join([str(tokens), str(rows), str(seed), *options.set])
    folder = Location(options.out / "runs" / name)
    job = TrainingJob(bilm, softmax, vocabulary, characters, shards, settings, folder, {}, RARE)
    began = time.process_time()
    progress = fit(job, workers=WorkerGroup(), report=lambda kind, figures: None)
    seconds = time.process_time() - began
    folder.remove()
    return {
        "words": len(vocabulary),
        "steps": progress.step,
        "steps at most half full": _half_empty_steps(job, settings),
        "processor seconds": round(seconds, 1),
        "perplexity": round(progress.best or math.nan, 2),
    }


def _half_empty_steps(job: TrainingJob, settings: TrainingSettings) -> int:
    stream = job.stream("train", WorkerGroup(), epochs=settings.epochs, seed=settings.seed)
    full = 2 * settings.rows * settings.window
    windows = stream.windows(stream.first_position())
    return sum(window.count <= full / 2 for window, _ in windows)


def _first_tokens(source: Path, target: Path, tokens: int) -> Path:
    """Write the first lines of `source`, up to so many tokens, to `target`, once."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        with source.open(encoding="utf-8") as file:
            for line in file:
                if tokens <= 0:
                    break
                if words := line.split():
                    lines.append(" ".join(words))
                    tokens -= len(words)
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("train", "heldout", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
