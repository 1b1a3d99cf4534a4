"""What a training step asks of a GPU, counted on a CPU: operations launched one by one, and waits.

A GPU runs each of them in less time than it takes to launch it. The loops over time are captured as
graphs there and are not counted.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elmo.characters import Characters
from elmo.nn import lstm
from elmo.nn.bilm import BiLM, Config
from elmo.nn.softmax import Softmax
from elmo.settings import OptimizerSettings, Training
from elmo.stream import Window
from elmo.train.optimizer import Optimizer
from elmo.train.step import WORD_MATRIX, Stepper, Workers
from tests.elmo.run_job import TRAINING

# The original network, with few of everything but layers and filter widths.
ORIGINAL = Config(
    char_dim=4,
    filters=tuple((width, 4) for width in range(1, 8)),
    activation="relu",
    highways=2,
    cells=16,
    projection=8,
    layers=2,
    cell_clip=3.0,
    projection_clip=3.0,
    skip=True,
    input_words=None,
)
TYPES, WORDS, T, B = 1500, 400, 20, 16
VIEWS = {  # launch nothing
    "view",
    "_unsafe_view",
    "detach",
    "t",
    "transpose",
    "expand",
    "unsqueeze",
    "slice",
    "select",
    "alias",
    "as_strided",
    "chunk",
    "split",
    "split_with_sizes",
    "unbind",
    "permute",
    "squeeze",
    "lift_fresh",
    "is_same_size",
    "is_pinned",
    "empty",
    "empty_like",
    "new_empty",
}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}


class Launches(TorchDispatchMode):
    """Counts operations, those inside captured loops apart."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: Counter[str] = Counter()
        self.depth = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if self.depth == 0 and name not in VIEWS:
            self.outside[name] += 1
        return function(*args, **(kwargs or {}))

    def replay(self, function: Any, tensors: Any, constants: Any) -> Any:
        self.depth += 1
        try:
            return function(*tensors, *constants)
        finally:
            self.depth -= 1


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ("elmo.nn.encoder", "elmo.nn.softmax", "elmo.train.step"):
        monkeypatch.setattr(f"{module}.wants_few_launches", lambda device: True)
    return


def stepper(**changed: Any) -> Stepper:
    optimizer = OptimizerSettings(**(vars(TRAINING.optimizer) | {"name": "adamw"}))
    settings = Training(
        **(vars(TRAINING) | {"rows": B, "window": T, "optimizer": optimizer} | changed)
    )
    bilm, softmax = BiLM(ORIGINAL, characters=Characters().size), Softmax(WORDS, 8)
    bilm.reset_parameters(0)
    softmax.reset_parameters(1)
    parameters = {f"bilm.{name}": p.data for name, p in bilm.named_parameters()}
    parameters |= {f"softmax.{name}": p.data for name, p in softmax.named_parameters()}
    adamw = Optimizer(optimizer, parameters, steps=10, lr_of={}, by_rows=WORD_MATRIX)
    return Stepper(bilm, softmax, adamw, settings, Workers())


def window(seed: int = 0) -> Window:
    random = np.random.default_rng(seed)
    types = Characters().encode([f"w{k}" * (1 + k % 3) for k in range(TYPES)])
    targets = random.integers(0, WORDS, (2, T, B))
    return Window(
        index_STB=random.integers(0, TYPES, (2, T, B)),
        targets_STB=targets,
        mask_TB=np.ones((T, B), bool),
        reset_TB=random.random((T, B)) < 0.05,
        types_NK=types.astype(np.int32),
        bytes_N=np.ones(TYPES, np.int64),
        words=np.unique(targets),
        count=2 * T * B,
    )


def test_a_step_launches_few_operations_and_waits_once(
    as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = stepper()
    state = steps.bilm.lstm.zero_state(B)
    _, state = steps.step(window(0), state, step=0)
    launches = Launches()
    monkeypatch.setattr(lstm, "replay", launches.replay)
    with launches:
        steps.step(window(1), state, step=1)
    assert sum(launches.outside.values()) <= 300, launches.outside.most_common(30)
    # The one wait reads three numbers: the norm and the loss each way.
    waits = {name: count for name, count in launches.outside.items() if name in WAITS}
    assert sum(waits.values()) <= 1, waits


def test_a_step_as_on_a_gpu_is_the_step(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stepper()
    measured, _ = one.step(window(), one.bilm.lstm.zero_state(B), step=0)
    monkeypatch.undo()
    other = stepper()
    expected, _ = other.step(window(), other.bilm.lstm.zero_state(B), step=0)
    np.testing.assert_allclose(measured.nats, expected.nats, rtol=1e-6)
    np.testing.assert_allclose(measured.norm, expected.norm, rtol=1e-5)
    for (name, p), (_, q) in zip(
        one.bilm.named_parameters(), other.bilm.named_parameters(), strict=True
    ):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6, msg=name)


def test_distinct_tokens_come_in_few_shapes() -> None:
    encoder = BiLM(ORIGINAL, characters=Characters().size).encoder
    shapes = set()
    for count in range(1000, 1500, 7):
        types = Characters().encode([f"w{k}" for k in range(count)]).astype(np.int32)
        padded = encoder.padded(types)  # type: ignore[union-attr]
        shapes.add(padded.shape)
        np.testing.assert_array_equal(padded[:count], types[:, : padded.shape[1]])
        assert (types[:, padded.shape[1] :] == Characters().size - 1).all()
    assert len(shapes) <= 3
