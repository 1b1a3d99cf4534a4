"""Stores as torch datasets, and the padding of their batches.

Shapes: B sentences, L layers, T tokens (of the longest), D numbers of a vector.
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
    """The array `store[k]`, (layers, tokens, dim), with its sentence id.

    torch's default collate function pads a list of these arrays with `collate`.
    """

    sentence_id: int


class Batch(TypedDict):
    """A batch of sentences, padded with zeros: `vectors` (sentences, layers, tokens, dim) and
    `mask` (sentences, tokens).

    `mask` is true where there is a token. `sentence_ids` is absent if the arrays have no ids.
    """

    sentence_ids: NotRequired[Tensor]
    vectors: Tensor
    mask: Tensor


def collate(sentences: Sequence[Floats]) -> Batch:
    """Pad sentences, arrays of shape (layers, tokens, dim), to the longest; return them as a
    batch."""
    vectors = [torch.as_tensor(sentence) for sentence in sentences]
    lengths = torch.tensor([layers_LTD.shape[1] for layers_LTD in vectors])
    layers, _, dim = vectors[0].shape
    batch = vectors[0].new_zeros(len(vectors), layers, int(lengths.max()), dim)
    for row, layers_LTD in enumerate(vectors):
        batch[row, :, : layers_LTD.shape[1]] = layers_LTD
    mask_BT = torch.arange(batch.shape[2]) < lengths[:, None]
    ids = [getattr(sentence, "sentence_id", None) for sentence in sentences]
    if None in ids:
        return {"vectors": batch, "mask": mask_BT}
    return {"sentence_ids": torch.tensor(ids), "vectors": batch, "mask": mask_BT}


def sentence_arrays(store: FeatureStore, sentence_ids: Sequence[int]) -> list[SentenceArray]:
    """Return sentences of a store as arrays with their ids.

    This also registers `collate` for such arrays with torch's default collate function.
    """
    default_collate_fn_map[SentenceArray] = _collate_for_torch
    arrays = []
    for k in sentence_ids:
        array = store[k].view(SentenceArray)
        array.sentence_id = int(k)
        arrays.append(array)
    return arrays


def _collate_for_torch(batch: Sequence[SentenceArray], *, collate_fn_map: object = None) -> Batch:
    """Pad sentences, with the signature that torch's default collate function expects."""
    return collate(batch)
