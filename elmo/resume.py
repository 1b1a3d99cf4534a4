"""Work in progress: checkpoints from which training goes on as if it had never stopped.

A checkpoint is a folder of safetensors and JSON, written beside and renamed. It holds rows, not
workers: any number of workers goes on from it.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmo.errors import ElmoError
from elmo.files import check_sha256, new_folder, read_json, sha256, write_json


class Checkpoints:
    """The checkpoints of one run, newest last; the last `keep` and the best stay."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._writing: threading.Thread | None = None
        self._failed: BaseException | None = None

    def steps(self) -> list[int]:
        """The steps of whole checkpoints, rising."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))

    def save(
        self, step: int, tensors: dict[str, Tensor], value: dict[str, Any], *, best: int | None
    ) -> None:
        """Copy the tensors now and write them on another thread; wait for the one before."""
        self.wait()
        copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        write = _guarded(lambda: self._write(step, copies, value, best), self._fail)
        self._writing = threading.Thread(target=write, name="checkpoint")
        self._writing.start()

    def wait(self) -> None:
        """Until the last checkpoint is on disk; raises what went wrong with it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the value of one checkpoint, checked."""
        folder = self.folder / f"step-{step:09d}"
        value = read_json(folder / "state.json")
        check_sha256(folder / "state.safetensors", value["sha256"])
        return load_file(folder / "state.safetensors"), value

    def newest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint that is whole; None where there is none."""
        for step in reversed(self.steps()):
            try:
                return self.load(step)
            except ElmoError:
                shutil.rmtree(self.folder / f"step-{step:09d}", ignore_errors=True)
        return None

    def _write(
        self, step: int, tensors: dict[str, Tensor], value: dict[str, Any], best: int | None
    ) -> None:
        with new_folder(self.folder / f"step-{step:09d}") as new:
            save_file(tensors, new / "state.safetensors")
            digest = sha256(new / "state.safetensors")
            write_json(new / "state.json", value | {"sha256": digest})
        for old in self.steps()[: -self.keep]:
            if old != best:
                shutil.rmtree(self.folder / f"step-{old:09d}", ignore_errors=True)

    def _fail(self, error: BaseException) -> None:
        self._failed = error


def _guarded(
    work: Callable[[], None], failed: Callable[[BaseException], None]
) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised by the next wait()
            failed(error)

    return run


def state_of(modules: dict[str, torch.nn.Module], slots: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of modules and of an optimizer, by name."""
    found = {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    return found | {f"optimizer.{name}": slot for name, slot in slots.items()}


def restore(
    tensors: dict[str, Tensor], modules: dict[str, torch.nn.Module], slots: dict[str, Tensor]
) -> None:
    """Copy a checkpoint's tensors back."""
    with torch.no_grad():
        for name, value in state_of(modules, slots).items():
            value.copy_(tensors[name])
