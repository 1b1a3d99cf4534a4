"""Do our exported weights give AllenNLP 2.10.1 the same vectors?

    python -m benchmarks.interop_allennlp TEXT --size small|original --peer PYTHON [--sentences 200]

Random weights are saved as a model folder and exported as a 2018 pair; both
sides embed the same sentences (a line each, tokens between spaces) with carried state, batches of
8, in file order. PYTHON is the interpreter of an environment with allennlp 2.10.1. Prints the
largest difference of each layer as JSON; exits 1 above 1e-5.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import embedding
from benchmarks.machine import show

BATCH = 8


def main() -> None:
    """Export, embed on both sides, compare."""
    options = _options()
    if options.weights:
        np.savez(options.weights / "peer.npz", **_peer(options))
        return
    from elmo.model.embedder import Embedder

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        embedding.make_weights(folder, options.size, gain=1.5)
        command = [options.peer, __file__, str(options.text), "--weights", name]
        root = str(Path(__file__).resolve().parents[1])
        environment = os.environ | {"PYTHONPATH": root}
        command += ["--sentences", str(options.sentences)]
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode:
            sys.exit("error: the peer failed")
        theirs = np.load(folder / "peer.npz")
        sentences = embedding.sentences_of(options)
        ours = Embedder.load(folder / "model").embed(sentences, BATCH, state="carry")
        worst = np.max([np.abs(v - theirs[str(k)]).max((1, 2)) for k, v in enumerate(ours)], axis=0)
        largest = float(np.max([np.abs(v).max() for v in ours]))
    figures = {"size": options.size, "sentences": len(ours), "largest_value": round(largest, 2)}
    show(figures | {"largest_difference_by_layer": [float(w) for w in worst]})
    sys.exit(int(worst.max() > 1e-5))


def _peer(options: argparse.Namespace) -> dict[str, np.ndarray]:
    model, batch_to_ids = embedding.allennlp(options.weights)
    import torch
    from allennlp.nn.util import remove_sentence_boundaries

    embedded: dict[str, np.ndarray] = {}
    sentences = embedding.sentences_of(options)
    with torch.no_grad():
        for start in range(0, len(sentences), BATCH):
            batch = sentences[start : start + BATCH]
            output = model(batch_to_ids(batch))
            layers = [
                remove_sentence_boundaries(layer, output["mask"])[0]
                for layer in output["activations"]
            ]
            for row, sentence in enumerate(batch):
                vectors = [layer[row, : len(sentence)].numpy() for layer in layers]
                embedded[str(start + row)] = np.stack(vectors)
    return embedded


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text", type=Path)
    parser.add_argument("--size", choices=embedding.SIZES, default="small")
    parser.add_argument("--peer", help="the interpreter of an environment with allennlp 2.10.1")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
