"""ELMo vectors of sentences: 2L+1 representations of each token (section 3.2 of the paper).

A sentence is read as `<S> w1 … wn </S>` in both directions, and the boundaries are dropped from the
output. Layer 0 is the context-free vector twice, [x; x]; layer l is [forward; backward].

Shapes: N distinct tokens, S directions, T time steps, B rows, P projection, D = 2P, L LSTM layers,
C cells.
"""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.data.arrays import Floats, Ints
from elmo.data.characters import SENTENCE_BEGIN, SENTENCE_END, check_token_lists
from elmo.data.texts import list_texts
from elmo.data.tokenizer import TextTokenizer
from elmo.errors import ElmoError
from elmo.io.location import Folder
from elmo.model.batches import BatchReader, Carry, batches_by_length
from elmo.model.folder import Model, load_model
from elmo.nn.device import (
    HostCopies,
    check_device,
    default_device,
    device_tensor,
    host_copies,
    launch_ahead,
)
from elmo.nn.packed import pack_if_faster
from elmo.settings import PRECISIONS, Precision, check_count, check_iterable, is_whole_number

ENCODE_CHUNK_TOKENS = 4096  # distinct tokens to encode at a time
GROUP_BATCHES = 4  # batches per call, so that sentences of similar length share one
COPYING_THREADS = 8  # with a GPU; one thread fills about 2 GB of new memory per second
GROUP_TOKENS = 16384  # a group of texts is embedded once it has this many tokens


class Embedder:
    """A loaded model that turns token lists into vectors.

    A token list always gets the same vectors, whatever else is in the batch. Several threads may
    use one embedder.

    `model` is a model folder, the name of an installed model, or a loaded `Model`, which is copied.
    `device=None` means the device of a loaded `Model`, otherwise the GPU if any. `precision` is
    `float32` or `bfloat16` (matrix products in bfloat16, cell state in float32). The `warm_up`
    sentences are read once; every sentence then starts from the state after them instead of zeros,
    because the 2018 weights were trained without resets and expect some context. After many tokens,
    the LSTM cell is compiled, which takes seconds. Set `embedder.bilm.lstm.compiled` to True to
    compile it in the first call, for example in a server, or to False to never compile it.
    """

    def __init__(
        self,
        model: Model | Folder,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        warm_up: Sequence[Sequence[str]] = (),
    ) -> None:
        if device is not None:
            check_device(device)
        if isinstance(model, Model):
            self.model, bilm = model, copy.deepcopy(model.bilm)
        else:
            device = device or default_device()
            self.model = load_model(model, device=device, with_softmax=False)
            bilm = self.model.bilm
        if precision not in PRECISIONS:
            names = ", ".join(PRECISIONS)
            raise ElmoError(f"precision must be one of {names}, found {precision!r}")
        self.bilm = bilm.eval().requires_grad_(False).to(device, getattr(torch, precision))
        self._reader = self._new_reader()
        self._boundaries_2P: Tensor | None = None
        if warm_up:
            carry = Carry()
            for sentence in warm_up:
                self.embed([sentence], state=carry)
            self._reader.start_state = carry.state

    def _new_reader(self) -> BatchReader:
        """Return a reader of batches, with the weights packed if this is faster here."""
        weights = self.bilm.lstm.inference_weights(self.bilm.lstm.weight[0].dtype)
        return BatchReader(self.bilm.lstm, pack_if_faster(weights))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without packed weights and the tokenizer, which are
        rebuilt."""
        rebuilt_names = ("_reader", "_text_tokenizer")
        state = {name: value for name, value in self.__dict__.items() if name not in rebuilt_names}
        return {**state, "start": self._reader.start_state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state."""
        start = state.pop("start")
        self.__dict__.update(state)
        self._reader = self._new_reader()
        self._reader.start_state = start

    @classmethod
    def load(
        cls,
        folder: Folder,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        warm_up: Sequence[Sequence[str]] = (),
    ) -> "Embedder":
        """Load a model folder, an installed model, or a model in MLflow's registry, such as
        `models:/elmo@champion` or `models:/elmo/3`. The options are those of `Embedder`. Raises
        `ElmoError` if the model is damaged. `from_pretrained` does the same."""
        from elmo.model.pretrained import find_pretrained_folder

        folder = find_pretrained_folder(folder)
        return cls(folder, device=device, precision=precision, warm_up=warm_up)

    from_pretrained = load

    @property
    def layers(self) -> int:
        """Return the number of layers per token, L + 1, including the context-free layer 0."""
        return self.bilm.shape.layers + 1

    @property
    def dim(self) -> int:
        """Return the width of a layer's vectors, with both directions."""
        return self.bilm.shape.dim

    def tokenize(self, text: str) -> list[list[str]]:
        """Split a text into sentences, each a list of tokens, as the training text was split.

        Raises `ElmoError` if the model has no tokenizer, or its libraries are not installed.
        """
        return self._text_tokenizer(text)

    def encode(
        self,
        texts: Any,
        pooling: Literal["mean", "first", "last", "max", "none"] = "mean",
        *,
        normalize: bool = False,
        layers: Sequence[int] | None = None,
        batch_size: int = 256,
    ) -> Any:
        """Return one vector per text, float32 (texts, dim): the mean of the layers, pooled over the
        tokens.

        `texts` may also be a column of a table (pandas, Polars, Arrow, NumPy, `datasets`), or a
        table of one column. `tokenize` splits each text, and its sentences are read separately,
        `batch_size` at a time. `layers` selects layers from 0…L (default: all). A text without
        tokens gets zeros. With `normalize`, vectors have length 1. For a single string, the result
        is a single vector; with `pooling="none"`, it is a list of arrays (tokens, dim).
        """
        if pooling not in _POOLINGS:
            raise ElmoError(f"pooling must be one of {', '.join(_POOLINGS)}, found {pooling!r}")
        is_single = isinstance(texts, str)
        vectors = []
        token_lists = map(self.tokenize, list_texts(texts))
        for layers_LTD in self.embed_stream(token_lists, batch_size, layers=layers):
            vector = _POOLINGS[pooling](layers_LTD.mean(0))
            if normalize:
                vector = vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-12)
            vectors.append(vector)
        if is_single:
            return vectors[0]
        if pooling == "none":
            return vectors
        return np.stack(vectors) if vectors else np.empty((0, self.dim), np.float32)

    def embed_stream(
        self,
        texts: Iterable[Sequence[Sequence[str]]],
        batch_size: int = 256,
        *,
        layers: Sequence[int] | None = None,
        state: Literal["reset"] | Carry = "reset",
    ) -> Iterator[Floats]:
        """Yield the vectors of each text, float32 (layers, tokens, dim); a text is a list of
        sentences.

        By default, each sentence is read alone, `batch_size` of them at a time; `layers` selects
        layers from 0…L (default: all). Memory use depends on the longest text, not on the number of
        texts or `batch_size`. With a `Carry` as `state`, each text must be one sentence, and text k
        of a batch continues from text k of the previous batch; one batch is kept in memory.
        """
        check_count("batch_size", batch_size)
        _check_state(state, "reset")
        iterator = check_iterable("texts", texts)
        if isinstance(state, Carry):
            while batch := list(islice(iterator, batch_size)):
                for text in batch:
                    check_token_lists(text)
                if {*map(len, batch)} != {1}:
                    raise ElmoError("with a Carry, each text must be a list of one sentence")
                sentences = [sentence for (sentence,) in batch]
                yield from self.embed(sentences, batch_size, layers=layers, state=state)
            return
        for group in _group_texts(iterator, batch_size):
            sentences = [sentence for text in group for sentence in text]
            sentence_vectors = iter(self.embed(sentences, batch_size, layers=layers))
            for text in group:
                vectors = [next(sentence_vectors) for _ in text]
                if not vectors:
                    layer_count = self.layers if layers is None else len(layers)
                    vectors = [np.empty((layer_count, 0, self.dim), np.float32)]
                yield np.concatenate(vectors, 1) if len(vectors) > 1 else vectors[0]

    def embed(
        self,
        sentences: Sequence[Sequence[str]],
        batch_size: int = 256,
        *,
        layers: Sequence[int] | None = None,
        state: Literal["reset", "carry"] | Carry = "reset",
    ) -> list[Floats]:
        """Return the vectors of each token list, float32 (layers, tokens, dim), in the given order.

        `state="reset"` reads each sentence alone. `"carry"` works as in 2018: sentence k of a batch
        of `batch_size` starts from the final state of sentence k of the previous batch. Pass the
        same `Carry` to several calls to continue across them. `layers` selects layers from 0…L
        (default: all).
        """
        layer_numbers = self._layer_numbers(layers)
        check_count("batch_size", batch_size)
        _check_state(state, "reset", "carry")
        types, ids = _index_types(sentences)
        x_NP = self._with_boundaries(self._encode(types))
        vectors_by_row = [np.empty((len(layer_numbers), 0, self.dim), np.float32)] * len(sentences)
        if state == "reset":
            batches = batches_by_length(list(map(len, ids)), batch_size)
            carry = None
        else:
            carry = Carry() if isinstance(state, str) else state
            starts = range(0, len(ids), batch_size)
            batches = [np.arange(start, min(start + batch_size, len(ids))) for start in starts]

        batches_of_layers = self._read_batches(x_NP, ids, batches, carry, layer_numbers)
        with closing(batches_of_layers), _parallel_map(x_NP.device) as parallel_map:
            for rows, layers_TD in batches_of_layers:
                lengths = [len(ids[row]) for row in rows]
                copy_vectors = partial(_copy_sentence, layers_TD)
                for row, vectors in zip(
                    rows, parallel_map(copy_vectors, lengths, np.cumsum(lengths)), strict=True
                ):
                    vectors_by_row[row] = vectors
        return vectors_by_row

    def encode_types(self, types: Sequence[str]) -> Floats:
        """Return the context-free vectors x of tokens, float32 (tokens, dim / 2); layer 0 is [x;
        x]."""
        check_token_lists([types])
        return np.asarray(self._encode(types).float().cpu().numpy())

    def read_segments(
        self,
        x_NP: Floats,
        sentences: Sequence[Ints],
        segments: Iterable[tuple[slice, Sequence[Ints]]],
    ) -> Iterator[list[Floats]]:
        """Yield layers 1 to L of all tokens of each segment, float32 (tokens, dim), in the order of
        the sentences; each sentence is read alone.

        `x_NP` has the vectors of distinct tokens, from `encode_types`; sentences are indices into
        it. A segment is a slice of the sentences, and the batches that read them: arrays of
        sentence indices. A GPU sorts the tokens itself and copies a segment while it computes the
        next one. A segment's arrays may be overwritten when the next but one is requested.
        """
        weight = self.bilm.lstm.weight[0]
        types_NP = torch.from_numpy(x_NP).to(weight.device, weight.dtype)
        table_NP = self._with_boundaries(types_NP)

        def launch_segments(copies: HostCopies) -> Iterator[Callable[[], list[Floats]]]:
            for segment, batches in segments:
                offsets = np.cumsum([0, *(len(sentence) for sentence in sentences[segment])])
                layers = [
                    table_NP.new_empty(int(offsets[-1]), self.dim) for _ in range(1, self.layers)
                ]
                for rows in batches:
                    spans = [np.arange(*offsets[row : row + 2]) for row in rows - segment.start]
                    token_rows = device_tensor(np.concatenate(spans), table_NP.device)
                    outputs = self._reader.read(table_NP, [sentences[row] for row in rows], None)
                    for layer_TD, y_TD in zip(layers, outputs, strict=True):
                        layer_TD[token_rows] = y_TD
                yield copies.start([layer_TD.float() for layer_TD in layers])

        with host_copies() as copies:
            for wait_for_copies in launch_ahead(launch_segments(copies), table_NP.device):
                yield wait_for_copies()

    def _read_batches(
        self,
        x_NP: Tensor,
        sentences: Sequence[Ints],
        batches: Sequence[Ints],
        carry: Carry | None,
        layer_numbers: Sequence[int],
    ) -> Generator[tuple[Ints, list[Floats]], None, None]:
        """Yield the sentence indices of each batch, and the chosen layers of all their tokens,
        float32 (tokens, D), end to end.

        `x_NP` has the vectors of distinct tokens; sentences are indices into it. A batch's arrays
        may be overwritten when the next but one is requested.
        """

        def launch_batches(copies: HostCopies) -> Iterator[tuple[Ints, Callable[[], list[Floats]]]]:
            for rows in batches:
                batch = [sentences[row] for row in rows]
                layers = self._reader.read(x_NP, batch, carry)
                if 0 in layer_numbers:
                    x_TP = x_NP[device_tensor(np.concatenate(batch), x_NP.device)]
                    layers = [torch.cat([x_TP, x_TP], 1), *layers]
                first_layer = self.layers - len(layers)
                layer_vectors = [layers[k - first_layer].float() for k in layer_numbers]
                yield rows, copies.start(layer_vectors)

        with host_copies() as copies:
            for rows, wait_for_copies in launch_ahead(launch_batches(copies), x_NP.device):
                yield rows, wait_for_copies()

    @cached_property
    def _text_tokenizer(self) -> TextTokenizer:
        return self.model.text_tokenizer()

    def _layer_numbers(self, layers: Sequence[int] | None) -> Sequence[int]:
        if layers is None:
            return range(self.layers)
        if not isinstance(layers, list | tuple | range | np.ndarray) or not len(layers):
            raise ElmoError(f"layers must be a list of numbers, such as [0, 2]; found {layers!r}")
        for layer in layers:
            if not is_whole_number(layer) or layer not in range(self.layers):
                raise ElmoError(f"layers must be among 0 to {self.layers - 1}, found {layer}")
        return layers

    def _encode(self, types: Sequence[str]) -> Tensor:
        """Return the context-free vectors (N, P) of tokens, in the embedder's precision."""
        chunks = [self.bilm.lstm.weight[0].new_empty(0, self.bilm.shape.projection)]
        with torch.inference_mode():
            for start in range(0, len(types), ENCODE_CHUNK_TOKENS):
                inputs = self.model.encoder_input(list(types[start : start + ENCODE_CHUNK_TOKENS]))
                chunks.append(self.bilm.encode(device_tensor(inputs, chunks[0].device)))
            return torch.cat(chunks)

    def _with_boundaries(self, x_NP: Tensor) -> Tensor:
        """Add the vectors of `<S>` and `</S>` as the last two rows."""
        if self._boundaries_2P is None:
            self._boundaries_2P = self._encode([SENTENCE_BEGIN, SENTENCE_END])
        return torch.cat([x_NP, self._boundaries_2P])


def _copy_sentence(layers_TD: list[Floats], length: int, stop: int) -> Floats:
    """Copy a sentence's vectors (layers, tokens, D): the `length` rows before row `stop`."""
    return np.stack([layer_TD[stop - length : stop] for layer_TD in layers_TD])


@contextmanager
def _parallel_map(device: torch.device) -> Iterator[Callable[..., Iterable[Floats]]]:
    """Yield a `map` for copies. With a GPU, it uses threads, because a single thread is too slow:
    the first write to new memory takes time."""
    if device.type == "cpu":
        yield map
        return
    with ThreadPoolExecutor(COPYING_THREADS) as threads:
        yield threads.map


def _check_state(state: object, *names: str) -> None:
    """Refuse a state that is neither one of `names` nor a `Carry`."""
    if not isinstance(state, Carry) and state not in names:
        valid_names = ", ".join(map(repr, names))
        raise ElmoError(f"state must be {valid_names} or a Carry, found {state!r}")


def _group_texts(
    texts: Iterable[Sequence[Sequence[str]]], batch_size: int
) -> Iterator[list[Sequence[Sequence[str]]]]:
    """Group texts to embed in one call: several batches, but a bounded number of tokens."""
    group: list[Sequence[Sequence[str]]] = []
    sentences = tokens = 0
    for text in texts:
        check_token_lists(text)
        group.append(text)
        sentences += len(text)
        tokens += sum(map(len, text))
        if sentences >= GROUP_BATCHES * batch_size or tokens >= GROUP_TOKENS:
            yield group
            group, sentences, tokens = [], 0, 0
    if group:
        yield group


def _pool_or_zeros(pool: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """Wrap a pooling function so that a text without tokens gets zeros."""
    return lambda x_TD: pool(x_TD) if len(x_TD) else np.zeros(x_TD.shape[1], np.float32)


_POOLINGS: dict[str, Callable[[Floats], Floats]] = {
    "mean": _pool_or_zeros(lambda x_TD: x_TD.mean(0)),
    "first": _pool_or_zeros(lambda x_TD: x_TD[0].copy()),
    "last": _pool_or_zeros(lambda x_TD: x_TD[-1].copy()),
    "max": _pool_or_zeros(lambda x_TD: x_TD.max(0)),
    "none": lambda x_TD: x_TD,
}


def _index_types(
    sentences: Sequence[Sequence[str]],
) -> tuple[list[str], list[npt.NDArray[np.int64]]]:
    """Return the distinct tokens, and each sentence as indices into them."""
    check_token_lists(sentences)
    type_ids: dict[str, int] = {}
    ids = []
    for sentence in sentences:
        ids.append(np.array([type_ids.setdefault(t, len(type_ids)) for t in sentence], np.int64))
    return list(type_ids), ids
