"""The input of a training step besides the weights, prepared ahead of time.

A thread prepares the next steps while a step is computed. For a GPU, it is a process, because a
thread would share Python's lock with the thread that launches the GPU's work.

Shapes: S directions, T time steps, B rows of this worker, N distinct tokens or predictions, K
characters, L layers, V words.
"""

import io
import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from elmo.data.arrays import distinct_numbers, index_table
from elmo.data.stream import StreamPosition, Window, WindowStream, prefetch
from elmo.errors import ElmoError
from elmo.nn.device import host_tensor
from elmo.nn.dropout import dropout_keys
from elmo.nn.processes import helper_process
from elmo.nn.softmax import CandidateDraw, LossRows, SampledWords, sample_candidates
from elmo.settings import TrainingSettings


class StepInput(NamedTuple):
    """The input of a step besides the weights, as CPU tensors ready to be copied to the device.

    `predictions` is the number of predictions per direction, over all workers. `characters_NK`,
    `index_STB` and `reset_TB` (None: the state is never reset) are as in `Window`. `targets_SN` has
    the target words of both directions at `positions_N` (None: all positions). `keys_LB` has a
    dropout key for each layer and row (None: no dropout). `draws` has the candidates of a sampled
    softmax, one draw for both directions or one for each. `used_rows` are the rows of the word
    matrix that any worker uses (None: all rows).
    """

    predictions: int
    characters_NK: Tensor
    index_STB: Tensor
    reset_TB: Tensor | None
    targets_SN: npt.NDArray[np.int64]
    positions_N: Tensor | None
    keys_LB: Tensor | None
    draws: list[CandidateDraw]
    used_rows: "StepWordRows | None"


class StepWordRows(NamedTuple):
    """The rows of the word matrix (one row per word) that a step uses: their indices, also as a CPU
    tensor. For each draw, it has the positions of targets and candidates among these rows."""

    indices: npt.NDArray[np.int64]
    host_indices: Tensor
    rows: list[LossRows]


PreparedStep = tuple[StepInput, Callable[[], StreamPosition]]


@dataclass(frozen=True)
class StepPreparer:
    """Prepares the inputs of one worker's steps from their windows; it can be pickled.

    The softmax has `vocabulary_size` words, dropout is applied in `layers` places, and `rows` has
    the numbers of this worker's rows. The tensors are prepared for `device`. `pad` pads the
    distinct tokens (None: no padding), and `gather` exchanges words with other workers (None: there
    are none).
    """

    settings: TrainingSettings
    vocabulary_size: int
    layers: int
    rows: list[int]
    device: torch.device
    pad: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]] | None
    gather: Callable[[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]] | None

    def prepare(self, window: Window, *, step: int) -> StepInput:
        """Return the input of step `step` (from 0), given its window."""
        device, settings = self.device, self.settings
        characters_NK = window.characters_NK if self.pad is None else self.pad(window.characters_NK)
        targets_SN = window.targets_STB.reshape(2, -1)
        positions_N = None
        if not window.mask_TB.all():
            index_N = np.flatnonzero(window.mask_TB)
            positions_N, targets_SN = host_tensor(index_N, device), targets_SN[:, index_N]
        keys_LB = None
        if settings.dropout > 0:
            keys = [
                dropout_keys(settings.seed, step, layer, rows=self.rows)
                for layer in range(self.layers)
            ]
            keys_LB = host_tensor(torch.stack(keys).numpy(), device)
        draws = self._draw_candidates(targets_SN, step)
        return StepInput(
            predictions=window.count // 2,
            characters_NK=host_tensor(characters_NK, device),
            index_STB=host_tensor(window.index_STB, device),
            reset_TB=host_tensor(window.reset_TB, device) if settings.reset == "sentence" else None,
            targets_SN=targets_SN,
            positions_N=positions_N,
            keys_LB=keys_LB,
            draws=draws,
            used_rows=self._find_word_rows(window.words, targets_SN, draws) if draws else None,
        )

    def _find_word_rows(
        self,
        words: npt.NDArray[np.int64],
        targets_SN: npt.NDArray[np.int64],
        draws: list[CandidateDraw],
    ) -> StepWordRows:
        """Return the used rows: the candidates and the distinct targets of all workers; `words` are
        the targets of this worker."""
        device, vocabulary_size = self.device, self.vocabulary_size
        words_by_worker = [words] if self.gather is None else self.gather(words)
        words_and_candidates = np.concatenate([*words_by_worker, *(draw.words for draw in draws)])
        indices = distinct_numbers(words_and_candidates, vocabulary_size)
        row_of_V = index_table(indices, vocabulary_size)
        targets_by_draw = [targets_SN.ravel()] if len(draws) == 1 else targets_SN
        rows = [
            LossRows.find(targets_N, draw.words, row_of_V, device)
            for targets_N, draw in zip(targets_by_draw, draws, strict=True)
        ]
        return StepWordRows(indices, host_tensor(indices, device), rows)

    def _draw_candidates(self, targets_SN: npt.NDArray[np.int64], step: int) -> list[CandidateDraw]:
        """Return one draw for both directions or one for each, equal on all workers; [] if the
        softmax is not sampled."""
        settings, device = self.settings, self.device
        if settings.softmax == "full":
            return []

        def draw(*numbers: int) -> SampledWords:
            rng = np.random.Generator(np.random.Philox(_make_seed(settings.seed, step, *numbers)))
            return sample_candidates(settings.samples, self.vocabulary_size, rng)

        if settings.draws == "shared":
            return [CandidateDraw.prepare(targets_SN.ravel(), draw(), device)]
        return [CandidateDraw.prepare(targets_SN[side], draw(0, side), device) for side in (0, 1)]


def read_ahead(
    preparer: StepPreparer,
    stream: WindowStream,
    position: StreamPosition,
    *,
    step: int,
    uses_process: bool,
) -> Generator[PreparedStep, None, None]:
    """Yield the input of each step, and a function that returns the position after it. The first
    step is `step`, at `position`. A thread or, if `uses_process`, a process works two steps ahead.
    """
    if not uses_process:
        with closing(prefetch(_prepare_steps(preparer, stream, position, step))) as items:
            yield from items
        return
    receiver, sender = Pipe(duplex=False)
    cpu_preparer = replace(preparer, device=torch.device("cpu"))
    with helper_process(_send_steps, sender, cpu_preparer, stream, position, step):
        sender.close()
        with receiver, closing(prefetch(_receive_steps(receiver, preparer.device))) as items:
            yield from items


def _prepare_steps(
    preparer: StepPreparer, stream: WindowStream, position: StreamPosition, step: int
) -> Iterator[PreparedStep]:
    for step_number, (window, position_after) in enumerate(stream.windows(position), step):
        yield preparer.prepare(window, step=step_number), position_after


def _send_steps(sender: Connection, *arguments: Any) -> None:
    """Send each prepared step, then None; or the error that ends them."""
    try:
        for item in _prepare_steps(*arguments):
            sender.send_bytes(_pickle(item))
        sender.send_bytes(_pickle(None))
    except Exception as error:
        sender.send_bytes(_pickle(error))


def _receive_steps(receiver: Connection, device: torch.device) -> Iterator[PreparedStep]:
    while True:
        try:
            item = pickle.loads(receiver.recv_bytes())
        except (EOFError, OSError):  # OSError: the process ended within a message
            raise ElmoError(
                "the process that reads the text ended; run the same command again (in a script, "
                'put your code below if __name__ == "__main__":)'
            ) from None
        if item is None:
            return
        if isinstance(item, Exception):
            raise item
        yield tree_map_only(Tensor, lambda tensor: host_tensor(tensor.numpy(), device), item)


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which takes a tenth of the time."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce a tensor to the function and array that restore it."""
        return (torch.from_numpy, (value.numpy(),)) if type(value) is Tensor else NotImplemented


def _pickle(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _make_seed(*numbers: int) -> int:
    """Combine several numbers into one seed; different numbers give independent streams."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
