"""A tagger over stored vectors: it learns how to mix the layers, and a tag for each token.

ELMo_k = γ Σ_j s_j h_kj with s = softmax(w), learned together with the tags; the biLM stays as it is
in the store.

Shapes: B sentences, T tokens of the longest, L layers of the store, D their width, H outputs of the
LSTM, K tags.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.io.atomic import new_folder, write_json
from elmo.io.records import read_json
from elmo.model.mix import ScalarMix
from elmo.model.weights import load_weights, save_weights
from elmo.store import FeatureStore
from elmo.store.datasets import Sentences, collate
from elmo.store.layout import Mix

Tags = Sequence[Sequence[str]]
MIX_L2 = 0.001
_NONE = -100  # what cross_entropy leaves out


class Tagger(nn.Module):
    """Scores of K tags from L layers; with `hidden` a biLSTM of that size stands in between."""

    def __init__(
        self,
        *,
        layers: Sequence[str],
        dim: int,
        tags: Sequence[str],
        hidden: int = 0,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.layers, self.dim, self.tags = tuple(layers), dim, tuple(tags)
        self.hidden, self.dropout = hidden, dropout
        self.scalar_mix = ScalarMix(len(layers))
        self.lstm = (
            nn.LSTM(dim, hidden, batch_first=True, bidirectional=True) if hidden > 0 else None
        )
        self.scores = nn.Linear(2 * hidden if hidden > 0 else dim, len(tags))

    def forward(self, vectors_BLTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Scores (B, T, K); those beyond a sentence's end mean nothing."""
        if not mask_BT.shape[1]:  # blank sentences alone, which no LSTM takes
            return self.scores.weight.new_zeros(len(mask_BT), 0, len(self.tags))
        x_BTD = self.scalar_mix(vectors_BLTD.transpose(0, 1), mask_BT)
        x_BTD = nn.functional.dropout(x_BTD, self.dropout, self.training)
        if self.lstm is not None:
            lengths = mask_BT.sum(1).clamp(min=1).cpu()
            packed = nn.utils.rnn.pack_padded_sequence(
                x_BTD, lengths, batch_first=True, enforce_sorted=False
            )
            y_BTH, _ = nn.utils.rnn.pad_packed_sequence(
                self.lstm(packed)[0], batch_first=True, total_length=x_BTD.shape[1]
            )
            x_BTD = nn.functional.dropout(y_BTH, self.dropout, self.training)
        return self.scores(x_BTD)

    @property
    def mix(self) -> Mix:
        """The mix it has learned; its `save` writes it for `layers: mix`."""
        weights = self.scalar_mix.weights.detach().double().softmax(0)
        return Mix(tuple(weights.tolist()), float(self.scalar_mix.gamma.detach()))

    @torch.inference_mode()
    def tag(self, sentences: Sequence[Floats]) -> list[list[str]]:
        """The tags of sentences, each as vectors (L, T, D) of a store or of `embed`."""
        self.eval()
        if not sentences:
            return []
        batch = collate([np.array(layers_LTD, np.float32) for layers_LTD in sentences])
        best_BT = self(batch["vectors"], batch["mask"]).argmax(-1)
        return [
            [self.tags[tag] for tag in best_T[: layers_LTD.shape[1]].tolist()]
            for best_T, layers_LTD in zip(best_BT, sentences, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write `tagger.json` and `weights.safetensors`."""
        shape: dict[str, Any] = {
            "layers": list(self.layers),
            "dim": self.dim,
            "tags": list(self.tags),
            "hidden": self.hidden,
            "dropout": self.dropout,
        }
        with new_folder(folder, ours=("tagger.json", "weights.safetensors"), also="") as new:
            write_json(new / "tagger.json", shape)
            save_weights(new / "weights.safetensors", self.state_dict())

    @classmethod
    def load(cls, folder: Path) -> "Tagger":
        """Read what `save` wrote."""
        tagger = cls(**read_json(folder / "tagger.json"))
        tagger.load_state_dict(load_weights(folder / "weights.safetensors"))
        return tagger.eval()


def train(
    store: FeatureStore,
    tags: Tags,
    *,
    ids: Sequence[int] | npt.NDArray[np.int64] | None = None,
    hidden: int = 0,
    dropout: float = 0.3,
    epochs: int = 5,
    batch_size: int = 32,
    lr: float = 0.003,
    seed: int = 0,
) -> Tagger:
    """Train a tagger on the sentences `ids` of a store (None: all); `tags[k]` are sentence k's.

    The same seed gives the same tagger.
    """
    chosen = list(range(len(store))) if ids is None else [int(k) for k in ids]
    names = sorted({tag for k in chosen for tag in tags[k]})
    if not names:
        raise ElmoError("there are no tags to learn: every sentence given is blank")
    index_of = {name: k for k, name in enumerate(names)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tagger = Tagger(
            layers=store.layers, dim=store.dim, tags=names, hidden=hidden, dropout=dropout
        )
        optimizer = torch.optim.Adam(tagger.parameters(), lr)
        loader = DataLoader(
            Sentences(store, ids=chosen), batch_size, shuffle=True, collate_fn=collate
        )
        for _ in range(epochs):
            tagger.train()
            for batch in loader:
                targets_BT = _targets(store, tags, batch["sentence_ids"], batch["mask"], index_of)
                scores_BTK = tagger(batch["vectors"], batch["mask"])
                if not batch["mask"].any():
                    continue
                loss = nn.functional.cross_entropy(
                    scores_BTK.flatten(0, 1), targets_BT.flatten(), ignore_index=_NONE
                )
                optimizer.zero_grad()
                torch.autograd.backward(loss + MIX_L2 * tagger.scalar_mix.l2())
                optimizer.step()
    return tagger.eval()


def accuracy(
    tagger: Tagger,
    store: FeatureStore,
    tags: Tags,
    *,
    ids: Sequence[int] | npt.NDArray[np.int64] | None = None,
) -> float:
    """The share of tokens of the sentences `ids` (None: all) that get their tag."""
    chosen = list(range(len(store))) if ids is None else [int(k) for k in ids]
    right = total = 0
    for start in range(0, len(chosen), 64):
        part = chosen[start : start + 64]
        guessed = tagger.tag([store.vectors(k, layers=tagger.layers) for k in part])
        for k, guesses in zip(part, guessed, strict=True):
            right += sum(a == b for a, b in zip(guesses, tags[k], strict=True))
            total += len(guesses)
    return right / max(1, total)


def _targets(
    store: FeatureStore, tags: Tags, ids: Tensor, mask_BT: Tensor, index_of: dict[str, int]
) -> Tensor:
    """The tags' numbers (B, T), `_NONE` beyond a sentence's end."""
    targets_BT = torch.full(mask_BT.shape, _NONE)
    for row, k in enumerate(ids.tolist()):
        tokens = int(mask_BT[row].sum())
        if len(tags[k]) != tokens:
            raise ElmoError(
                f"sentence {k} has {tokens} tokens and {len(tags[k])} tags: {store.tokens(k)}"
            )
        targets_BT[row, :tokens] = torch.tensor([index_of[tag] for tag in tags[k]])
    return targets_BT
