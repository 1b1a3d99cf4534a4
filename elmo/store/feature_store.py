"""A store of contextual vectors, read like a local array.

    store = elmo.FeatureStore("data/features")
    store[3]          # float32 (layers, tokens, dim) of sentence 3
    store.tokens(3)   # its tokens

A store is a folder (or an fsspec URL) of Parquet files with a manifest; opening it reads only the
manifest. `elmo.store.layout` describes the files. Several threads may read a store; forked or
spawned processes open its files anew.

    store = elmo.FeatureStore(["monday", "tuesday"])  # several, read as one
"""

import json
import operator
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Floats
from elmo.data.manifest import SPLITS
from elmo.errors import Damaged, ElmoError, Mismatch
from elmo.io.location import Folder, Location
from elmo.io.records import digest
from elmo.model.config import read_config
from elmo.settings import check_iterable
from elmo.store.layout import layer_name
from elmo.store.manifest import PartEntry, StoreCounts, StoreManifest, count_parts, read_manifest
from elmo.store.reader import Part, VectorBlock

if TYPE_CHECKING:
    from elmo.store.datasets import SentenceArray

_MAX_OPEN_PARTS = 64  # parts not memory-mapped; each has two open files or connections


class _OpenStore(NamedTuple):
    """One of the stores that are read as one, and the shifts that are added to its ids."""

    location: Location
    manifest: StoreManifest
    sentence_shift: int
    document_shift: int


class FeatureStore:
    """A store of contextual vectors: `len(store)` sentences, with `store[k]` the vectors of
    sentence k.

    A list of stores is read as one store if the same model made them with the same settings; the
    sentences and documents of each are numbered after those of the stores before it. `layers`
    selects layers by number or name (default: all stored layers); only those are read. If another
    model than `model` (a digest or a model folder) made the store, `Mismatch` is raised. With
    `checked`, the SHA-256 of a part is verified when it is first opened, otherwise only its size.
    `storage_options` are passed to fsspec. Use `close` or a `with` block to close open files.
    """

    def __init__(
        self,
        path: Folder | Sequence[Folder],
        *,
        layers: Sequence[int | str] | None = None,
        model: Folder | None = None,
        checked: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        paths: Sequence[Folder] = path if isinstance(path, list | tuple) else [path]  # type: ignore[list-item]
        self.path = ", ".join(map(str, paths))
        self._stores = _open_all(paths, storage_options)
        self.manifests = [store.manifest for store in self._stores]
        self.layout = self.manifests[0].layout
        self.layers = self._select_layers(layers, candidates=self.layout.layers)
        self._is_checked = checked
        self._parts: OrderedDict[int, Part] = OrderedDict()
        self._lock, self._pid = threading.RLock(), os.getpid()  # guards `_parts`
        self._is_closed = False
        if model is not None:
            self.check_model(model)

    def __len__(self) -> int:
        return self.counts.sentences

    @cached_property
    def counts(self) -> StoreCounts:
        """Return the totals over all parts."""
        return count_parts([entry for _, entry in self._entries])

    @property
    def model(self) -> str:
        """Return the digest of the model that made the store."""
        return self.manifests[0].model.digest

    @property
    def dim(self) -> int:
        """Return the width of a vector."""
        return self.layout.dim

    @property
    def digest(self) -> str:
        """Return the digest of the manifest, which identifies the store; for several stores, a
        digest of their digests."""
        digests = [manifest.digest for manifest in self.manifests]
        return digests[0] if len(digests) == 1 else digest(digests)

    @overload
    def __getitem__(self, key: int) -> Floats: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int]) -> list[Floats]: ...

    def __getitem__(self, key: int | slice | Sequence[int]) -> Floats | list[Floats]:
        """Return the vectors of sentence k, float32 (layers, tokens, dim), or a list for several
        sentences."""
        if isinstance(key, slice):
            return [self.vectors(k) for k in range(*key.indices(len(self)))]
        is_scalar = isinstance(key, str) or (isinstance(key, np.ndarray) and not key.ndim)
        if isinstance(key, Sequence | np.ndarray) and not is_scalar:
            return [self.vectors(_to_index(k)) for k in key]
        return self.vectors(_to_index(key))

    def __getitems__(self, indices: Sequence[int]) -> "list[SentenceArray]":
        """Return the vectors of several sentences; torch's `DataLoader(store, batch_size=…)` calls
        this.

        Without a `collate_fn`, the `DataLoader` pads them with `elmo.store.datasets.collate`.
        """
        from elmo.store.datasets import sentence_arrays

        return sentence_arrays(self, indices)

    def close(self) -> None:
        """Close all open files; the store cannot be read afterwards."""
        with self._lock:
            self._is_closed = True
            for part in self._parts.values():
                part.close()
            self._parts.clear()

    def __enter__(self) -> "FeatureStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def vectors(self, k: int, *, layers: Sequence[int | str] | None = None) -> Floats:
        """Return the vectors of sentence k, float32 (layers, tokens, dim).

        `layers`, numbers or names, overrides the layers that the store was opened with.
        """
        part, row = self._locate(k)
        return part.vectors(row, self._select_layers(layers, candidates=self.layers))

    def tokens(self, k: int) -> list[str]:
        """Return the tokens of sentence k."""
        part, row = self._locate(k)
        return part.tokens(row)

    def document(self, k: int) -> int:
        """Return the id of the document of sentence k: its number in the corpus, from 0."""
        part, row = self._locate(k)
        return int(part.document_ids[row])

    def record(self, k: int) -> dict[str, Any]:
        """Return the columns that `corpus.keep` kept of sentence k's record, by name."""
        part, row = self._locate(k)
        record: dict[str, Any] = json.loads(part.record(row) or "{}")
        return record

    def sentences(self, document: int) -> npt.NDArray[np.int64]:
        """Return the ids of a document's sentences, ascending; none if there is no such
        document."""
        document, ids = _to_index(document), [np.empty(0, np.int64)]
        for number, (store, entry) in enumerate(self._entries):
            local_document = document - store.document_shift
            if entry.first_document_id <= local_document <= entry.last_document_id:
                part = self.part(number)
                ids.append(part.sentence_ids[part.document_ids == document])
        return np.sort(np.concatenate(ids))

    def ids(self, split: str | None = None) -> npt.NDArray[np.int64]:
        """Return the ids of all sentences of a split, "train" or "heldout" (default: both),
        ascending."""
        ids = [self.part(number).sentence_ids for number in self.part_numbers(split)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *ids]))

    def part_numbers(self, split: str | None = None) -> list[int]:
        """Return the numbers of the parts that hold a split, "train" or "heldout" (default: both);
        `part(number)` returns such a part."""
        if split is not None and split not in SPLITS:
            raise ElmoError(f"split must be {' or '.join(SPLITS)}, found {split!r}")
        return [n for n, (_, part) in enumerate(self._entries) if split in (part.split, None)]

    def blocks(
        self, *, split: str | None = None, layers: Sequence[int | str] | None = None
    ) -> Iterator[VectorBlock]:
        """Yield the vectors of the whole store in blocks of neighbouring sentences, the fastest way
        to read them all.

        `split` is "train" or "heldout" (default: both); `layers`, numbers or names, overrides the
        layers that the store was opened with.
        """
        names = self._select_layers(layers, candidates=self.layers)
        for number in self.part_numbers(split):
            yield from self.part(number).blocks(names)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without open files: each process opens its own."""
        return {**self.__dict__, "_parts": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, with a new lock."""
        self.__dict__.update(state, _lock=threading.RLock(), _pid=os.getpid())

    def _select_layers(
        self, layers: Sequence[int | str] | None, *, candidates: Sequence[str]
    ) -> tuple[str, ...]:
        if layers is None:
            return tuple(candidates)
        items = () if isinstance(layers, str | Mapping) else check_iterable("layers", layers)
        names = tuple(item if isinstance(item, str) else layer_name(item) for item in items)
        if not names:
            raise ElmoError(f"layers must be a list, such as [0, 2]; found {layers!r}")
        for name in names:
            if name not in self.layout.layers:
                raise ElmoError(
                    f"{self.path}: has no {name}; it holds {', '.join(self.layout.layers)}"
                )
        return names

    def _locate(self, k: int) -> tuple[Part, int]:
        """Return the part that holds sentence k, and the sentence's row in it."""
        k, sentences = _to_index(k), len(self)
        if not -sentences <= k < sentences:
            raise IndexError(f"{self.path}: no sentence {k}; it has {sentences} sentences")
        k += sentences if k < 0 else 0
        first_ids, last_ids = self._id_ranges
        # The id ranges of parts of one split never overlap; those of different splits interleave.
        for number in np.flatnonzero((first_ids <= k) & (k <= last_ids)).tolist():
            part = self.part(number)
            if (row := part.find_row(k)) is not None:
                return part, row
        raise ElmoError(f"{self.path}: no part has sentence {k}; run elmo verify")

    @cached_property
    def _id_ranges(self) -> npt.NDArray[np.int64]:
        """Return the ids of the first sentences of all parts, and those of the last ones."""
        shifts = np.array([store.sentence_shift for store, _ in self._entries], np.int64)
        bounds = [(part.first_sentence_id, part.last_sentence_id) for _, part in self._entries]
        return np.array(bounds, np.int64).reshape(-1, 2).T + shifts

    @cached_property
    def _entries(self) -> list[tuple[_OpenStore, PartEntry]]:
        """Return the parts of all stores, each with its store."""
        return [(store, part) for store in self._stores for part in store.manifest.parts]

    def part(self, number: int) -> Part:
        """Return part `number`, one of `part_numbers()`. Of the parts that are not mapped, only the
        most recently used stay open."""
        if self._pid != os.getpid():  # forked: do not use the files of the parent process
            self._parts, self._lock = OrderedDict(), threading.RLock()
            self._pid = os.getpid()
        with self._lock:
            if self._is_closed:
                raise ElmoError(f"{self.path}: is closed; open the store again")
            if number in self._parts:
                self._parts.move_to_end(number)
                return self._parts[number]
            store, entry = self._entries[number]
            part = _open_part(store, entry, checked=self._is_checked)
            self._parts[number] = part
            unmapped_keys = [key for key, p in self._parts.items() if not p.is_mapped]
            if len(unmapped_keys) > _MAX_OPEN_PARTS:
                del self._parts[unmapped_keys[0]]
            return part

    def check_model(self, model: Folder) -> None:
        """Raise `Mismatch` unless `model`, a folder or a digest, made the store: vectors of
        different models cannot be compared."""
        expected, actual = model_digest(model), self.model
        if actual != expected:
            raise Mismatch(
                f"{self.path}: was made by model {actual[:12]}…, not by {expected[:12]}…; "
                "use the model that it was made by, or make the store again"
            )

    def __repr__(self) -> str:
        counts = self.counts
        return (
            f"FeatureStore({self.path!r}: {counts.sentences} sentences, "
            f"{counts.tokens} tokens, {', '.join(self.layers)}, {self.layout.dtype})"
        )


def _open_all(paths: Sequence[Folder], options: Mapping[str, Any] | None) -> list[_OpenStore]:
    """Read the manifests of several stores; raise `ElmoError` unless one model made them, with the
    same settings."""
    if not paths:
        raise ElmoError("a store is a folder, or a list of folders; found an empty list")
    stores: list[_OpenStore] = []
    sentences = documents = 0
    for path in paths:
        location = path if isinstance(path, Location) else Location(path, options)
        manifest = read_manifest(location)
        base = stores[0] if stores else None
        if base and manifest.model.digest != base.manifest.model.digest:
            raise Mismatch(
                f"{location}: was made by model {manifest.model.digest[:12]}…, {base.location} by "
                f"{base.manifest.model.digest[:12]}…; stores read as one must have the same model"
            )
        if base and (manifest.layout, manifest.params.precision) != (
            base.manifest.layout,
            base.manifest.params.precision,
        ):
            raise Mismatch(
                f"{location}: was made with other settings than {base.location}; make both with "
                "the same section `features` in params.yaml"
            )
        stores.append(_OpenStore(location, manifest, sentences, documents))
        sentences += manifest.counts.sentences
        documents += 1 + max((part.last_document_id for part in manifest.parts), default=-1)
    return stores


def _open_part(store: _OpenStore, entry: PartEntry, *, checked: bool) -> Part:
    """Open a part; raise `ElmoError` if the store has been replaced since it was opened."""
    shifts = (store.sentence_shift, store.document_shift)
    try:
        return Part(store.location, entry, store.manifest.layout, shifts=shifts, checked=checked)
    except Damaged:
        if read_manifest(store.location).digest == store.manifest.digest:
            raise
        raise ElmoError(
            f"{store.location}: another store has replaced this one since it was opened; open it "
            "again"
        ) from None


def _to_index(key: object) -> int:
    if isinstance(key, bool | np.bool_):
        raise TypeError(
            "a store is indexed by numbers; for a mask, use store[np.flatnonzero(mask)]"
        )
    try:
        return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        key_text = " ".join(repr(key).split())
        raise TypeError(
            f"a store is indexed by numbers, or a slice or list of them, not {key_text:.80}"
        ) from None


def model_digest(model: Folder) -> str:
    """Return the digest of a model folder without loading the model; a digest is returned
    unchanged."""
    if isinstance(model, str) and re.fullmatch("[0-9a-f]{64}", model):
        return model
    return read_config(model).digest
