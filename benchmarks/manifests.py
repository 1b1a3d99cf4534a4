"""Manifests of many shards and parts: time to write and open, size, memory.

    python -m benchmarks.manifests [--shards 10000]

Each shard holds four sentences and becomes a part of a store of a tiny model. Prints JSON.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import show
from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.model.folder import save_model
from elmo.nn.bilm import BiLM
from elmo.settings import ModelShape, StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build

WORDS = "the cat sat on a mat while an old dog slept".split()
SHAPE = ModelShape(
    char_dim=4,
    filters=((1, 4),),
    activation="relu",
    highways=1,
    cells=8,
    projection=4,
    layers=1,
    cell_clip=None,
    projection_clip=None,
    skip=True,
    input_words=None,
)


def main() -> None:
    """Write shards and their store, open both, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=10_000)
    count = parser.parse_args().shards
    figures: dict[str, Any] = {"shards": count}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        done = work()
        figures[name] = round(time.monotonic() - began, 2)
        return done

    with tempfile.TemporaryDirectory() as home:
        shards, model, store = (Path(home) / name for name in ("shards", "model", "store"))
        sentences = [[*WORDS[k % 5 :], str(k % 97)] for k in range(4 * count)]
        timed("shards written, s", lambda: write_shards(shards, sentences, shard_sentences=4))
        timed("shards opened, s", lambda: Shards(shards))
        bilm = BiLM(SHAPE, characters=Characters().size)
        bilm.reset_parameters(1)
        vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *WORDS])
        save_model(
            model,
            bilm=bilm,
            vocabulary=vocabulary,
            characters=Characters(),
            softmax=None,
            training={},
        )
        settings = StoreSettings()
        timed(
            "store written, s",
            lambda: build(store, shards=shards, model=model, settings=settings),
        )
        opened = timed("store opened, s", lambda: FeatureStore(store))
        timed("a sentence of the last part, s", lambda: opened[len(opened) - 1])
        assert len(opened) == 4 * count
        for name, folder in (("shards", shards), ("store", store)):
            manifests = sum(path.stat().st_size for path in folder.rglob("*manifest*"))
            figures[f"manifest of the {name}, MB"] = round(manifests / 1e6, 2)
    figures["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    show(figures)


if __name__ == "__main__":
    main()
