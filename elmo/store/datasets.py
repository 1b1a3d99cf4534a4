"""Stores as torch datasets: by number, or shuffled across workers and ranks; and padded batches.

Shapes: B sentences, T tokens of the longest.
"""

from collections.abc import Iterator, Sequence
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.store import FeatureStore


class Sentence(TypedDict):
    """One sentence: its number and its vectors, float32 (layers, T, dim)."""

    sentence_id: int
    vectors: Tensor


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


class Sentences(Dataset[Sentence]):
    """A map-style dataset over the sentences `ids` of a store (None: all), in that order."""

    def __init__(self, store: FeatureStore, *, ids: Sequence[int] | None = None) -> None:
        self.store = store
        self.ids = range(len(store)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sentence:
        k = int(self.ids[index])
        return {"sentence_id": k, "vectors": self.store.tensor(k)}


class ShuffledSentences(IterableDataset[Sentence]):
    """Sentences of a split in random order, each exactly once among all ranks and workers.

    Row groups are dealt out shuffled, and the sentences of `mixed` of them at a time are shuffled
    together: reading stays sequential. The order follows from `seed` and `epoch` (`set_epoch`).
    `rank` and `ranks` default to torch.distributed's. With `even` each rank gets as many
    sentences as the one with the fewest, so that no rank runs dry; the rest is left out.
    """

    def __init__(
        self,
        store: FeatureStore,
        *,
        split: str | None = None,
        seed: int = 0,
        mixed: int = 8,
        rank: int | None = None,
        ranks: int | None = None,
        even: bool = False,
    ) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.store, self.split, self.seed, self.mixed, self.even = store, split, seed, mixed, even
        self.rank = rank if rank is not None else _rank() if distributed else 0
        self.ranks = ranks if ranks is not None else _ranks() if distributed else 1
        if not 0 <= self.rank < self.ranks:
            raise ElmoError(f"rank must be from 0 to {self.ranks - 1}, found {self.rank}")
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose another order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Sentence]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        groups, sizes = self._groups()
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(groups))
        shares = [order[rank :: self.ranks][number::workers] for rank in range(self.ranks)]
        fewest = min(int(sizes[share].sum()) for share in shares)
        mine = shares[self.rank]
        left = fewest if self.even else int(sizes[mine].sum())
        random = np.random.default_rng([self.seed, self.epoch, self.rank, number])
        for start in range(0, len(mine), self.mixed):
            sentences = self._read([groups[index] for index in mine[start : start + self.mixed]])
            for index in random.permutation(len(sentences))[:left]:
                yield sentences[index]
            left -= min(left, len(sentences))

    def _groups(self) -> tuple[list[tuple[int, int]], "np.typing.NDArray[np.int64]"]:
        """All row groups as (part, row group), and how many sentences each has."""
        groups, sizes = [], []
        for number in self.store.numbers(self.split):
            part = self.store.part(number)
            for group in range(part.row_groups):
                first, last = part.block_rows(group)
                groups.append((number, group))
                sizes.append(last - first)
        return groups, np.array(sizes, np.int64)

    def _read(self, groups: Sequence[tuple[int, int]]) -> list[Sentence]:
        sentences: list[Sentence] = []
        for number, group in groups:
            block = self.store.part(number).block(group, self.store.layers)
            vectors = torch.from_numpy(block.vectors)
            for row, k in enumerate(block.sentence_ids):
                start, stop = block.offsets[row], block.offsets[row + 1]
                sentences.append({"sentence_id": int(k), "vectors": vectors[:, start:stop]})
        return sentences


def collate(sentences: Sequence[Sentence | Floats]) -> Batch:
    """Pad sentences, arrays (layers, tokens, dim) or those of a dataset, to the longest of them."""
    vectors = [torch.as_tensor(s["vectors"] if isinstance(s, dict) else s) for s in sentences]
    lengths = torch.tensor([one.shape[1] for one in vectors])
    layers, _, dim = vectors[0].shape
    batch = vectors[0].new_zeros(len(vectors), layers, int(lengths.max()), dim)
    for row, one in enumerate(vectors):
        batch[row, :, : one.shape[1]] = one
    mask_BT = torch.arange(batch.shape[2]) < lengths[:, None]
    ids = [_number(sentence) for sentence in sentences]
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


def _number(sentence: Sentence | Floats) -> int | None:
    if isinstance(sentence, dict):
        return sentence["sentence_id"]
    return getattr(sentence, "sentence_id", None)


def _rank() -> int:
    return torch.distributed.get_rank()


def _ranks() -> int:
    return torch.distributed.get_world_size()
