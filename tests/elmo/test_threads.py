"""What the docs say may be shared by threads: each call gets its own answer."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.model.embedder import Embedder
from elmo.model.mix import Elmo
from elmo.nn import cuda_graphs as graphs
from elmo.nn.device import exact_float32
from elmo.tasks.task import Task
from tests.elmo.nn.test_cuda_graphs import Pretended, captured
from tests.elmo.tasks.test_task import KINDS, labelled, trained
from tests.programs import python

THREADS = 4
SENTENCES = [[f"w{k}", "has", "a", f"gift{k}"] for k in range(20)]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs, pretended on the processor; other threads get in wherever they can."""
    replay = Pretended._replay

    def slowly(self: Pretended) -> None:
        time.sleep(0.0005)
        replay(self)

    monkeypatch.setattr(graphs, "_uses_graphs", lambda tensors: True)
    monkeypatch.setattr(graphs, "_Graph", Pretended)
    monkeypatch.setattr(Pretended, "_replay", slowly)
    monkeypatch.setattr("elmo.model.batches.prefers_large_operations", lambda device: True)
    monkeypatch.setattr("elmo.model.mix.prefers_large_operations", lambda device: True)
    yield
    assert captured()
    graphs._graphs.clear()


def from_threads(call: Callable[[int], Any], count: int) -> list[Any]:
    """What each of the numbers up to `count` gets, all asked for by several threads at once."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(call, range(count)))


def test_a_module_answers_each_thread_its_own(tiny_model_folder: Path, replayed: None) -> None:
    elmo = Elmo(tiny_model_folder, dropout=0.0).eval()

    def read(k: int) -> np.ndarray:
        with torch.no_grad():
            (vectors,) = elmo([SENTENCES[k % 20]])["elmo_representations"]
        return vectors.numpy()

    wanted = [read(k) for k in range(20)]
    for k, vectors in enumerate(from_threads(read, 200)):
        np.testing.assert_allclose(vectors, wanted[k % 20], atol=1e-6)


def test_a_texts_vectors_are_its_own(tiny_model_folder: Path, replayed: None) -> None:
    embedder = Embedder.load(tiny_model_folder, device="cpu")
    wanted = [embedder.encode(" ".join(SENTENCES[k])) for k in range(20)]
    found = from_threads(lambda k: embedder.encode(" ".join(SENTENCES[k % 20])), 200)
    for k, vector in enumerate(found):
        np.testing.assert_allclose(vector, wanted[k % 20], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_task_answers_each_thread_its_own(
    kind: str, tmp_path: Path, tiny_model_folder: Path, replayed: None
) -> None:
    out = trained(kind, tmp_path, tiny_model_folder, count=12, changes={"epochs": 1})
    task, examples = Task.load(out, device="cpu"), labelled(kind, 16, 2).examples

    def read(k: int) -> list[Any]:
        some = examples[k % 4 :: 4]
        return [task.describe(example, guess) for example, guess in task.predict(some)]

    wanted = [read(k) for k in range(4)]
    assert from_threads(read, 24) == [wanted[k % 4] for k in range(24)]


def test_each_thread_of_the_pool_computes_on_one() -> None:
    """Where torch would take several: sums then don't depend on what other threads do."""
    code = """
import torch
from elmo.nn.threads import single_threaded_pool
torch.set_num_threads(3)
with single_threaded_pool(2) as pool:
    print(*pool.map(lambda _: torch.get_num_threads(), range(8)), torch.get_num_threads())
print(torch.get_num_threads())
"""
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    assert python(code, env=own).split() == ["1"] * 9 + ["3"]


def test_threads_that_overlap_compute_on_one_and_leave_the_rest_as_it_was() -> None:
    code = """
import torch
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from elmo.nn.threads import one_thread
torch.set_num_threads(3)
threads = [ThreadPoolExecutor(1) for _ in range(2)]
stacks = [ExitStack() for _ in threads]
def call(number, function, *given):
    return threads[number].submit(function, *given).result()
for number, stack in enumerate(stacks):
    call(number, stack.enter_context, one_thread())
call(0, stacks[0].close)
print(call(1, torch.get_num_threads))
with one_thread():
    with one_thread():
        pass
    print(torch.get_num_threads())
call(1, stacks[1].close)
print(*(call(number, torch.get_num_threads) for number in range(2)), torch.get_num_threads())
with ThreadPoolExecutor(1) as new:
    print(new.submit(torch.get_num_threads).result())
"""
    assert python(code).split() == ["1", "1", "3", "3", "3", "3"]


def test_contexts_of_exact_products_that_overlap_leave_the_switches_as_they_were() -> None:
    """torch has these switches without a GPU too."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    first, second = ExitStack(), ExitStack()
    for stack in (first, second):
        stack.enter_context(exact_float32(torch.device("cuda")))
    first.close()
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    second.close()
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before != (False, False)
