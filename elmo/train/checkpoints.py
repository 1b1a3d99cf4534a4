"""Checkpoints, from which training resumes as if it had never been interrupted.

A checkpoint is a folder of safetensors and JSON, on a disk or at a URL, and exists only if it is
complete. It stores the state of rows, not of workers, so any number of workers can resume from it.
"""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from elmo.data.stream import StreamPosition
from elmo.errors import Damaged, Mismatch, NotFound
from elmo.io.atomic import delete_leftovers, write_json
from elmo.io.folders import local_folder, new_folder
from elmo.io.location import Location
from elmo.io.records import Header, Sha256, check_sha256
from elmo.model.weights import load_weights, save_weights
from elmo.train.curves import StepSums

FORMAT_VERSION = 3  # the version of state.json


@dataclass
class TrainingProgress:
    """The progress of training: everything in a checkpoint except tensors.

    `step` is the number of steps taken, `tokens` the number of predictions per direction so far,
    and `position` the place in the text where the next step begins. `best` is the lowest held-out
    perplexity, reached at `best_step`; `figures` are all figures of that evaluation, if it read the
    whole held-out text. `stale` counts the evaluations since then. If `due`, the evaluation after
    this step is still to be done. `means` has the sums for the next report.
    """

    step: int
    tokens: int
    position: StreamPosition
    finished: bool = False
    best: float | None = None
    best_step: int | None = None
    figures: dict[str, float | None] | None = None
    stale: int = 0
    due: bool = False
    means: StepSums = field(default_factory=StepSums)


class CheckpointRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a checkpoint's `state.json`: the progress, and the SHA-256 of its tensors."""

    progress: TrainingProgress
    sha256: Sha256
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: tensors by name, and the progress of training."""

    tensors: dict[str, Tensor]
    progress: TrainingProgress

    @classmethod
    def load(cls, folder: Location) -> "Checkpoint":
        """Read a checkpoint from its folder; raise `ElmoError` if it is damaged."""
        header, file = folder.read_record("state.json", Header), folder.path_of("state.json")
        header.check_version(file, "format", FORMAT_VERSION, remedy="train again with this version")
        record = folder.read_record("state.json", CheckpointRecord)
        with local_folder(folder) as local_copy:
            check_sha256(local_copy / "state.safetensors", record.sha256)
            tensors = load_weights(local_copy / "state.safetensors")
        return cls(tensors, record.progress)

    def save(self, folder: Location) -> None:
        """Write the checkpoint to a folder, completely or not at all."""
        with new_folder(folder, required=("state.json",)) as new_checkpoint:
            digest = save_weights(new_checkpoint / "state.safetensors", self.tensors)
            record = {"format": FORMAT_VERSION, "progress": asdict(self.progress), "sha256": digest}
            write_json(new_checkpoint / "state.json", record)


class CheckpointFolder:
    """The folder of the checkpoints of one run: the last `keep` and the best one."""

    def __init__(self, folder: Location, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending_write: Future[None] | None = None

    def path(self, step: int) -> Location:
        """Return the folder of a step's checkpoint."""
        return self.folder / _folder_name(step)

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, ascending."""
        names = [name for name in self.folder.folders() if name.startswith("step-")]
        if self.folder.local is None:  # one being written or deleted has no state.json
            names = [name for name in names if (self.folder / name).exists("state.json")]
        return sorted(int(name.removeprefix("step-")) for name in names)

    def save(self, checkpoint: Checkpoint, *, best_step: int | None) -> None:
        """Copy the tensors, then write the checkpoint on another thread, after the previous one.
        Delete older checkpoints, except the last `keep` and that of `best_step`."""
        self.wait()
        copies = _copy_to_host(checkpoint.tensors)
        snapshot = replace(checkpoint, tensors=copies, progress=deepcopy(checkpoint.progress))
        self._pending_write = self._thread.submit(self._write, snapshot, best_step)

    def wait(self) -> None:
        """Wait until the last checkpoint is written; raise the exception if writing failed."""
        if self._pending_write is not None:
            error = self._pending_write.exception()
            self._pending_write = None
            if error is not None:
                raise error

    def load(self, step: int) -> Checkpoint:
        """Read the checkpoint of a step."""
        return Checkpoint.load(self.path(step))

    def recover_newest(self) -> Checkpoint | None:
        """Clean up, and return the newest undamaged checkpoint, or None if there is none.

        Damaged checkpoints are deleted with a warning on standard error, and so are files of killed
        writers. So call this only while no other process writes to the folder.
        """
        if self.folder.local is not None:
            delete_leftovers(self.folder.local)
        for step in reversed(self.steps()):
            try:
                return self.load(step)
            except (Damaged, NotFound) as error:
                self.path(step).remove()
                print(
                    f"warning: checkpoint of step {step} is damaged and was deleted; resuming from "
                    f"the one before ({error})",
                    file=sys.stderr,
                    flush=True,
                )
        return None

    def _write(self, checkpoint: Checkpoint, best_step: int | None) -> None:
        checkpoint.save(self.path(checkpoint.progress.step))
        for step in self.steps()[: -self.keep]:
            if step != best_step:
                self.path(step).remove()


def _folder_name(step: int) -> str:
    return f"step-{step:09d}"


def _copy_to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return CPU copies of tensors, in pinned memory if they are on a GPU.

    Training waits only for this copy.
    """
    copies = {}
    for name, value in tensors.items():
        host_copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        copies[name] = host_copy.copy_(value.detach(), non_blocking=True)
    for device in {value.device for value in tensors.values() if value.is_cuda}:
        torch.cuda.synchronize(device)
    return copies


def state_tensors(
    modules: dict[str, torch.nn.Module], slots: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint by name: of the modules, and the optimizer's `slots`."""
    tensors = {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    return tensors | {f"optimizer.{name}": slot for name, slot in slots.items()}


def restore_tensors(
    tensors: dict[str, Tensor],
    modules: dict[str, torch.nn.Module],
    slots: dict[str, Tensor],
    *,
    source: Location,
) -> None:
    """Copy a checkpoint's tensors into the modules and the optimizer's `slots`.

    Raises `ElmoError`, with the location `source` of the checkpoint, if they do not fit.
    """
    with torch.no_grad():
        for name, value in state_tensors(modules, slots).items():
            saved_value = tensors.get(name)
            if saved_value is None or saved_value.shape != value.shape:
                shape = (
                    "is missing" if saved_value is None else f"has shape {tuple(saved_value.shape)}"
                )
                raise Mismatch(
                    f"{source}: {name} is {shape}, but this run needs {tuple(value.shape)}; use a "
                    "checkpoint of the same model and optimizer"
                )
            value.copy_(saved_value)
