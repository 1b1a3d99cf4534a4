"""Train a tagger from a store with a learned mix of layers: python examples/tagger.py STORE TAGS.

TAGS has a line a sentence of the store, a tag a token between spaces. Needs `pip install .` alone.
"""

import sys
from pathlib import Path

import elmo
from elmo.store_build import write_mix
from elmo.tasks.tagger import accuracy, train

store = elmo.FeatureStore(sys.argv[1])
tags = [line.split() for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
tagger = train(store, tags, ids=store.ids("train"), epochs=10)
print(f"held-out accuracy {accuracy(tagger, store, tags, ids=store.ids('heldout')):.3f}")
for name, weight in zip(store.layers, tagger.mix.weights, strict=True):
    print(f"{name} {weight:.3f}")
tagger.save(Path("tagger"))
write_mix(Path("mix.json"), tagger.mix)  # a store of this mix: features.layers mix, features.mix
print(tagger.tag([store[0]])[0][:8])
