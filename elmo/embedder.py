"""Sentences → the 2L+1 representations of each token (section 3.2 of the paper), layer by layer.

A sentence is read as `<S> w1 … wn </S>` in both directions and the boundaries are dropped from what
comes out. Layer 0 is the context-free vector twice, [x; x]; layer l is [forward; backward].

Shapes: N distinct tokens, S directions, T steps, B rows, P projection, D = 2P, L LSTM layers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.characters import SENTENCE_BEGIN, SENTENCE_END
from elmo.checkpoint import Model, load_model
from elmo.errors import ElmoError
from elmo.lstm import State

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer]
ENCODE_TOKENS = 4096  # distinct tokens encoded at a time
WINDOW_TOKENS = 512  # rows × steps read at a time: stays in cache, bounds a long sentence
SEGMENT_TOKENS = 32768
ROWS = 256


class Carry:
    """The LSTM state a caller hands from one `embed` to the next: row k goes on from row k."""

    def __init__(self) -> None:
        self.state: State | None = None


class Segment(NamedTuple):
    """Sentences `start` to `stop` of a shard, one after another.

    `contextual[l - 1]` is layer l of their tokens, (tokens, D).
    """

    start: int
    stop: int
    contextual: list[Floats]


class Embedder:
    """A model ready to embed. The same token list gets the same vectors, whatever stands beside it.

    `precision` is `float32` or `bfloat16` (products in bfloat16, cell state in float32).
    `warm_up` sentences are read once, and every sentence then starts from the state they leave
    instead of zeros: imported 2018 weights were trained without resets and expect some context.
    """

    def __init__(
        self,
        model: Model,
        *,
        precision: Literal["float32", "bfloat16"] = "float32",
        warm_up: Sequence[Sequence[str]] = (),
    ) -> None:
        if precision not in ("float32", "bfloat16"):
            raise ElmoError(f"precision must be 'float32' or 'bfloat16', found {precision!r}")
        self.model = model
        self.bilm = model.bilm.eval().requires_grad_(False).to(getattr(torch, precision))
        self._weights = self.bilm.lstm.weights(getattr(torch, precision))
        self._boundaries_2P: Tensor | None = None
        self._start: State | None = None
        if warm_up:
            carry = Carry()
            for sentence in warm_up:
                self.embed([sentence], state=carry)
            self._start = carry.state

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "cpu",
        precision: Literal["float32", "bfloat16"] = "float32",
        warm_up: Sequence[Sequence[str]] = (),
    ) -> "Embedder":
        """Load a model folder; `ElmoError` where it is broken."""
        return cls(
            load_model(Path(folder), device=device),
            precision=precision,
            warm_up=warm_up,
        )

    @property
    def layers(self) -> int:
        """How many representations a token has: L + 1."""
        return self.bilm.config.layers + 1

    @property
    def dim(self) -> int:
        """The width of each: 2P."""
        return self.bilm.config.dim

    def embed(
        self,
        sentences: Sequence[Sequence[str]],
        batch_size: int = 256,
        *,
        layers: Sequence[int] | None = None,
        state: Literal["reset", "carry"] | Carry = "reset",
    ) -> list[Floats]:
        """Embed token lists; return one float32 array (layers, tokens, D) for each, in order.

        `state="reset"` (default) reads each sentence alone. `"carry"` is what 2018 did: row k of a
        batch goes on from row k of the batch before, from zeros at the first; hand in a `Carry` to
        go on across calls. `layers` chooses some of 0…L.
        """
        chosen = self._chosen(layers)
        if batch_size < 1:
            raise ElmoError(f"batch_size must be 1 or more, found {batch_size}")
        types, ids = _distinct(sentences)
        x_NP = self._with_boundaries(self._encode(types))
        found = [np.empty((len(chosen), 0, self.dim), np.float32)] * len(sentences)
        if state == "reset":
            batches = _by_length([len(s) for s in ids], batch_size)
            carry = None
        else:
            carry = Carry() if isinstance(state, str) else state
            starts = range(0, len(ids), batch_size)
            batches = [np.arange(at, min(at + batch_size, len(ids))) for at in starts]
        for rows in batches:
            outputs = self._read(x_NP, [ids[row] for row in rows], carry)
            at = 0
            for row in rows:
                to = at + len(ids[row])
                x_TP = x_NP[torch.from_numpy(ids[row]).to(x_NP.device)].float()
                every = [
                    torch.cat([x_TP, x_TP], 1),
                    *(y_TD[at:to].float() for y_TD in outputs),
                ]
                found[row] = torch.stack([every[layer] for layer in chosen]).cpu().numpy()
                at = to
        return found

    def encode_types(self, types: Sequence[str]) -> Floats:
        """The context-free vectors of N distinct tokens, (N, P): layer 0 is each twice."""
        return np.asarray(self._encode(types).float().cpu().numpy())

    def segments(
        self,
        types: Sequence[str],
        ids: Ints,
        offsets: Ints,
        *,
        x_NP: Floats | None = None,
    ) -> Iterator[Segment]:
        """Embed a shard's sentences, each alone, in segments that follow from the shard alone.

        Sentence k is `ids[offsets[k]:offsets[k + 1]]`, indices into `types`. `x_NP` is what
        `encode_types(types)` gave, where the caller has it already. Memory does not grow with the
        shard.
        """
        encoded = self._encode(types) if x_NP is None else self._to_device(x_NP)
        table_NP = self._with_boundaries(encoded)
        for start, stop in _segments(offsets):
            sentences = [ids[offsets[k] : offsets[k + 1]] for k in range(start, stop)]
            first = int(offsets[start])
            tokens = int(offsets[stop]) - first
            layers = [np.empty((tokens, self.dim), np.float32) for _ in range(1, self.layers)]
            for rows in _by_length([len(s) for s in sentences], ROWS):
                outputs = self._read(table_NP, [sentences[row] for row in rows], None)
                places = np.concatenate(
                    [np.arange(offsets[start + r], offsets[start + r + 1]) - first for r in rows]
                )
                for layer, y_TD in zip(layers, outputs, strict=True):
                    layer[places] = y_TD.float().cpu().numpy()
            yield Segment(start, stop, layers)

    def _chosen(self, layers: Sequence[int] | None) -> Sequence[int]:
        if layers is None:
            return range(self.layers)
        for layer in layers:
            if not 0 <= layer < self.layers:
                raise ElmoError(f"layers must be among 0 to {self.layers - 1}, found {layer}")
        return layers

    def _encode(self, types: Sequence[str]) -> Tensor:
        """(N, P) in the embedder's precision."""
        parts = [self._new(0, self.bilm.config.projection)]
        with torch.inference_mode():
            for at in range(0, len(types), ENCODE_TOKENS):
                inputs = self.model.inputs(list(types[at : at + ENCODE_TOKENS]))
                parts.append(self.bilm.encode(torch.from_numpy(inputs).to(parts[0].device)))
            return torch.cat(parts)

    def _with_boundaries(self, x_NP: Tensor) -> Tensor:
        """Add the vectors of `<S>` and `</S>` as the last two rows."""
        if self._boundaries_2P is None:
            self._boundaries_2P = self._encode([SENTENCE_BEGIN, SENTENCE_END])
        return torch.cat([x_NP, self._boundaries_2P])

    @torch.inference_mode()
    def _read(self, x_NP: Tensor, sentences: list[Ints], carry: Carry | None) -> list[Tensor]:
        """Read one batch; return each LSTM layer as (tokens of the batch, D), in the given order.

        The rows are sorted by falling length, so that at any step only the first ones are read,
        and steps are taken a window at a time, so that memory does not grow with a sentence.
        """
        lengths = np.array([len(s) for s in sentences])
        order = np.argsort(-lengths, kind="stable")
        steps_B = lengths[order] + 2
        index_STB = _index([sentences[row] for row in order], x_NP.shape[0])
        starts = np.concatenate([[0], np.cumsum(lengths)])[order]
        tokens = int(lengths.sum())
        outputs = [self._new(tokens, self.dim) for _ in range(1, self.layers)]
        rows = torch.from_numpy(order).to(x_NP.device)
        whole = self._begin(carry, len(sentences))
        state = whole.rows(rows)
        at = 0
        while at < steps_B[0]:
            active = int((steps_B > at).sum())
            to = min(int(steps_B[0]), at + max(1, WINDOW_TOKENS // active))
            sizes = [int((steps_B > t).sum()) for t in range(at, to)]
            index = torch.from_numpy(index_STB[:, at:to, :active]).to(x_NP.device)
            ys, after = self.bilm.lstm(
                x_NP[index], state.rows(slice(active)), sizes=sizes, weights=self._weights
            )
            state.h_LSBP[:, :, :active], state.c_LSBC[:, :, :active] = after
            places = _places(at, to, lengths[order][:active], starts[:active])
            for y_STBP, y_ND in zip(ys, outputs, strict=True):
                _scatter(y_STBP, y_ND, places)
            at = to
        if carry is not None:
            whole.h_LSBP[:, :, rows], whole.c_LSBC[:, :, rows] = state
            self._keep(carry, whole)
        return outputs

    def _begin(self, carry: Carry | None, rows: int) -> State:
        """The state B rows start from."""
        if carry is None or carry.state is None:
            if self._start is None or carry is not None:
                return self.bilm.lstm.zero_state(rows)
            return self._start.rows(torch.zeros(rows, dtype=torch.long))
        kept = carry.state.h_LSBP.shape[2]
        if kept >= rows:
            return State(*(part.clone() for part in carry.state.rows(slice(rows))))
        new = self.bilm.lstm.zero_state(rows - kept)
        return State(*(torch.cat(both, 2) for both in zip(carry.state, new, strict=True)))

    @staticmethod
    def _keep(carry: Carry, state: State) -> None:
        """Rows beyond the batch keep what they had, as in 2018."""
        if carry.state is not None:
            beyond = carry.state.rows(slice(state.h_LSBP.shape[2], None))
            state = State(*(torch.cat(both, 2) for both in zip(state, beyond, strict=True)))
        carry.state = state

    def _new(self, *shape: int) -> Tensor:
        return self.bilm.lstm.weight[0].new_empty(shape)

    def _to_device(self, x_NP: Floats) -> Tensor:
        like = self.bilm.lstm.weight[0]
        return torch.from_numpy(x_NP).to(like.device, like.dtype)


def _distinct(
    sentences: Sequence[Sequence[str]],
) -> tuple[list[str], list[npt.NDArray[np.int64]]]:
    """The distinct tokens, and each sentence as indices into them."""
    places: dict[str, int] = {}
    ids = []
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise ElmoError(
                f"sentence {number}: must be a list of tokens, found a string; split it"
            )
        ids.append(np.array([places.setdefault(t, len(places)) for t in sentence], np.int64))
    return list(places), ids


def _by_length(lengths: Sequence[int], rows: int) -> list[npt.NDArray[np.int64]]:
    """Batches of at most `rows` sentences of like length, longest first, without empty ones."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    order = order[: int(np.count_nonzero(lengths))]
    return [order[at : at + rows] for at in range(0, len(order), rows)]


def _segments(offsets: Ints) -> Iterator[tuple[int, int]]:
    """Cut a shard into runs of sentences of about `SEGMENT_TOKENS` tokens."""
    start, sentences = 0, len(offsets) - 1
    while start < sentences:
        stop = int(np.searchsorted(offsets, offsets[start] + SEGMENT_TOKENS, side="right")) - 1
        stop = min(max(stop, start + 1), sentences)
        yield start, stop
        start = stop


def _index(sentences: list[Ints], rows: int) -> npt.NDArray[np.int64]:
    """(S, T, B) indices into the table of vectors, whose last two rows are `<S>` and `</S>`."""
    longest = max(len(s) for s in sentences) + 2
    index = np.zeros((2, longest, len(sentences)), np.int64)
    for row, sentence in enumerate(sentences):
        line = np.concatenate([[rows - 2], sentence, [rows - 1]])
        index[0, : len(line), row] = line
        index[1, : len(line), row] = line[::-1]
    return index


def _places(
    at: int, to: int, lengths: Ints, starts: Ints
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each direction: which (step, row) of a window hold tokens, and where those go.

    Step t reads token t − 1 forward and token n − t backward; steps 0 and n + 1 are boundaries.
    """
    steps = np.arange(at, to)[:, None]
    step, row = np.nonzero((steps >= 1) & (steps <= lengths[None]))
    source = step * len(lengths) + row
    t = step + at
    forward, backward = starts[row] + t - 1, starts[row] + lengths[row] - t
    return [(source, forward), (source, backward)]


def _scatter(
    y_STBP: Tensor,
    y_ND: Tensor,
    places: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
) -> None:
    """Put a window's outputs in their tokens' rows."""
    width = y_STBP.shape[-1]
    for direction, (source, target) in enumerate(places):
        rows = y_STBP[direction].reshape(-1, width)[torch.from_numpy(source).to(y_ND.device)]
        half = y_ND[:, direction * width : (direction + 1) * width]
        half[torch.from_numpy(target).to(y_ND.device)] = rows
