"""A captured loop gives what the plain one gives: the books here, the capture where a GPU is."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from elmo.nn import cuda_graphs as graphs
from elmo.nn.lstm import LSTMStack, State


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    graphs._calls.clear()
    graphs._captured.clear()
    yield
    graphs._calls.clear()
    graphs._captured.clear()


def twice(x: Tensor, y: Tensor | None, factor: float) -> tuple[Tensor, None]:
    return (x * factor if y is None else x * factor + y), None


class Pretended(graphs._Captured):
    """Runs the function again where a graph would be replayed, on its own tensors."""

    def __init__(self, function, tensors, constants) -> None:  # type: ignore[no-untyped-def]
        self.inputs = [None if tensor is None else tensor.clone() for tensor in tensors]
        self.outputs = function(*self.inputs, *constants)
        self.graph = self
        self.again = lambda: function(*self.inputs, *constants)

    def replay(self) -> None:
        for kept, new in zip(self.outputs, self.again(), strict=True):
            if kept is not None:
                kept.copy_(new)


def test_on_a_cpu_nothing_is_captured() -> None:
    for _ in range(5):
        graphs.replay(twice, (torch.ones(3), None), (2.0,))
    assert not graphs._calls


def test_each_shape_and_constant_has_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_wanted", lambda tensors: True)
    monkeypatch.setattr(graphs, "_Captured", Pretended)
    kept = []
    for k in range(6):
        for rows in (2, 3):
            for y in (None, torch.full((rows,), 0.5)):
                x = torch.arange(rows) + float(k)
                (found, nothing) = graphs.replay(twice, (x, y), (2.0,))
                assert nothing is None
                kept.append((found, twice(x, y, 2.0)[0]))
        assert len(graphs._captured) == (4 if k >= graphs.WARM_UP_CALLS else 0)
    for found, expected in kept:  # a later replay has not written into an earlier result
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert graphs.replay(twice, (x, None), (3.0,))[0].tolist() == (3 * x).tolist()


def test_no_more_graphs_than_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_wanted", lambda tensors: True)
    monkeypatch.setattr(graphs, "_Captured", Pretended)
    for rows in range(1, graphs.MAX_GRAPHS + 4):
        for _ in range(graphs.WARM_UP_CALLS + 2):
            found, _ = graphs.replay(twice, (torch.ones(rows), None), (2.0,))
            assert found.tolist() == [2.0] * rows
    assert len(graphs._captured) == graphs.MAX_GRAPHS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_training_steps_on_a_gpu_are_the_same_captured(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    stack = LSTMStack(
        layers=2, inputs=8, cells=32, projection=8, cell_clip=1.0, projection_clip=0.5, skip=True
    )
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5, generator=generator)
    stack.cuda()
    results: dict[str, list[Tensor]] = {}
    for chosen in ("0", "1"):
        monkeypatch.setenv("ELMO_CUDA_GRAPHS", chosen)
        found = results[chosen] = []
        state = stack.zero_state(4)
        for k in range(6):
            random = torch.Generator().manual_seed(k)
            x = torch.randn(2, 5, 4, 8, generator=random).cuda().to(precision).requires_grad_()
            reset = torch.rand(2, 5, 4, generator=random).cuda() < 0.2
            stack.zero_grad()
            ys, state = stack(x, State(*state), reset_STB=reset)
            ys[-1].float().square().sum().backward()
            assert x.grad is not None
            found += [ys[-1].detach(), x.grad, *(p.grad.clone() for p in stack.parameters())]
    assert graphs._captured
    for plain, captured in zip(results["0"], results["1"], strict=True):
        torch.testing.assert_close(captured, plain)
