"""Vectors against a derivation in plain numpy that shares no code with the package, and against
AllenNLP 2.10.1, which embedded the same sentences with the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.model.batches import Carry
from elmo.model.embedder import Embedder
from elmo.model.mix import ScalarMix
from tests.golden.make import CARRY, SENTENCES
from tests.golden.models import GOLDEN, import_golden

pytestmark = pytest.mark.usefixtures("compiled")
CASES = sorted(str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*.npz"))
MIX, GAMMA = [0.3, -0.6, 0.9], 1.7


@pytest.mark.parametrize("case", CASES)
def test_every_layer_of_sentences_read_alone_and_with_carried_state(
    case: str, tmp_path: Path
) -> None:
    """Against the derivation or, in the folder `allennlp`, AllenNLP."""
    embedder = Embedder.load(import_golden(Path(case).name, tmp_path))
    expected = np.load(GOLDEN / f"{case}.npz")
    for k, vectors in enumerate(embedder.embed(SENTENCES)):
        np.testing.assert_allclose(vectors, expected[f"reset_{k}"], atol=1e-5)
    carry = Carry()
    for b, batch in enumerate(CARRY):
        rows = embedder.embed([SENTENCES[k] for k in batch], state=carry)
        for row, vectors in enumerate(rows):
            np.testing.assert_allclose(vectors, expected[f"carry_{b}_{row}"], atol=1e-5)


@pytest.mark.parametrize(("key", "layer_norm"), [("mix", None), ("normed", "allennlp")])
def test_allennlp_mixes_the_same(key: str, layer_norm: str | None) -> None:
    expected = np.load(GOLDEN / "allennlp" / "plain.npz")
    mix = ScalarMix(len(MIX), layer_norm=layer_norm)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor(MIX))
        mix.gamma.fill_(GAMMA)
        for k in range(len(SENTENCES)):
            layers_LBTD = torch.from_numpy(expected[f"reset_{k}"])[:, None]
            mask_BT = torch.ones(layers_LBTD.shape[1:3], dtype=torch.bool)
            mixed = mix(layers_LBTD, mask_BT)[0]
            np.testing.assert_allclose(mixed, expected[f"{key}_{k}"], atol=1e-5)


def test_the_goldens_cover_clipping_that_bites() -> None:
    plain, free = (np.load(GOLDEN / f"{name}.npz") for name in ("plain", "no_clip"))
    assert np.abs(plain["reset_0"][1]).max() <= 0.2 + 1e-6 < np.abs(free["reset_0"][1]).max()
