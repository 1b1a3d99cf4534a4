"""Make the committed goldens: python -m tests.golden.make. Random weights, seeded; tiny sizes."""

import json
from pathlib import Path

import h5py
import numpy as np

from tests.golden.derivation import embed

HERE = Path(__file__).parent
SENTENCES = [
    ["He", "has", "a", "gift", "for", "music"],
    ["한국어", "문장", "<UNK>", "😀", "カタカナ"],
    ["x" * 47, "y" * 48, "z" * 49, "a" + "어" * 16, "어" * 20],
    ["<S>", "naïve", "</S>"],
    ["one"],
]
CARRY = [[0, 1, 2], [3], [4, 0], [1, 2, 3, 4]]  # batches of sentences: they grow and shrink
PLAIN = dict(
    activation="relu",
    filters=[[1, 3], [2, 4], [3, 5]],
    highways=2,
    char_dim=3,
    cells=6,
    projection=4,
    layers=2,
    clip=0.4,
    skip=True,
    words=None,
)
CASES = {
    "plain": {},
    "one_highway": {"highways": 1},
    "no_highway_tanh": {"highways": 0, "activation": "tanh"},
    "no_skip": {"skip": False},
    "no_clip": {"clip": None},
    "no_projection": {"cells": 4},
    "no_cnn_projection": {"filters": [[1, 2], [2, 2]]},
    "one_layer": {"layers": 1},
    "three_layers": {"layers": 3},
    "words": {"words": ["<S>", "</S>", "<UNK>", "He", "has", "a", "gift", "one"]},
}


def options(case):
    found = {
        "lstm": {
            "use_skip_connections": case["skip"],
            "projection_dim": case["projection"],
            "cell_clip": case["clip"],
            "proj_clip": case["clip"] and case["clip"] / 2,
            "dim": case["cells"],
            "n_layers": case["layers"],
        }
    }
    if case["words"] is None:
        found["char_cnn"] = {
            "activation": case["activation"],
            "filters": case["filters"],
            "n_highway": case["highways"],
            "embedding": {"dim": case["char_dim"]},
            "n_characters": 262,
            "max_characters_per_token": 50,
        }
    return found


def weights(case, seed):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return (random.standard_normal(shape) * 0.6).astype("float32")

    cells, projection = case["cells"], case["projection"]
    found = {}
    if case["words"] is not None:
        found["embedding"] = normal(len(case["words"]), projection)
    else:
        total = sum(n for _, n in case["filters"])
        found["char_embed"] = normal(261, case["char_dim"])
        for k, (width, n) in enumerate(case["filters"]):
            found[f"CNN/W_cnn_{k}"] = normal(1, width, case["char_dim"], n)
            found[f"CNN/b_cnn_{k}"] = normal(n)
        for k in range(case["highways"]):
            for name in ("W_carry", "W_transform"):
                found[f"CNN_high_{k}/{name}"] = normal(total, total)
                found[f"CNN_high_{k}/b{name[1:]}"] = normal(total)
        if total != projection:
            found["CNN_proj/W_proj"] = normal(total, projection)
            found["CNN_proj/b_proj"] = normal(projection)
    for direction in (0, 1):
        for layer in range(case["layers"]):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found[f"{name}/W_0"] = normal(2 * projection, 4 * cells)
            found[f"{name}/B"] = normal(4 * cells)
            if cells != projection:
                found[f"{name}/W_P_0"] = normal(cells, projection)
    return found


def main():
    for seed, (name, changes) in enumerate(CASES.items()):
        case = PLAIN | changes
        made, shape = weights(case, seed), options(case)
        with h5py.File(HERE / f"{name}.hdf5", "w") as file:
            for place, array in made.items():
                file.create_dataset(place, data=array)
        described = {"options": shape, "words": case["words"]}
        (HERE / f"{name}.json").write_text(json.dumps(described, indent=1) + "\n")
        exact = {place: array.astype("float64") for place, array in made.items()}
        expected = {}
        for k, sentence in enumerate(SENTENCES):
            layers, _ = embed(exact, shape, sentence, words=case["words"])
            expected[f"reset_{k}"] = layers[:, 1:-1].astype("float32")
        rows = {}
        for b, batch in enumerate(CARRY):
            for row, k in enumerate(batch):
                layers, rows[row] = embed(
                    exact, shape, SENTENCES[k], rows.get(row), words=case["words"]
                )
                expected[f"carry_{b}_{row}"] = layers[:, 1:-1].astype("float32")
        np.savez_compressed(HERE / f"{name}.npz", **expected)


if __name__ == "__main__":
    main()
