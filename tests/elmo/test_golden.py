"""Vectors against a derivation in plain numpy that shares no code with the package, and against
AllenNLP 2.10.1, which embedded the same sentences with the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.model.batches import Carry
from elmo.model.embedder import Embedder
from elmo.model.mix import ScalarMix
from tests.golden.models import GOLDEN, import_golden

pytestmark = pytest.mark.usefixtures("compiled")
CASES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
SENTENCES = [
    ["He", "has", "a", "gift", "for", "music"],
    ["한국어", "문장", "<UNK>", "😀", "カタカナ"],
    ["x" * 47, "y" * 48, "z" * 49, "a" + "어" * 16, "어" * 20],
    ["<S>", "naïve", "</S>"],
    ["one"],
]
REFERENCE = sorted(path.stem for path in (GOLDEN / "allennlp").glob("*.npz"))
MIX, GAMMA = [0.3, -0.6, 0.9], 1.7
CARRY = [[0, 1, 2], [3], [4, 0], [1, 2, 3, 4]]


@pytest.fixture
def golden(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Embedder, dict[str, np.ndarray]]:
    embedder = Embedder.load(import_golden(request.param, tmp_path))
    return embedder, dict(np.load(GOLDEN / f"{request.param}.npz"))


@pytest.mark.parametrize("golden", CASES, indirect=True)
def test_every_layer_of_sentences_read_alone(
    golden: tuple[Embedder, dict[str, np.ndarray]],
) -> None:
    embedder, expected = golden
    for k, vectors in enumerate(embedder.embed(SENTENCES)):
        np.testing.assert_allclose(vectors, expected[f"reset_{k}"], atol=1e-5)


@pytest.mark.parametrize("golden", CASES, indirect=True)
def test_every_layer_with_carried_state(golden: tuple[Embedder, dict[str, np.ndarray]]) -> None:
    embedder, expected = golden
    carry = Carry()
    for b, batch in enumerate(CARRY):
        found = embedder.embed([SENTENCES[k] for k in batch], state=carry)
        for row, vectors in enumerate(found):
            np.testing.assert_allclose(vectors, expected[f"carry_{b}_{row}"], atol=1e-5)


@pytest.mark.parametrize("name", REFERENCE)
def test_allennlp_gives_the_same_layers(name: str, tmp_path: Path) -> None:
    embedder = Embedder.load(import_golden(name, tmp_path))
    expected = np.load(GOLDEN / "allennlp" / f"{name}.npz")
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
