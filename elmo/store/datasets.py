"""Stores as torch datasets, and padded batches.

Shapes: B sentences, T tokens of the longest.
"""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from elmo.data.arrays import Floats
from elmo.store import FeatureStore


class SentenceArray(npt.NDArray[np.float32]):
    """The array of `store[k]`, (layers, T, dim), that knows its k.

    torch's default collate pads a list of them with `collate`.
    """

    sentence_id: int


class Batch(TypedDict):
    """B sentences padded with zeros: `vectors` (B, layers, T, dim) and `mask` (B, T), which is true
    where there is a token. Arrays that know no number give no `sentence_ids`."""

    sentence_ids: NotRequired[Tensor]
    vectors: Tensor
    mask: Tensor


def collate(sentences: Sequence[Floats]) -> Batch:
    """Pad sentences, arrays (layers, tokens, dim), to the longest of them."""
    vectors = [torch.as_tensor(sentence) for sentence in sentences]
    lengths = torch.tensor([one.shape[1] for one in vectors])
    layers, _, dim = vectors[0].shape
    batch = vectors[0].new_zeros(len(vectors), layers, int(lengths.max()), dim)
    for row, one in enumerate(vectors):
        batch[row, :, : one.shape[1]] = one
    mask_BT = torch.arange(batch.shape[2]) < lengths[:, None]
    ids = [getattr(sentence, "sentence_id", None) for sentence in sentences]
    if None in ids:
        return {"vectors": batch, "mask": mask_BT}
    return {"sentence_ids": torch.tensor(ids), "vectors": batch, "mask": mask_BT}


def sentence_arrays(store: FeatureStore, ks: Sequence[int]) -> list[SentenceArray]:
    """Sentences of a store, as a `DataLoader` fetches them."""
    default_collate_fn_map[SentenceArray] = _collated
    arrays = []
    for k in ks:
        array = store[k].view(SentenceArray)
        array.sentence_id = int(k)
        arrays.append(array)
    return arrays


def _collated(batch: Sequence[SentenceArray], *, collate_fn_map: object = None) -> Batch:
    """Pad what torch's default collate is given."""
    return collate(batch)
