"""Train a tagger from a store of a model: python examples/tagger.py MODEL STORE TAGS.

TAGS has one line per sentence of the store: one tag per token, separated by spaces.
`pip install .` is enough.
"""

import json
import sys
from pathlib import Path

import elmo
from elmo.tasks.example_files import read_examples
from elmo.tasks.kinds import task_settings
from elmo.tasks.task import Task, train_task

model, features, tags_file = map(Path, sys.argv[1:])
store = elmo.FeatureStore(features)
tags = [line.split() for line in tags_file.read_text(encoding="utf-8").splitlines()]
for split in ("train", "heldout"):
    with open(f"{split}.jsonl", "w", encoding="utf-8") as file:
        for k in store.ids(split):
            print(json.dumps({"tokens": store.tokens(k), "tags": tags[k]}), file=file)
train, heldout = (
    read_examples("tagging", Path(f"{split}.jsonl")) for split in ("train", "heldout")
)
settings = task_settings("tagging", {"words": "none", "characters": 0})  # vectors alone
given = {"settings": settings, "model": model, "store": features, "work": Path("work")}
train_task("tagging", train, heldout, out=Path("tagger"), **given)
tagger = Task.load("tagger")
print(f"held-out accuracy {tagger.evaluate(heldout)['accuracy']:.3f}")
mix = json.loads(Path("tagger/seed-0/mix.json").read_text())
for name, weight in zip(store.layers, mix["weights"], strict=True):
    print(f"{name} {weight:.3f}")
print(tagger([store.tokens(0)])[0])
