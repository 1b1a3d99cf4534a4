"""Weights in files: what a full disk and a damaged file are called."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from elmo.errors import ElmoError
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.io.records import sha256
from elmo.model.folder import load_model
from elmo.model.weights import load_weights, save_weights
from tests.elmo.conftest import save
from tests.small_disk import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "64k") as folder:
        yield folder


def test_a_full_disk_is_one_line_that_names_the_file(disk: Path) -> None:
    with (
        pytest.raises(ElmoError, match=r"disk/big: No space left on device"),
        new_folder(Location(disk / "big")) as new,
    ):
        save_weights(new / "x", {"x": torch.zeros(100_000)})
    assert list(disk.iterdir()) == []


def test_a_model_that_does_not_fit_leaves_nothing(disk: Path, tiny_model_folder: Path) -> None:
    model = load_model(tiny_model_folder)
    softmax = {"weight": torch.zeros(9, 4), "bias": torch.zeros(9)}
    (disk / "other").write_bytes(bytes(50_000))
    with pytest.raises(ElmoError, match=r"disk/model: No space left on device"):
        save(disk / "model", model, softmax=softmax)
    assert [path.name for path in disk.iterdir()] == ["other"]


def test_what_is_no_tensor_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no tensors")
    for name, message in (("x", "not a safetensors file"), ("absent", "no such file")):
        with pytest.raises(ElmoError, match=f"{name}: {message}"):
            load_weights(tmp_path / name)
    save_weights(tmp_path / "y", {"x": torch.ones(2)})
    assert torch.equal(load_weights(tmp_path / "y")["x"], torch.ones(2))


def test_a_file_is_the_one_of_safetensors_and_its_digest_is_returned(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(3),
        "a.x": torch.randn(4, 5).T,
        "empty": torch.zeros(0, 4),
        "number": torch.tensor(1.5),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "double": torch.ones(1, dtype=torch.float64),
        'é"': torch.ones(1),
    }
    save_file({name: value.contiguous() for name, value in tensors.items()}, tmp_path / "theirs")
    digest = save_weights(tmp_path / "ours", tensors)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert digest == sha256(tmp_path / "ours")
    with pytest.raises(FileExistsError):
        save_weights(tmp_path / "ours", tensors)
