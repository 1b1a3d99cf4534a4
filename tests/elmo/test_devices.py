"""Whatever takes a device gives there what it gives on a processor.

Each test runs on a device that is pretended, which refuses to mix with the processor, and on a GPU
where there is one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.data.shards import write_shards
from elmo.model.batches import Carry
from elmo.model.embedder import Embedder
from elmo.model.folder import load_model
from elmo.model.mix import Elmo
from elmo.nn.device import HostCopies
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.kinds import KINDS
from elmo.tasks.task import Task
from elmo.train.loop import fit
from elmo.train.perplexity import perplexity, sentence_scores
from elmo.train.step import Stepper, WorkerGroup
from tests.elmo.pretended_device import OnDevice, pretended_gpu
from tests.elmo.tasks.test_task import labelled, trained
from tests.elmo.train.test_loop import SETTINGS, job

SENTENCES = [["he", "has", "a", "gift"], ["the", "gift"], [], ["a"] * 40, ["for"]]
TEXTS = [" ".join(sentence) for sentence in SENTENCES]
NEEDED = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
DEVICES = ["pretended", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDED])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "cuda":
        yield "cuda"
        return
    with pretended_gpu(monkeypatch) as name:
        yield name


def plain(value: Any) -> Any:
    """Tensors and arrays as arrays on the host, whatever holds them."""
    if isinstance(value, Tensor):
        value = value.detach()
        return np.asarray(value.inner if isinstance(value, OnDevice) else value.cpu())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def close(found: Any, wanted: Any, *, near: float = 1e-5) -> None:
    found, wanted = plain(found), plain(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            close(one, other, near=near)
        return
    np.testing.assert_allclose(found, wanted, rtol=10 * near, atol=near)


def test_tensors_of_two_devices_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        there = torch.ones(2, 3, device=gpu)
        with pytest.raises(RuntimeError, match="tensors of two devices"):
            there + torch.ones(2, 3)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()
        assert (there + 1).cpu().tolist() == [[2.0] * 3] * 2


def embed_carrying(folder: Path, device: str) -> Any:
    embedder, carry = Embedder.load(folder, device=device), Carry()
    return [embedder.embed([[word]], state=carry) for word in ("he", "has", "a")]


def elmo_of_a_model_on_the_device(folder: Path, device: str) -> Any:
    elmo = Elmo(load_model(folder, device=device), dropout=0.0)
    elmo.mixes.to(device)
    return elmo(SENTENCES)


def elmo_trained(folder: Path, device: str) -> Any:
    elmo = Elmo(folder, dropout=0.0, trainable=True, layer_norm="allennlp").to(device)
    outputs = elmo(SENTENCES)
    outputs["elmo_representations"][0].square().sum().backward()
    gradients = [one.grad for one in elmo.parameters() if one.grad is not None]
    assert len(gradients) > 8
    return gradients


ENTRIES: dict[str, Callable[[Path, str], Any]] = {
    "embed": lambda folder, device: Embedder.load(folder, device=device).embed(SENTENCES),
    "embed, with a carried state": embed_carrying,
    "embed, warm": lambda folder, device: Embedder.load(
        folder, device=device, warm_up=[["a", "gift"]]
    ).embed(SENTENCES),
    "encode": lambda folder, device: Embedder.load(folder, device=device).encode(TEXTS),
    "a loaded model": lambda folder, device: Embedder(load_model(folder, device=device)).embed(
        SENTENCES
    ),
    "a model that is moved": lambda folder, device: Embedder(
        load_model(folder), device=device
    ).embed(SENTENCES),
    "perplexity": lambda folder, device: perplexity(
        load_model(folder, device=device), SENTENCES
    ).to_dict(),
    "scores": lambda folder, device: (
        [list(score) for score in sentence_scores(load_model(folder, device=device), SENTENCES)]
    ),
    "a frozen module": lambda folder, device: Elmo(
        load_model(folder, device=device), 2, dropout=0.0
    ).to(device)(SENTENCES),
    "a module of a model on the device": elmo_of_a_model_on_the_device,
    "a module that is trained": elmo_trained,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_device_gives_what_the_processor_gives(
    entry: str, tiny_model_folder: Path, device: str
) -> None:
    near = 1e-4 if "trained" in entry else 1e-5  # gradients, perhaps by another library
    found, wanted = (ENTRIES[entry](tiny_model_folder, where) for where in (device, "cpu"))
    close(found, wanted, near=near)


def test_copies_to_the_host_outlast_the_next_two(device: str) -> None:
    """A part is written from the first while the second is read and the third is computed."""
    copies = HostCopies()
    tensors = [torch.full((3, 4), float(number)).to(device) for number in range(3)]
    waits = [copies.start([tensor, tensor + 10]) for tensor in tensors]
    for number, wait_for_copies in enumerate(waits):
        found = [array.tolist() for array in wait_for_copies()]
        assert found == [[[number] * 4] * 3, [[number + 10] * 4] * 3]


def test_a_store_made_on_a_device(
    tiny_model_folder: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.store.build.SEGMENT_TOKENS", 3)
    write_shards(tmp_path / "shards", SENTENCES)
    stores = []
    for where in (device, "cpu"):
        out = tmp_path / where.partition(":")[0]
        build(
            out,
            shards=tmp_path / "shards",
            model=tiny_model_folder,
            settings=StoreSettings(dtype="float32"),
            work=tmp_path / f"work-{where[:3]}",
            device=where,
        )
        stores.append(FeatureStore(out))
    close([stores[0][k] for k in range(5)], [stores[1][k] for k in range(5)])


@pytest.mark.parametrize(
    "changes", [{}, {"softmax": "full"}, {"reset": "never", "draws": "separate"}]
)
def test_training_and_its_resumption(tmp_path: Path, device: str, changes: dict[str, Any]) -> None:
    """Equal weights after a few steps, and after the checkpoint of one device went to another."""
    ends = []
    for where in (("cpu", "cpu"), (device, device), ("cpu", device), (device, "cpu")):
        folder = tmp_path / "-".join(name.partition(":")[0] for name in where) / "run"
        folder.parent.mkdir()
        first = job(folder, replace(SETTINGS, epochs=1, dropout=0.1, **changes))
        with pytest.raises(KeyboardInterrupt):
            fit(first, workers=WorkerGroup(device=torch.device(where[0])), report=interrupt)
        again = job(folder, first.settings)
        fit(
            again,
            workers=WorkerGroup(device=torch.device(where[1])),
            report=lambda kind, figures: None,
        )
        ends.append({**again.bilm.state_dict(), **again.softmax.state_dict()})
    # AdamW divides by the root of a square: of a gradient near zero, it enlarges the rounding.
    for end in ends[1:]:
        close(end, ends[0], near=1e-5 if device != "cuda" else 2e-4)


def interrupt(kind: str, figures: dict[str, float]) -> None:
    if kind == "heldout":
        raise KeyboardInterrupt


@pytest.mark.parametrize("elmo", ["frozen", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_tasks(kind: str, elmo: str, tmp_path: Path, tiny_model_folder: Path, device: str) -> None:
    """Training on a device, and prediction there and on the processor, agree with the latter."""
    model = None if elmo == "none" else tiny_model_folder
    changes = {"elmo": elmo, "epochs": 1, "dropout": 0.0, "elmo_dropout": 0.0}
    made = {}
    for where in (device, "cpu"):
        folder = tmp_path / where.partition(":")[0]
        made[where] = trained(kind, folder, model, device=where, changes=changes, count=6)
    unseen = labelled(kind, 4, 2)
    scores = [
        Task.load(folder, device=where).evaluate(unseen)
        for folder, where in ((made["cpu"], "cpu"), (made[device], device), (made["cpu"], device))
    ]
    close([list(one.values()) for one in scores[1:]], [list(scores[0].values())] * 2)


def test_float32_is_float32_on_a_gpu_in_the_network_and_in_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's second switch, that of convolutions and recurrent layers, is on by default."""
    seen: list[tuple[bool, bool]] = []

    def flags() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            seen.append(flags())
            return function(*given, **named)

        return noted

    monkeypatch.setattr(Stepper, "step", noting(Stepper.step))
    monkeypatch.setattr(TaskInputs, "forward", noting(TaskInputs.forward))
    before = flags()
    with pretended_gpu(monkeypatch) as gpu:
        settings = replace(SETTINGS, epochs=1)
        workers = WorkerGroup(device=torch.device(gpu))
        fit(job(tmp_path / "run", settings), workers=workers, report=lambda kind, figures: None)
        steps = len(seen)
        trained("tagging", tmp_path, None, device=gpu, changes={"elmo": "none", "epochs": 1})
    assert 0 < steps < len(seen)
    assert set(seen) == {(False, False)} and before == flags() == (False, True)


def test_an_embedder_takes_the_gpu_where_there_is_one(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Embedder.load(tiny_model_folder, device="cpu").bilm.lstm.weight[0].device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Embedder.load(tiny_model_folder).bilm.lstm.weight[0].device.type == "cpu"
    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr("elmo.model.embedder.default_device", lambda: gpu)
        assert Embedder.load(tiny_model_folder).bilm.lstm.weight[0].device.type == "cuda"
        assert Embedder.load(tiny_model_folder, device="cpu").embed([["a"]])[0].shape[1] == 1
