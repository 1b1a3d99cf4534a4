"""Weights in files: what a full disk and a damaged file are called."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elmo.errors import ElmoError
from elmo.files import new_folder
from elmo.model_folder import load_model, save_model
from elmo.weights import load_weights, save_weights


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode != 0:
        pytest.skip(f"a small file system can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_that_names_the_file(small_disk: Path) -> None:
    with (
        pytest.raises(ElmoError, match=r"disk/big: No space left on device"),
        new_folder(small_disk / "big") as new,
    ):
        save_weights(new / "x", {"x": torch.zeros(100_000)})
    assert list(small_disk.iterdir()) == []


def test_a_model_that_does_not_fit_leaves_nothing(
    small_disk: Path, tiny_model_folder: Path
) -> None:
    model = load_model(tiny_model_folder)
    softmax = {"weight": torch.zeros(9, 4), "bias": torch.zeros(9)}
    (small_disk / "other").write_bytes(bytes(50_000))
    with pytest.raises(ElmoError, match=r"disk/model: No space left on device"):
        save_model(
            small_disk / "model",
            bilm=model.bilm,
            vocabulary=model.vocabulary,
            characters=model.characters,
            softmax=softmax,
            training={},
        )
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_what_is_no_tensor_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no tensors")
    for name, message in (("x", "not a safetensors file"), ("absent", "no such file")):
        with pytest.raises(ElmoError, match=f"{name}: {message}"):
            load_weights(tmp_path / name)
    save_weights(tmp_path / "y", {"x": torch.ones(2)})
    assert torch.equal(load_weights(tmp_path / "y")["x"], torch.ones(2))
