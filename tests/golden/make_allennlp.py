"""Make the goldens of the reference itself: PYTHON -m tests.golden.make_allennlp, from the root.

PYTHON is the interpreter of an environment with torch, h5py and, installed without what it depends
on, allennlp 2.10.1. Its unmodified biLM reads the weights that make.py wrote, of every case that it
can read at all: characters, skip connections, a projection of the convolutions. Arrays:

    reset_K           layers of sentence K, read alone: (layers, tokens, dim)
    carry_B_R         the same of row R of batch B, states carried from batch to batch
    mix_K, normed_K   its ScalarMix of them, without and with layer norm over one sentence
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.embedding import load_allennlp
from tests.golden.make import CARRY, SENTENCES

GOLDEN = Path(__file__).resolve().parent
CASES = ("plain", "one_highway", "no_clip", "one_layer", "three_layers")
MIX = (0.3, -0.6, 0.9)  # as learned, before their softmax
GAMMA = 1.7


def main() -> None:
    """Embed the golden sentences with each case's weights."""
    import torch

    torch.set_num_threads(1)
    for name in CASES:
        described = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            weights = Path(folder)
            (weights / "options.json").write_text(json.dumps(described["options"]))
            (weights / "weights.hdf5").write_bytes((GOLDEN / f"{name}.hdf5").read_bytes())
            np.savez_compressed(GOLDEN / "allennlp" / f"{name}.npz", **arrays(weights))


def arrays(weights: Path) -> dict[str, np.ndarray]:
    """What AllenNLP makes of the golden sentences."""
    bilm, batch_to_ids = load_allennlp(weights)
    from allennlp.modules.scalar_mix import ScalarMix
    from allennlp.nn.util import remove_sentence_boundaries

    def embed(sentences: list[list[str]]) -> list[np.ndarray]:
        read = bilm(batch_to_ids(sentences))
        layers = [remove_sentence_boundaries(x, read["mask"])[0] for x in read["activations"]]
        return [
            np.stack([layer[row, : len(sentence)].numpy() for layer in layers])
            for row, sentence in enumerate(sentences)
        ]

    result: dict[str, np.ndarray] = {}
    for k, sentence in enumerate(SENTENCES):
        bilm._elmo_lstm._states = None
        (result[f"reset_{k}"],) = embed([sentence])
        if len(result[f"reset_{k}"]) == len(MIX):
            result |= mixes(ScalarMix, result[f"reset_{k}"], k)
    bilm._elmo_lstm._states = None
    for b, batch in enumerate(CARRY):
        for row, layers in enumerate(embed([SENTENCES[k] for k in batch])):
            result[f"carry_{b}_{row}"] = layers
    return result


def mixes(scalar_mix: type, layers: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """One sentence's layers mixed, without and with layer norm."""
    import torch

    tensors = [torch.from_numpy(layer)[None] for layer in layers]
    mask = torch.ones(1, layers.shape[1], dtype=torch.bool)
    result = {}
    for key, norm in (("mix", False), ("normed", True)):
        mix = scalar_mix(len(MIX), do_layer_norm=norm, initial_scalar_parameters=list(MIX))
        mix.gamma.data.fill_(GAMMA)
        result[f"{key}_{k}"] = mix(tensors, mask)[0].numpy()
    return result


if __name__ == "__main__":
    main()
