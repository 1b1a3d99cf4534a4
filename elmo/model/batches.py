"""Read batches of sentences with the LSTMs: their order, states and windows.

A sentence's vectors do not depend on the other sentences of its batch: rows are independent, and
outputs beyond the end of a row are not computed or are ignored.

Shapes: N tokens, S directions, T time steps, B rows, P projection, D = 2P, L LSTM layers, C cells.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.data.arrays import Ints
from elmo.nn.device import (
    device_tensor,
    prefers_large_operations,
    round_up_rows,
    round_up_time_steps,
)
from elmo.nn.lstm import LayerWeightsLike, LSTMStack, LSTMState
from elmo.nn.packed import choose_for_one_row

GPU_WINDOW_STEPS = 32  # time steps in a window on a GPU
WINDOW_TOKENS = 512  # rows × time steps in a window, which fit the cache


class Carry:
    """The LSTM state that is carried from one call of `Embedder.embed` to the next: sentence k of a
    batch continues where sentence k of the previous batch ended. Create an empty one and pass it to
    each call, which updates it."""

    def __init__(self) -> None:
        self.state: LSTMState | None = None


class BatchReader:
    """A reader that runs batches of sentences through the LSTMs `lstm`.

    `weights` are the LSTM weights, prepared for inference and perhaps packed. A sentence starts
    from the first row of `start_state`, or from zeros if that is None.
    """

    def __init__(self, lstm: LSTMStack, weights: Sequence[LayerWeightsLike]) -> None:
        self.lstm, self.weights, self.one_row_weights = lstm, weights, choose_for_one_row(weights)
        self.start_state: LSTMState | None = None

    @torch.inference_mode()
    def read(self, x_NP: Tensor, sentences: list[Ints], carry: Carry | None) -> list[Tensor]:
        """Read one batch; return the output of each LSTM layer, (tokens of the batch, dim), with
        the sentences end to end in the given order.

        `x_NP` has the vectors of distinct tokens, with those of `<S>` and `</S>` last; a sentence
        is an array of indices into it. `carry` has the state to continue from, and gets the new one
        (None: each sentence is read alone). Time steps are read one window at a time, which bounds
        the memory for long sentences.
        """
        if carry is None and prefers_large_operations(x_NP.device):
            return self._read_padded(x_NP, sentences)
        batch = _SentenceBatch(sentences)
        index_STB = _token_indices([sentences[row] for row in batch.order], x_NP.shape[0])
        outputs = self._new_outputs(batch)
        rows = torch.from_numpy(batch.order).to(x_NP.device)
        full_state = self._initial_state(carry, len(sentences))
        state = full_state.select_rows(rows)
        start = 0
        while start < batch.time_steps:
            row_count = batch.active_rows(start)
            stop = min(batch.time_steps, start + max(1, WINDOW_TOKENS // row_count))
            index = device_tensor(index_STB[:, start:stop, :row_count], x_NP.device)
            layer_outputs, next_state = self.lstm(
                x_NP[index],
                state.select_rows(slice(row_count)),
                row_counts=[batch.active_rows(t) for t in range(start, stop)],
                weights=self.weights if row_count > 1 else self.one_row_weights,
            )
            state.h_LSBP[:, :, :row_count], state.c_LSBC[:, :, :row_count] = next_state
            indices = device_tensor(batch.scatter_indices(start, stop, row_count), x_NP.device)
            for y_STBP, y_ND in zip(layer_outputs, outputs, strict=True):
                _scatter(y_STBP, y_ND, indices)
            start = stop
        if carry is not None:
            full_state.h_LSBP[:, :, rows], full_state.c_LSBC[:, :, rows] = state
            self._update_carry(carry, full_state)
        return outputs

    def _read_padded(self, x_NP: Tensor, sentences: list[Ints]) -> list[Tensor]:
        """Read one batch as `read` does, in few large operations, for a GPU.

        Windows have few distinct shapes, so CUDA graphs can be reused. A batch needs two copies to
        the device. All rows are read to the end of a window; output beyond a sentence is ignored.
        """
        batch = _SentenceBatch(sentences)
        time_steps, rows = round_up_time_steps(batch.time_steps), round_up_rows(len(sentences))
        index_STB = np.zeros((2, time_steps, rows), np.int64)
        index_STB[:, : batch.time_steps, : len(sentences)] = _token_indices(
            [sentences[row] for row in batch.order], x_NP.shape[0]
        )
        windows = []
        for start in range(0, time_steps, GPU_WINDOW_STEPS):
            if row_count := batch.active_rows(start):
                stop, width = min(time_steps, start + GPU_WINDOW_STEPS), round_up_rows(row_count)
                windows.append((start, stop, width, batch.scatter_indices(start, stop, width)))
        index = device_tensor(index_STB, x_NP.device)
        all_indices = device_tensor(np.concatenate([part for *_, part in windows], -1), x_NP.device)
        indices_by_window = torch.split(all_indices, [part.shape[-1] for *_, part in windows], -1)
        outputs = self._new_outputs(batch)
        state = self._initial_state(None, rows)
        for (start, stop, width, _), indices in zip(windows, indices_by_window, strict=True):
            x_STBP = x_NP[index[:, start:stop, :width]]
            layer_outputs, state = self.lstm(x_STBP, state.select_rows(slice(width)))
            for y_STBP, y_ND in zip(layer_outputs, outputs, strict=True):
                _scatter(y_STBP, y_ND, indices)
        return outputs

    def _initial_state(self, carry: Carry | None, rows: int) -> LSTMState:
        """Return the initial state of the rows of a batch."""
        if carry is None or carry.state is None:
            return self._new_state(rows)
        carried_rows = carry.state.h_LSBP.shape[2]
        if carried_rows >= rows:
            return LSTMState(*(part.clone() for part in carry.state.select_rows(slice(rows))))
        new_state = self._new_state(rows - carried_rows)
        return LSTMState(*(torch.cat(pair, 2) for pair in zip(carry.state, new_state, strict=True)))

    def _new_state(self, rows: int) -> LSTMState:
        """Return the initial state of rows that do not continue others."""
        if self.start_state is None:
            return self.lstm.zero_state(rows)
        return self.start_state.select_rows(torch.zeros(rows, dtype=torch.long))

    @staticmethod
    def _update_carry(carry: Carry, state: LSTMState) -> None:
        """Store the new state; rows beyond the batch keep their old state, as in 2018."""
        if carry.state is not None:
            idle_rows = carry.state.select_rows(slice(state.h_LSBP.shape[2], None))
            state = LSTMState(*(torch.cat(pair, 2) for pair in zip(state, idle_rows, strict=True)))
        carry.state = state

    def _new_outputs(self, batch: "_SentenceBatch") -> list[Tensor]:
        shape = (batch.token_count, 2 * self.lstm.projection)
        return [self.lstm.weight[0].new_empty(shape) for _ in range(self.lstm.layer_count)]


def batches_by_length(lengths: Sequence[int], rows: int) -> list[npt.NDArray[np.int64]]:
    """Divide sentences into batches of at most `rows`, longest first; return the indices of each
    batch. Empty sentences are left out."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    order = order[: int(np.count_nonzero(lengths))]
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def _token_indices(sentences: list[Ints], table_rows: int) -> npt.NDArray[np.int64]:
    """Return indices (S, T, B) into a table of `table_rows` vectors, the last two for `<S>` and
    `</S>`."""
    time_steps = max(map(len, sentences)) + 2
    index_STB = np.zeros((2, time_steps, len(sentences)), np.int64)
    for row, sentence in enumerate(sentences):
        indices = np.concatenate([[table_rows - 2], sentence, [table_rows - 1]])
        index_STB[0, : len(indices), row] = indices
        index_STB[1, : len(indices), row] = indices[::-1]
    return index_STB


class _SentenceBatch:
    """A batch of sentences, the longest first."""

    def __init__(self, sentences: list[Ints]) -> None:
        lengths = np.array(list(map(len, sentences)))
        self.token_count = int(lengths.sum())
        self.order = np.argsort(-lengths, kind="stable")
        self.lengths = lengths[self.order]
        self.time_steps = int(self.lengths[0]) + 2  # with the boundaries
        self._starts = np.concatenate([[0], np.cumsum(lengths)])[self.order]

    def active_rows(self, time: int) -> int:
        """Return how many rows, from the first on, are still read at a time step."""
        return int((self.lengths + 2 > time).sum())

    def scatter_indices(self, start: int, stop: int, rows: int) -> npt.NDArray[np.int64]:
        """Return the indices of a window's tokens among its (time step, row) pairs, and their
        output rows: (S, 2, tokens).

        The window has the first `rows` rows. Time step t reads token t − 1 forward and token n − t
        backward; 0 and n + 1 are boundaries.
        """
        lengths, starts = self.lengths[:rows], self._starts[:rows]
        time_steps = np.arange(start, stop)[:, None]
        offset, row = np.nonzero((time_steps >= 1) & (time_steps <= lengths[None]))
        source = offset * rows + row
        time_step = offset + start
        forward, backward = starts[row] + time_step - 1, starts[row] + lengths[row] - time_step
        return np.array([[source, forward], [source, backward]])


def _scatter(y_STBP: Tensor, y_ND: Tensor, indices_S2N: Tensor) -> None:
    """Copy a window's outputs to the rows of their tokens."""
    projection = y_STBP.shape[-1]
    for direction, (source, target) in enumerate(indices_S2N):
        rows = y_STBP[direction].reshape(-1, projection)[source]
        y_ND[:, direction * projection : (direction + 1) * projection][target] = rows
