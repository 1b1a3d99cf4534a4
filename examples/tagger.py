"""Train a tagger from a store with a learned mix of layers: python examples/tagger.py STORE TAGS.

TAGS has one line per sentence of the store: one tag per token, between spaces.
`pip install .` is enough.
"""

import sys
from pathlib import Path

import elmo
from elmo.tasks.tagger import accuracy, train

store = elmo.FeatureStore(sys.argv[1])
tags = [line.split() for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
tagger = train(store, tags, ids=store.ids("train"), epochs=10)
print(f"held-out accuracy {accuracy(tagger, store, tags, ids=store.ids('heldout')):.3f}")
for name, weight in zip(store.layers, tagger.mix.weights, strict=True):
    print(f"{name} {weight:.3f}")
tagger.save(Path("tagger"))
tagger.mix.save("mix.json")  # a store of this mix: features.layers mix, features.mix
print(tagger.tag([store[0]])[0][:8])
