"""What training, embedding and evaluating ask of a GPU, counted on a CPU: operations launched one
by one, and waits.

A GPU runs each of them in less time than it takes to launch it. The loops over time are captured as
graphs there and are not counted.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elmo.data.characters import Characters
from elmo.data.stream import Window
from elmo.data.vocabulary import Vocabulary
from elmo.model.embedder import Embedder
from elmo.model.folder import Model
from elmo.model.mix import Elmo
from elmo.nn import lstm
from elmo.nn.bilm import BiLM
from elmo.nn.cuda_graphs import Lease
from elmo.nn.softmax import Softmax
from elmo.train.optimizer import Optimizer, global_norm
from elmo.train.perplexity import perplexity, sentence_scores
from elmo.train.step import WORD_MATRIX, Stepper, WorkerGroup, clip_gradients_
from tests.elmo.run_job import NETWORK, OPTIMIZER, TRAINING

# The original network, with few of everything but layers and filter widths.
ORIGINAL = replace(
    NETWORK, filters=tuple((width, 4) for width in range(1, 8)), highways=2, projection=8
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
        self.shapes: Counter[Any] = Counter()  # of captured loops
        self.depth = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if self.depth == 0 and name not in VIEWS:
            self.outside[name] += 1
        return function(*args, **(kwargs or {}))

    def replay(self, function: Any, tensors: Any, constants: Any, *, params: Any = ()) -> Any:
        self.depth += 1
        self.shapes[tensors[0].shape] += 1
        try:
            return function(*tensors, *params, *constants)
        finally:
            self.depth -= 1

    def lend(
        self, function: Any, tensors: Any, constants: Any, *, params: Any = (), lent_count: int
    ) -> Any:
        return self.replay(function, tensors, constants, params=params), Lease()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    modules = ["elmo.nn.encoder", "elmo.nn.softmax", "elmo.train.step"]
    for module in (*modules, "elmo.train.perplexity", "elmo.model.batches", "elmo.model.mix"):
        monkeypatch.setattr(f"{module}.prefers_large_operations", lambda device: True)
    return


def stepper(**changed: Any) -> Stepper:
    settings = replace(TRAINING, rows=B, window=T, **changed)
    bilm = BiLM(ORIGINAL, character_count=Characters().size)
    softmax = Softmax(WORDS, ORIGINAL.projection)
    bilm.reset_parameters(0)
    softmax.reset_parameters(1)
    parameters = {f"bilm.{name}": p.data for name, p in bilm.named_parameters()}
    parameters |= {f"softmax.{name}": p.data for name, p in softmax.named_parameters()}
    adamw = Optimizer(settings.optimizer, parameters, steps=10, word_matrix=WORD_MATRIX)
    return Stepper(bilm, softmax, adamw, settings, WorkerGroup())


def window(seed: int = 0, *, rows: int = B, time_steps: int = T) -> Window:
    random = np.random.default_rng(seed)
    types = Characters().encode([f"w{k}" * (1 + k % 3) for k in range(TYPES)])
    targets = random.integers(0, WORDS, (2, time_steps, rows))
    return Window(
        index_STB=random.integers(0, TYPES, (2, time_steps, rows)),
        targets_STB=targets,
        mask_TB=np.ones((time_steps, rows), bool),
        reset_TB=random.random((time_steps, rows)) < 0.05,
        characters_NK=types.astype(np.int32),
        bytes_N=np.ones(TYPES, np.int64),
        words=np.unique(targets),
        count=2 * time_steps * rows,
    )


@pytest.mark.parametrize("clip", [1e6, 1e-3])
def test_a_step_launches_few_operations_and_waits_for_none(
    clip: float, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = stepper(optimizer=replace(OPTIMIZER, clip=clip))
    state = steps.bilm.lstm.zero_state(B)
    _, state = steps.step(window(0), state, step=0)
    launches = Launches()
    monkeypatch.setattr(lstm, "call_with_cuda_graph", launches.replay)
    monkeypatch.setattr(lstm, "call_lending_outputs", launches.lend)
    with launches:
        measured, _ = steps.step(window(1), state, step=1)
    assert sum(launches.outside.values()) <= 300, launches.outside.most_common(30)
    waits = {name: count for name, count in launches.outside.items() if name in WAITS}
    assert not waits
    assert measured.was_clipped == (clip < 1)


def test_a_prepared_step_neither_draws_nor_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is done beforehand, by the thread that prefetches; the word rows are sent once."""
    steps = stepper(optimizer=replace(OPTIMIZER, name="adagrad"))
    state = steps.bilm.lstm.zero_state(B)
    prepared = steps.preparer.prepare(window(), step=0)
    sends: list[int] = []

    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("searched in the step")

    def send(array: Any, device: torch.device) -> torch.Tensor:
        sends.append(id(array))
        return array

    for module in ("step", "optimizer"):
        monkeypatch.setattr(f"elmo.train.{module}.device_tensor", send)
    search = np.searchsorted
    monkeypatch.setattr(  # two numbers, the ends of a chunk, are no work
        np, "searchsorted", lambda a, v: search(a, v) if len(v) == 2 else refuse()
    )
    for name in ("unique", "sort", "concatenate", "flatnonzero"):
        monkeypatch.setattr(np, name, refuse)
    monkeypatch.setattr("elmo.train.step_input.sample_candidates", refuse)
    steps.step(prepared, state, step=0)
    assert prepared.used_rows is not None and sends.count(id(prepared.used_rows.host_indices)) == 1


def test_gradients_are_clipped_on_a_device_as_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (0.0, 0.01, 1e9):
        here = [torch.randn(50, generator=torch.Generator().manual_seed(k)) for k in range(3)]
        there, before = ([gradient.clone() for gradient in here] for _ in range(2))
        clip_gradients_(here, global_norm(here), most)
        with monkeypatch.context() as on_device:
            on_device.setattr("elmo.train.step.prefers_large_operations", lambda device: True)
            clip_gradients_(there, global_norm(there), most)
        for one, other, unclipped in zip(here, there, before, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            assert torch.equal(one, unclipped) == (most != 0.01)  # 0: no limit


def test_a_step_as_on_a_gpu_is_the_step(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stepper()
    measured, _ = one.step(window(), one.bilm.lstm.zero_state(B), step=0)
    monkeypatch.undo()
    other = stepper()
    expected, _ = other.step(window(), other.bilm.lstm.zero_state(B), step=0)
    np.testing.assert_allclose(measured.nats_by_direction, expected.nats_by_direction, rtol=1e-6)
    np.testing.assert_allclose(measured.gradient_norm, expected.gradient_norm, rtol=1e-5)
    for (name, p), (_, q) in zip(
        one.bilm.named_parameters(), other.bilm.named_parameters(), strict=True
    ):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6, msg=name)


def test_distinct_tokens_come_in_few_shapes() -> None:
    encoder = BiLM(ORIGINAL, character_count=Characters().size).encoder
    shapes = set()
    for count in range(1000, 1500, 7):
        types = Characters().encode([f"w{k}" for k in range(count)]).astype(np.int32)
        padded = encoder.pad_to_few_shapes(types)  # type: ignore[union-attr]
        shapes.add(padded.shape)
        np.testing.assert_array_equal(padded[:count], types[:, : padded.shape[1]])
        assert (types[:, padded.shape[1] :] == Characters().size - 1).all()
    assert len(shapes) <= 3
    for length in range(1, 20):  # the widest filter reads padding alone
        types = Characters().encode(["w" * length]).astype(np.int32)
        assert (encoder.pad_to_few_shapes(types)[0, -7:] == Characters().size - 1).all()  # type: ignore[union-attr]


def model() -> Model:
    made = stepper()
    softmax = {name: value.detach() for name, value in made.softmax.named_parameters()}
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *(f"w{k}" for k in range(WORDS - 3))])
    return Model(made.bilm, vocabulary, Characters(), softmax, {}, "")


def sentences(count: int = 600) -> list[list[str]]:
    """English lengths: most below 30 tokens, some of 70."""
    random = np.random.default_rng(0)
    lengths = np.minimum(70, 1 + random.gamma(2.5, 9, count).astype(int))
    return [[f"w{word}" for word in random.integers(0, WORDS, length)] for length in lengths]


@pytest.fixture
def launches(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Counts, and how often arrays were sent to the device."""
    counts = Launches()
    counts.outside["sent"] = 0

    def send(array: Any, device: torch.device) -> torch.Tensor:
        counts.outside["sent"] += 1
        return torch.from_numpy(array)

    monkeypatch.setattr(lstm, "call_with_cuda_graph", counts.replay)
    monkeypatch.setattr(lstm, "call_lending_outputs", counts.lend)
    for module in ("elmo.model.batches", "elmo.model.embedder", "elmo.train.perplexity"):
        monkeypatch.setattr(f"{module}.device_tensor", send)
    return counts


def test_embedding_launches_little_in_few_shapes(launches: Launches) -> None:
    embedder, text = Embedder(model()), sentences()
    embedder.embed(text[:3])  # the vectors of the boundaries
    thousands = sum(map(len, text)) / 1000
    launches.outside.clear()
    with launches:
        embedder.embed(text)
    sends = launches.outside.pop("sent")
    # On a CPU: 2,000 operations, 70 copies.
    assert sum(launches.outside.values()) <= 30 * thousands, launches.outside.most_common(20)
    assert sends <= 1 * thousands
    again = len(launches.shapes)
    with launches:
        embedder.embed(sentences(700))
    assert len(launches.shapes) <= again + 2 <= 20  # each is captured once, then replayed


def test_embedding_as_on_a_gpu_is_embedding(
    as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [[], *sentences(40), ["w1"] * 200, ["w2"]]
    for precision, near in (("float32", 1e-5), ("bfloat16", 0.05)):
        ours = Embedder(model(), precision=precision).embed(text, 16)  # type: ignore[arg-type]
        with monkeypatch.context() as undone:
            undone.setattr("elmo.model.batches.prefers_large_operations", lambda device: False)
            reference = Embedder(model(), precision=precision).embed(text, 16)  # type: ignore[arg-type]
        for one, other in zip(ours, reference, strict=True):
            np.testing.assert_allclose(one, other, atol=near)


@pytest.mark.parametrize("trainable", [False, True])
def test_the_module_as_on_a_gpu_is_the_module(
    trainable: bool, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, reference = (Elmo(model(), dropout=0.0, trainable=trainable) for _ in range(2))
    for batch in (sentences(5), sentences(8), sentences(11)[4:]):
        ids = ours.batch_to_ids(batch)
        (found,), mask = ours(ids).values()
        with monkeypatch.context() as undone:
            undone.setattr("elmo.model.mix.prefers_large_operations", lambda device: False)
            (expected,), _ = reference(ids).values()
        assert found.shape[:2] == mask.shape
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        if trainable:
            for one in (found, expected):
                one.square().sum().backward()
    if trainable:
        pairs = zip(ours.named_parameters(), reference.parameters(), strict=True)
        for (name, p), q in pairs:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=name)
    padded = {shape for shape in launches.shapes if shape[1] % 8 == 0}
    assert {shape[2] for shape in padded} == {8}  # rows


def test_a_perplexity_as_on_a_gpu_is_the_perplexity(launches: Launches) -> None:
    text = sentences(60)
    as_on_gpu = perplexity(model(), text), sentence_scores(model(), text)
    assert len(launches.shapes) <= 6
    with pytest.MonkeyPatch.context() as undone:
        undone.setattr("elmo.train.perplexity.prefers_large_operations", lambda device: False)
        plain = perplexity(model(), text), sentence_scores(model(), text)
    found, expected = (figures for figures, _ in (as_on_gpu, plain))
    assert vars(found) == pytest.approx(vars(expected), rel=1e-5, nan_ok=True)
    np.testing.assert_allclose(as_on_gpu[1], plain[1], rtol=1e-4)
