"""A captured loop gives what the plain one gives: its bookkeeping here, the capture on a GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from elmo.nn import cuda_graphs as graphs
from elmo.nn.lstm import LSTMStack, LSTMState
from tests.elmo.watching import Watching


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    graphs._graphs.clear()
    yield
    graphs._graphs.clear()


def captured() -> list[Any]:
    return [graph for device in graphs._graphs.values() for graph in device.graph_by_key.values()]


def calls() -> list[int]:
    return [count for device in graphs._graphs.values() for count in device.call_counts.values()]


def twice(x: Tensor, y: Tensor | None, factor: float) -> tuple[Tensor, None]:
    return (x * factor if y is None else x * factor + y), None


def product(x: Tensor, weight: Tensor) -> tuple[Tensor]:
    return (x @ weight,)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x / 2


class Pretended(graphs._Graph):
    """Runs the function again where a graph would be replayed, on its own tensors and on those that
    lie where they lay."""

    def _capture(self, call: Callable[[], Any]) -> Any:
        self.again = call
        return call()

    def _replay(self) -> None:
        for kept, new in zip(self.outputs, self.again(), strict=True):
            if kept is not None:
                kept.data.copy_(new)  # unseen by autograd, as a replay is


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_uses_graphs", lambda tensors: True)
    monkeypatch.setattr(graphs, "_Graph", Pretended)


def test_on_a_cpu_nothing_is_captured() -> None:
    for _ in range(5):
        graphs.call_with_cuda_graph(twice, (torch.ones(3), None), (2.0,))
    assert not calls()


def test_each_shape_and_constant_has_its_graph(pretended: None) -> None:
    kept = []
    for k in range(6):
        for rows in (2, 3):
            for y in (None, torch.full((rows,), 0.5)):
                x = torch.arange(rows) + float(k)
                (found, nothing) = graphs.call_with_cuda_graph(twice, (x, y), (2.0,))
                assert nothing is None
                kept.append((found, twice(x, y, 2.0)[0]))
        assert len(captured()) == (4 if k >= graphs.WARM_UP_CALLS else 0)
    for found, expected in kept:  # a later replay has not written into an earlier result
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert graphs.call_with_cuda_graph(twice, (x, None), (3.0,))[0].tolist() == (3 * x).tolist()


def count_captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each graph that is captured."""
    made: list[int] = []
    capture = Pretended._capture

    def count(self: Pretended, call: Callable[[], Any]) -> Any:
        made.append(1)
        return capture(self, call)

    monkeypatch.setattr(Pretended, "_capture", count)
    return made


def test_the_graph_used_longest_ago_makes_room(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 3)
    made = count_captures(monkeypatch)

    def use(rows: int, times: int = 1) -> None:
        for _ in range(times):
            found, _ = graphs.call_with_cuda_graph(twice, (torch.ones(rows), None), (2.0,))
            assert found.tolist() == [2.0] * rows

    for rows in (1, 2, 3):
        use(rows, graphs.WARM_UP_CALLS + 1)
    use(1)
    use(4, graphs.WARM_UP_CALLS + 1)  # in place of 2
    assert len(captured()) == 3 and len(made) == 4
    for rows in (1, 3, 4):
        use(rows)
    assert len(made) == 4
    use(2)
    assert len(captured()) == 3 and len(made) == 5


def test_what_is_kept_of_shapes_that_come_once_is_bounded(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MAX_COUNTED_SHAPES", 10)
    for rows in range(1, 50):
        graphs.call_with_cuda_graph(twice, (torch.ones(rows), None), (2.0,))
    assert len(calls()) == 10 and not captured()


def test_graphs_are_bounded_in_bytes(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPH_BYTES", 3 * 8 * 100)
    for rows in (100, 99, 98, 1000):  # each has an input and an output of 4 bytes a row
        for _ in range(graphs.WARM_UP_CALLS + 2):
            found, _ = graphs.call_with_cuda_graph(twice, (torch.ones(rows), None), (2.0,))
            assert found.tolist() == [2.0] * rows
    kept = [graph.inputs[0].numel() for graph in captured()]
    assert kept == [100, 99, 98]  # the largest does not fit and runs as it is
    for _ in range(graphs.WARM_UP_CALLS + 2):
        graphs.call_with_cuda_graph(twice, (torch.ones(60), None), (2.0,))
    assert [graph.inputs[0].numel() for graph in captured()] == [99, 98, 60]


def test_shapes_that_take_turns_and_do_not_fit_together_are_captured_once(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the layers of a step: each captured in another's stead would cost more than no graph."""
    monkeypatch.setattr(graphs, "MAX_GRAPH_BYTES", 3 * 8 * 100)
    made = count_captures(monkeypatch)
    for _ in range(20):
        for rows in (100, 99, 98, 97, 400):  # of the last the input fits, not with its output
            found, _ = graphs.call_with_cuda_graph(twice, (torch.ones(rows), None), (2.0,))
            assert found.tolist() == [2.0] * rows
    assert len(captured()) == 3 and len(made) == 5


def test_each_stream_has_graphs_of_its_own(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (1, 2):
        monkeypatch.setattr(graphs, "_stream_handle", lambda device, stream=stream: stream)
        for _ in range(graphs.WARM_UP_CALLS + 1):
            graphs.call_with_cuda_graph(twice, (torch.ones(2), None), (2.0,))
    assert len(captured()) == 2


def test_weights_are_read_where_they_lie(pretended: None) -> None:
    weight, x = torch.eye(3), torch.ones(2, 3)
    for k in range(6):
        weight.fill_(float(k))  # as the optimizer moves them
        with Watching() as seen:
            (found,) = graphs.call_with_cuda_graph(product, (x,), (), params=(weight,))
        assert found.tolist() == [[3.0 * k] * 3] * 2
    assert len(captured()) == 1
    # Of the last replay: the input copied in; the pretended graph writes its output once.
    copies = [one.shapes for one in seen.operations if one.name == "copy_"]
    assert copies == [[(2, 3)], [(2, 3)]]
    graphs.call_with_cuda_graph(product, (x,), (), params=(weight.clone(),))
    assert len(captured()) == 1  # weights elsewhere are not that graph's


def test_lent_outputs_are_read_where_they_lie_and_not_overwritten(pretended: None) -> None:
    def lend(x: Tensor) -> Any:
        return graphs.call_lending_outputs(halves, (x,), (), lent_count=1)

    for k in range(graphs.WARM_UP_CALLS):
        _, lease = lend(torch.full((2,), float(k)))
        assert lease is None
    (_, first), lease = lend(torch.ones(2))
    assert lease is not None and first is captured()[0].outputs[1]
    (_, second), none = lend(torch.zeros(2))  # while the first is read
    assert none is None and first.tolist() == [0.5, 0.5] and second.tolist() == [0.0, 0.0]
    del lease
    (copied, third), lease = lend(torch.full((2,), 4.0))
    assert lease is not None and third is first and third.tolist() == [2.0, 2.0]
    assert copied is not captured()[0].outputs[0]


def test_backward_reads_what_forward_kept_where_it_lies(pretended: None) -> None:
    """Of all that a layer keeps, only its small inputs and its output are copied."""
    lstm = stack()
    for _ in range(6):
        x = torch.randn(2, 5, 4, 8).requires_grad_()
        ys, _ = lstm(x, lstm.zero_state(4))
        assert all(graph.is_lent for graph in captured() if len(graph.outputs) == 6)
        ys[-1].square().sum().backward()
        assert not any(graph.is_lent for graph in captured())
    backward = [graph for graph in captured() if len(graph.outputs) == 4]
    assert len(backward) == 2 and len(captured()) == 4
    for graph in backward:
        assert max(one.shape[-1] for one in graph.inputs if one is not None) == 32  # the cells


def test_a_loss_that_is_still_held_keeps_no_step_from_its_graphs(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays: list[int] = []
    replay = Pretended._replay

    def count(self: Pretended) -> None:
        replays[-1] += 1
        replay(self)

    monkeypatch.setattr(Pretended, "_replay", count)
    lstm, loss = stack(), None
    for _ in range(8):
        replays.append(0)
        x = torch.randn(2, 5, 4, 8).requires_grad_()
        loss = lstm(x, lstm.zero_state(4))[0][-1].square().sum()  # while the last one is bound
        loss.backward()
    assert loss is not None and replays[-3:] == [4, 4, 4]


def test_a_second_backward_pass_computes_again_what_was_overwritten(pretended: None) -> None:
    lstm = stack()
    gradients: list[Tensor] = []
    for k in range(5):
        x = torch.full((2, 5, 4, 8), 0.1 * k + 0.1).requires_grad_()
        loss = lstm(x, lstm.zero_state(4))[0][-1].square().sum()
        loss.backward(retain_graph=True)
        assert x.grad is not None
        gradients.append(x.grad.clone())
        lstm(torch.ones_like(x), lstm.zero_state(4))  # overwrites what the graphs kept
        x.grad = None
        loss.backward()
        torch.testing.assert_close(x.grad, gradients[-1], rtol=0, atol=0)
    assert captured()


def test_two_forward_passes_before_a_backward_pass_keep_their_own(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients: dict[bool, list[Tensor]] = {}
    for replayed in (True, False):
        monkeypatch.setattr(graphs, "_uses_graphs", lambda tensors, replayed=replayed: replayed)
        lstm, gradients[replayed] = stack(), []
        for k in range(5):
            xs = [torch.full((2, 5, 4, 8), 0.1 * (k + n)).requires_grad_() for n in range(2)]
            tops = [lstm(x, lstm.zero_state(4))[0][-1].square().sum() for x in xs]
            for top in tops:
                top.backward()
            gradients[replayed] += [x.grad for x in xs if x.grad is not None]
    assert captured()
    for one, other in zip(gradients[True], gradients[False], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def stack() -> LSTMStack:
    generator = torch.Generator().manual_seed(0)
    made = LSTMStack(
        layers=2, inputs=8, cells=32, projection=8, cell_clip=1.0, projection_clip=0.5, skip=True
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5, generator=generator)
    return made


def readings(lstm: LSTMStack, precision: torch.dtype, calls: int) -> list[Tensor]:
    """What training steps and readings without a gradient give, with weights that move."""
    found: list[Tensor] = []
    device = lstm.weight[0].device
    state = lstm.zero_state(4)
    for k in range(calls):
        random = torch.Generator().manual_seed(k)
        x = torch.randn(2, 5, 4, 8, generator=random).to(device, precision).requires_grad_()
        reset = (torch.rand(2, 5, 4, generator=random) < 0.2).to(device)
        lstm.zero_grad()
        ys, state = lstm(x, LSTMState(*state), reset_STB=reset)
        ys[-1].float().square().sum().backward()
        assert x.grad is not None
        found += [ys[-1].detach(), x.grad, *(p.grad.clone() for p in lstm.parameters())]  # type: ignore[union-attr]
        with torch.no_grad():
            for p in lstm.parameters():
                p -= 0.01 * p.grad.sign()  # type: ignore[union-attr]
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                ys, _ = lstm(x.detach(), lstm.zero_state(4), reset_STB=reset)
                found.append(ys[-1].clone())
    return found


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_stack_read_by_graphs_is_the_stack(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = readings(stack(), precision, 5)
    assert not captured()
    monkeypatch.setattr(graphs, "_uses_graphs", lambda tensors: True)
    monkeypatch.setattr(graphs, "_Graph", Pretended)
    found = readings(stack(), precision, 5)
    assert len(captured()) == 6  # of each layer: forward, backward, and without a gradient
    for one, other in zip(plain, found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_training_steps_on_a_gpu_are_the_same_captured(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: dict[str, list[Tensor]] = {}
    for chosen in ("0", "1"):
        monkeypatch.setenv("ELMO_CUDA_GRAPHS", chosen)
        results[chosen] = readings(stack().cuda(), precision, 6)
    assert captured()
    for plain, found in zip(results["0"], results["1"], strict=True):
        torch.testing.assert_close(found, plain)
