"""Train with different settings and measure held-out perplexity.

    python -m benchmarks.recipes TRAIN HELDOUT OUT --recipe default --tokens 975000 [--epochs 1]
        [--set dropout=0.3 --set optimizer.lr=0.002] [--precision bfloat16] [--threads 2]
    python -m benchmarks.recipes TRAIN HELDOUT OUT --tokens 20000 65000 --seeds 3
        --compare rows=8 rows=32 rows=32,epochs=2

TRAIN and HELDOUT have one sentence per line, with tokens separated by spaces. `--recipe` is
`default` (presets/small.yaml), `2018` (presets/original-2018.yaml with the small network) or
`params` (params.yaml); `--set` changes single settings. The model is trained on the first
`--tokens` of TRAIN (0: all). The vocabulary has all tokens of TRAIN.

Writes the learning curves to OUT/heldout.tsv and OUT/train.tsv, the model to OUT/model, and the
record to OUT/record.json, which is also printed: the recipe, steps, tokens read in each direction,
seconds (since the last start, with evaluations), and held-out perplexity under the full softmax.
To resume an interrupted training, run the same command again.

`--compare` trains with each change (or several, joined by commas), each number of tokens and each
of the seeds 1, 2, …, in separate folders of OUT, and prints a table of held-out perplexity and CPU
seconds. Its vocabulary is made only from the first `--tokens`.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml

from benchmarks.lm_text import prepare_shards, read_lines, take_tokens
from benchmarks.machine import describe_machine, print_figures
from elmo.data.characters import Characters
from elmo.io.atomic import write_json
from elmo.io.location import Location
from elmo.model.folder import save_model
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import new_softmax
from elmo.settings import CheckpointSettings, ModelShape, OptimizerSettings, TrainingSettings
from elmo.train.job import TrainingJob
from elmo.train.loop import fit, heldout_perplexity
from elmo.train.step import WorkerGroup
from pipeline.settings.preset import overlay_text

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = CheckpointSettings(minutes=10.0, keep=2)
RECIPES = {"default": "small.yaml", "2018": "original-2018.yaml", "params": ""}


def main() -> None:
    """Train and print the record or the table."""
    options = _parse_options()
    torch.set_num_threads(options.threads)
    if options.compare:
        print("\n".join(compare_changes(options)))
    else:
        (tokens,) = options.tokens
        print_figures(train_recipe(options, options.train, options.out, tokens, options.set))


def compare_changes(options: argparse.Namespace) -> list[str]:
    """Train with each change; return a table of mean perplexities, with their range over seeds."""
    rows = [["tokens", *options.compare], ["---"] * (1 + len(options.compare))]
    lines = read_lines(options.train)
    for tokens in options.tokens:
        text = take_tokens(lines, tokens)
        train = options.out / f"{tokens}.txt"
        train.parent.mkdir(parents=True, exist_ok=True)
        train.write_text("".join(" ".join(line) + "\n" for line in text), encoding="utf-8")
        rows.append([f"{sum(map(len, text)):,}"])
        for change in options.compare:
            records = []
            for seed in range(1, options.seeds + 1):
                out, changes = options.out / f"{tokens}-{change}-{seed}", change.split(",")
                if not (out / "record.json").exists():
                    train_recipe(options, train, out, 0, [*options.set, *changes, f"seed={seed}"])
                records.append(json.loads((out / "record.json").read_bytes()))
            scores = [record["heldout"]["average"] for record in records]
            cell = f"{fmean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
            rows[-1].append(f"{cell}, {fmean(r['cpu_seconds'] for r in records):.0f} s")
    return [f"| {' | '.join(row)} |" for row in rows]


def train_recipe(
    options: argparse.Namespace, train: Path, out: Path, tokens: int, changes: list[str]
) -> dict[str, Any]:
    """Train on the first `tokens` of `train` (0: all); write the record to `out` and return it."""
    shards, vocabulary = prepare_shards(
        out / "shards", train=train, heldout=options.heldout, tokens=tokens
    )
    recipe = _read_recipe(options, changes).with_chosen_epochs(shards.tokens("train"))
    sizes = _read_preset(RECIPES["params" if options.recipe == "params" else "default"])["network"]
    network = ModelShape.from_dict(sizes | {"input_words": None}, source=ROOT / "params.yaml")
    characters = Characters()
    bilm = BiLM(network, character_count=characters.size)
    bilm.reset_parameters(recipe.seed)
    seed = recipe.seed + 1
    softmax = new_softmax(len(vocabulary), network.projection, seed=seed)
    job = TrainingJob(
        bilm, softmax, vocabulary, characters, shards, recipe, Location(out), CHECKPOINTS
    )
    workers = WorkerGroup()
    start_time, cpu_start = time.monotonic(), time.process_time()
    progress = fit(job, workers=workers, report=_report_progress)
    seconds, cpu_seconds = time.monotonic() - start_time, time.process_time() - cpu_start
    heldout = heldout_perplexity(job, workers=workers)
    weights = {name: value.detach() for name, value in softmax.state_dict().items()}
    save_model(
        out / "model",
        bilm=bilm,
        vocabulary=vocabulary,
        characters=characters,
        softmax=weights,
        training={},
        tokenizer=shards.tokenization,
    )
    record = {"recipe": options.recipe, "set": changes, "training": asdict(recipe)}
    record |= {"steps": progress.step, "tokens": progress.tokens}
    record |= {"seconds": round(seconds), "cpu_seconds": round(cpu_seconds, 1)}
    record |= {"heldout": heldout.to_dict()}
    write_json(out / "record.json", record | {"machine": describe_machine()})
    return record


def _read_preset(name: str) -> dict[str, Any]:
    """Return the section `pretrain` of params.yaml, changed by the preset `name`, if any."""
    text = (ROOT / "params.yaml").read_text()
    if name:
        text = overlay_text(ROOT / "params.yaml", ROOT / "presets" / name)
    section: dict[str, Any] = yaml.safe_load(text)["pretrain"]
    return section


def _read_recipe(options: argparse.Namespace, changes: list[str]) -> TrainingSettings:
    values: dict[str, Any] = _read_preset(RECIPES[options.recipe])["training"]
    values |= {"precision": options.precision, "epochs": options.epochs}
    values |= {"evaluate_every": options.evaluate_every, "evaluate_tokens": 0}
    optimizer = OptimizerSettings(**values["optimizer"])
    return apply_changes(TrainingSettings(**values | {"optimizer": optimizer}), changes)


def apply_changes(settings: TrainingSettings, changes: list[str]) -> TrainingSettings:
    """Return the settings with changes such as `dropout=0.3` and `optimizer.lr=0.002`."""
    values = asdict(settings)
    for change in changes:
        name, value = change.split("=")
        section = values
        *path, setting = name.split(".")
        for part in path:
            section = section[part]
        section[setting] = yaml.safe_load(value)
    return TrainingSettings(**values | {"optimizer": OptimizerSettings(**values["optimizer"])})


def _report_progress(kind: str, figures: dict[str, float]) -> None:
    if kind == "heldout" or (kind == "train" and figures["step"] % 100 == 0):
        rounded = {name: round(value, 4) for name, value in figures.items()}
        print(json.dumps({"kind": kind, **rounded}), flush=True)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("train", "heldout", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="default")
    parser.add_argument("--tokens", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--evaluate-every", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--compare", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
