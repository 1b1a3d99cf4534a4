"""A store of contextual vectors, read like a local array.

    store = elmo.FeatureStore("data/features")
    store[3]          # float32 (layers, tokens, dim) of sentence 3
    store.tokens(3)   # its tokens

A store is a folder (or a URL that fsspec knows) of Parquet files with a `manifest.json`; opening
it reads that file alone. `elmo.store_layout` says what the files hold.
"""

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError
from elmo.files import digest, read_json
from elmo.store_layout import Floats, Layout
from elmo.store_manifest import MANIFEST, read_manifest
from elmo.store_place import Place
from elmo.store_read import Block, Part

if TYPE_CHECKING:
    import torch

_OPEN_PARTS = 64  # each holds two file descriptors


class FeatureStore:
    """A store: `len(store)` sentences, `store[k]` the vectors of sentence k.

    `layers` chooses among `store.layers`, by number or name, and only those are read. With `model`
    (a digest or a model folder) a store made by another model is refused. With `checked` the
    SHA-256 of a part is compared when it is first opened; else only its size is. `version` opens
    an older version. `storage_options` go to fsspec.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        layers: Sequence[int | str] | None = None,
        model: str | Path | None = None,
        version: int | None = None,
        checked: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self._place = Place(path, storage_options)
        self.manifest = read_manifest(self._place, version=version)
        self.layout = Layout.from_dict(self.manifest["layout"])
        self.layers = self._names(layers, among=self.layout.layers)
        self._checked = checked
        self._parts: OrderedDict[int, Part] = OrderedDict()
        if model is not None:
            self._check_model(model)

    def __len__(self) -> int:
        return int(self.manifest["counts"]["sentences"])

    @property
    def dim(self) -> int:
        """The width of a vector."""
        return self.layout.dim

    @property
    def digest(self) -> str:
        """What names this store and version: the digest of its manifest."""
        return digest(self.manifest)

    @overload
    def __getitem__(self, key: int) -> Floats: ...
    @overload
    def __getitem__(self, key: slice) -> list[Floats]: ...

    def __getitem__(self, key: int | slice) -> Floats | list[Floats]:
        """Sentence k as float32 (layers, tokens, dim), or the list of a slice of sentences."""
        if isinstance(key, slice):
            return [self.vectors(k) for k in range(*key.indices(len(self)))]
        return self.vectors(key)

    def vectors(self, k: int, *, layers: Sequence[int | str] | None = None) -> Floats:
        """Sentence k as float32 (layers, tokens, dim); `layers` reads others than the store's."""
        part, row = self._find(k)
        return part.vectors(row, self._names(layers, among=self.layers))

    def tensor(self, k: int, *, layers: Sequence[int | str] | None = None) -> "torch.Tensor":
        """Sentence k as a torch tensor (layers, tokens, dim)."""
        import torch

        return torch.from_numpy(self.vectors(k, layers=layers))

    def raw(self, k: int, layer: int | str) -> npt.NDArray[Any]:
        """One contextual layer of sentence k as it is stored, (tokens, dim), read-only.

        Memory-mapped where the store is local and uncompressed.
        """
        (name,) = self._names([layer], among=self.layout.layers)
        if name == "layer_0":
            raise ElmoError("layer 0 is stored once for each distinct token; use vectors")
        part, row = self._find(k)
        return part.raw(row, name)

    def tokens(self, k: int) -> list[str]:
        """The tokens of sentence k."""
        part, row = self._find(k)
        return part.tokens(row)

    def document(self, document: int) -> range | list[int]:
        """The sentences of a document, in order."""
        found: list[int] = []
        for number, info in enumerate(self.manifest["parts"]):
            if info["first_document_id"] <= document <= info["last_document_id"]:
                part = self._part(number)
                found += part.sentence_ids[part.document_ids == document].tolist()
        if not found:
            raise ElmoError(f"{self.path}: has no document {document}")
        return sorted(found)

    def sentence_id(self, document: int, place: int) -> int:
        """The number of the sentence at `place` (from 0) in a document."""
        sentences = self.document(document)
        if not 0 <= place < len(sentences):
            raise ElmoError(
                f"{self.path}: document {document} has {len(sentences)} sentences, none at {place}"
            )
        return sentences[place]

    def ids(self, split: str | None = None) -> npt.NDArray[np.int64]:
        """The numbers of all sentences of a split, "train" or "heldout" (None: all), ascending."""
        found = [self._part(number).sentence_ids for number in self.numbers(split)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def numbers(self, split: str | None = None) -> list[int]:
        """Which parts, by place in the manifest, hold a split (None: all)."""
        parts = self.manifest["parts"]
        return [n for n, info in enumerate(parts) if split in (info["split"], None)]

    def part(self, number: int) -> Part:
        """A part by its place in the manifest; opened parts are kept, the last used ones."""
        return self._part(number)

    def blocks(
        self, *, split: str | None = None, layers: Sequence[int | str] | None = None
    ) -> Iterator[Block]:
        """Read the store from end to end, some sentences at a time: the fast way to see it all."""
        names = self._names(layers, among=self.layers)
        for number in self.numbers(split):
            yield from self._part(number).blocks(names)

    def __getstate__(self) -> dict[str, Any]:
        """Opened files stay behind: each process opens its own."""
        return {**self.__dict__, "_parts": OrderedDict()}

    def _names(
        self, layers: Sequence[int | str] | None, *, among: Sequence[str]
    ) -> tuple[str, ...]:
        if layers is None:
            return tuple(among)
        names = tuple(layer if isinstance(layer, str) else f"layer_{layer}" for layer in layers)
        for name in names:
            if name not in self.layout.layers:
                raise ElmoError(
                    f"{self.path}: has no {name}; it holds {', '.join(self.layout.layers)}"
                )
        return names

    def _find(self, k: int) -> tuple[Part, int]:
        """The part and row of sentence k."""
        sentences = len(self)
        if not -sentences <= k < sentences:
            raise IndexError(f"{self.path} has {sentences} sentences, none is {k}")
        k += sentences if k < 0 else 0
        for order, lasts in self._order.values():
            place = bisect_left(lasts, k)
            if place < len(order):
                number = order[place]
                if self.manifest["parts"][number]["first_sentence_id"] <= k:
                    part = self._part(number)
                    row = part.row(k)
                    if row is not None:
                        return part, row
        raise ElmoError(f"{self.path}: no part has sentence {k}; elmo verify says more")

    @cached_property
    def _order(self) -> dict[str, tuple[list[int], list[int]]]:
        """For each split: its parts by sentence, and the last sentence of each.

        The sentences of a split never overlap between parts; those of two splits interleave.
        """
        parts = self.manifest["parts"]
        found = {}
        for split in sorted({info["split"] for info in parts}):
            order = sorted(self.numbers(split), key=lambda n: parts[n]["first_sentence_id"])
            found[split] = order, [parts[number]["last_sentence_id"] for number in order]
        return found

    def _part(self, number: int) -> Part:
        if number in self._parts:
            self._parts.move_to_end(number)
            return self._parts[number]
        info = self.manifest["parts"][number]
        self._parts[number] = Part(self._place, info, self.layout, checked=self._checked)
        if len(self._parts) > _OPEN_PARTS:
            self._parts.popitem(last=False)
        return self._parts[number]

    def _check_model(self, model: str | Path) -> None:
        asked, made = model_digest(model), self.manifest["model"]["digest"]
        if made != asked:
            raise ElmoError(
                f"{self.path}: was made by model {made[:12]}…, not by {asked[:12]}…; "
                "make the store again with that model, or ask for the other"
            )

    def __repr__(self) -> str:
        counts = self.manifest["counts"]
        return (
            f"FeatureStore({str(self.path)!r}: {counts['sentences']} sentences, "
            f"{counts['tokens']} tokens, {', '.join(self.layers)}, {self.layout.dtype})"
        )


def model_digest(model: str | Path) -> str:
    """The digest of a model folder, without loading it; a digest is returned as it is."""
    if isinstance(model, str) and re.fullmatch("[0-9a-f]{64}", model):
        return model
    if not Path(model).is_dir():
        raise ElmoError(f"{model}: no such model folder")
    return digest(read_json(Path(model) / "config.json"))


__all__ = ["MANIFEST", "FeatureStore", "model_digest"]
