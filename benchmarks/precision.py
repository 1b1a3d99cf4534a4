"""Measure the errors of bfloat16 and float16, by layer and in the accuracy of a tagger.

    python -m benchmarks.precision MODEL TRAIN.conllu DEV.conllu [--sentences 2000] [--epochs 8]

Builds a store of the sentences for each combination of compute and storage precision, and trains
the same tagger on each: a biLSTM-CRF on a learned mix, without word embeddings, with the same
seeds. Errors are relative to float32. Precisions that the CPU does not support are skipped. Files
may be gzipped. Prints JSON.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.machine import precisions, print_figures
from elmo.data.shards import write_shards
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import distinct_sentences
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.kinds import task_settings
from elmo.tasks.task import train_task

SETTINGS_BY_WAY = {
    "float32": StoreSettings(dtype="float32"),
    "computed in bfloat16": StoreSettings(dtype="float32", precision="bfloat16"),
    "kept in float16": StoreSettings(dtype="float16"),
    "computed in bfloat16, kept in float16": StoreSettings(precision="bfloat16"),
}


def main() -> None:
    """Build the stores, measure their errors, train the taggers and print the figures."""
    options = _parse_options()
    train = _take_examples(read_examples("tagging", options.train), options.sentences)
    dev = _take_examples(read_examples("tagging", options.dev), options.sentences // 4)
    sentences = distinct_sentences([*train.examples, *dev.examples])
    tagger_settings = task_settings(
        "tagging", {"words": "none", "characters": 0, "epochs": options.epochs}
    )
    figures = {}
    settings_by_way = {
        way: settings
        for way, settings in SETTINGS_BY_WAY.items()
        if settings.precision in precisions()
    }
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_shards(folder / "shards", sentences)
        reference = None
        for way, settings in settings_by_way.items():
            out = folder / way.replace(" ", "-")
            build(
                out,
                shards=folder / "shards",
                model=options.model,
                settings=settings,
                work=folder / "runs",
            )
            store = FeatureStore(out)
            reference = reference or store
            task = train_task(
                "tagging",
                train,
                dev,
                out=folder / f"{out.name}-task",
                settings=tagger_settings,
                model=options.model,
                seeds=range(options.seeds),
                work=folder / f"{out.name}-work",
                store=out,
            )
            scores = [seed_scores["accuracy"] for seed_scores in task.scores.values()]
            figures[way] = {
                "probe accuracy": round(mean(scores), 4),
                "layers": _measure_errors(reference, store),
            }
    tokens = sum(len(sentence) for sentence in sentences)
    print_figures({"sentences": len(sentences), "tokens": tokens, "ways": figures})


def _measure_errors(reference: FeatureStore, store: FeatureStore) -> dict[str, Any]:
    """Return the relative L2 error of each layer of `store`."""
    figures = {}
    for layer in reference.layers:
        error_sum = square_sum = 0.0
        blocks = zip(reference.blocks(layers=[layer]), store.blocks(layers=[layer]), strict=True)
        for pair in blocks:
            a, b = (block.vectors[0].astype(np.float64) for block in pair)
            error_sum += float(((a - b) ** 2).sum())
            square_sum += float((a**2).sum())
        figures[layer] = {"relative L2 error": float(f"{(error_sum / square_sum) ** 0.5:.3g}")}
    return figures


def _take_examples(example_set: ExampleSet, count: int) -> ExampleSet:
    return replace(example_set, examples=example_set.examples[:count])


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
