"""Work in progress: checkpoints from which training resumes as if it had never stopped.

A checkpoint is a folder of safetensors and JSON, whole or not there, on a disk or at a URL. It
holds rows, not workers: any number of workers can resume from it.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from elmo.data.stream import Position
from elmo.errors import ElmoError, Mismatch
from elmo.io.atomic import sweep, write_json
from elmo.io.folders import local_folder, new_folder
from elmo.io.location import Location
from elmo.io.records import Count, Sha256, check_sha256
from elmo.model.weights import load_weights, save_weights
from elmo.settings import Training
from elmo.train.curves import Means

HIDDEN = 90.0  # seconds for which shared storage may hide what another machine wrote


@dataclass
class TrainingProgress:
    """The progress of a training: all that a checkpoint holds beside the tensors.

    `best` is the lowest held-out perplexity, taken at `best_step`; `figures` are all that belongs
    to it, where the whole held-out text was read. `stale` evaluations have not improved on it.
    `due`: the held-out perplexity of this step is still to be taken. `lowest` is the lowest mean
    loss reported, `sound_step` the newest checkpoint that the losses after it show to be good, and
    `tried_step` the one that the next losses will judge.
    """

    step: int
    tokens: int
    position: Position
    finished: bool = False
    best: float | None = None
    best_step: int | None = None
    figures: dict[str, float | None] | None = None
    stale: int = 0
    due: bool = False
    lowest: float | None = None
    sound_step: int | None = None
    tried_step: int | None = None
    means: Means = field(default_factory=Means)


class CheckpointRecord(msgspec.Struct, forbid_unknown_fields=True):
    """`state.json` of a checkpoint: the training that wrote it, how far it is, the digest of its
    tensors."""

    corpus: str
    steps: Count
    settings: Training
    progress: TrainingProgress
    sha256: Sha256


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: tensors by name, progress, and the training that wrote it.

    `steps` is how many steps that training was to take, and `corpus` the digest of its shards.
    """

    tensors: dict[str, Tensor]
    progress: TrainingProgress
    settings: Training
    steps: int
    corpus: str

    @classmethod
    def load(cls, folder: Location) -> "Checkpoint":
        """Read a checkpoint's folder, checked."""
        record = folder.record("state.json", CheckpointRecord)
        with local_folder(folder) as local:
            check_sha256(local / "state.safetensors", record.sha256)
            tensors = load_weights(local / "state.safetensors")
        return cls(tensors, record.progress, record.settings, record.steps, record.corpus)

    @staticmethod
    def digest(folder: Location) -> str:
        """The digest of a checkpoint's tensors, without reading them."""
        return folder.record("state.json", CheckpointRecord).sha256

    def save(self, folder: Location) -> None:
        """Write the folder, whole or not at all."""
        with new_folder(folder, ours=("state.json",)) as new:
            digest = save_weights(new / "state.safetensors", self.tensors)
            record = {
                "corpus": self.corpus,
                "steps": self.steps,
                "settings": asdict(self.settings),
                "progress": asdict(self.progress),
                "sha256": digest,
            }
            write_json(new / "state.json", record)


class Checkpoints:
    """The checkpoints of one run, newest last; of old ones the last `keep` and those named stay."""

    def __init__(self, folder: Location, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._writing: threading.Thread | None = None
        self._failed: BaseException | None = None

    def path(self, step: int) -> Location:
        """The folder of a step's checkpoint."""
        return self.folder / _name(step)

    def steps(self) -> list[int]:
        """The steps of whole checkpoints, rising."""
        names = [name for name in self.folder.folders() if name.startswith("step-")]
        if self.folder.local is None:  # one that is being written or deleted has no manifest
            names = [name for name in names if (self.folder / name).exists("state.json")]
        return sorted(int(name.removeprefix("step-")) for name in names)

    def save(self, checkpoint: Checkpoint, *, named: Iterable[int | None]) -> None:
        """Copy the tensors now and write them on another thread; wait for the one before.

        The steps `named` are not deleted by what `keep` says.
        """
        self.wait()
        copies = _copied(checkpoint.tensors)
        copied = replace(checkpoint, tensors=copies, progress=deepcopy(checkpoint.progress))
        write = _guarded(lambda: self._write(copied, set(named)), self._fail)
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

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of a step."""
        return Checkpoint.load(self.path(step))

    def await_(self, step: int, digest: str) -> Checkpoint | None:
        """The checkpoint of a step, once it is seen with this digest; None if it is not in time."""
        until = time.monotonic() + HIDDEN
        while True:
            try:
                if Checkpoint.digest(self.path(step)) == digest:
                    return self.load(step)
            except ElmoError:  # not there, or not all of it
                pass
            if time.monotonic() > until:
                return None
            time.sleep(0.2)

    def newest(self) -> int | None:
        """The step of the newest whole checkpoint; None where there is none.

        A damaged one is set aside under another name, and a line on standard error says so. What a
        killed writer left half-written is removed: call this where nobody else writes to the
        folder.
        """
        if self.folder.local is not None:
            sweep(self.folder.local)
        for step in reversed(self.steps()):
            try:
                self.load(step)
                return step
            except ElmoError as error:
                aside = self.folder / f"damaged-{_name(step)}"
                aside.remove()
                self.path(step).rename(aside)
                print(
                    f"warning: checkpoint of step {step} is damaged and set aside as {aside}; "
                    f"resuming from the one before ({error})",
                    file=sys.stderr,
                    flush=True,
                )
        return None

    def _write(self, checkpoint: Checkpoint, named: set[int | None]) -> None:
        checkpoint.save(self.path(checkpoint.progress.step))
        for old in self.steps()[: -self.keep]:
            if old not in named:
                self.path(old).remove()

    def _fail(self, error: BaseException) -> None:
        self._failed = error


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _guarded(
    work: Callable[[], None], failed: Callable[[BaseException], None]
) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised by the next wait()
            failed(error)

    return run


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The one copy that training waits for; from a GPU to pinned memory, tensor beside tensor."""
    copies = {}
    for name, value in tensors.items():
        memory = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        copies[name] = memory.copy_(value.detach(), non_blocking=True)
    for device in {value.device for value in tensors.values() if value.is_cuda}:
        torch.cuda.synchronize(device)
    return copies


def state_of(modules: dict[str, torch.nn.Module], slots: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of modules and of an optimizer, by name."""
    tensors = {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    return tensors | {f"optimizer.{name}": slot for name, slot in slots.items()}


def restore(
    tensors: dict[str, Tensor],
    modules: dict[str, torch.nn.Module],
    slots: dict[str, Tensor],
    *,
    source: Location,
) -> None:
    """Copy a checkpoint's tensors back; `ElmoError` naming `source` where they do not fit."""
    with torch.no_grad():
        for name, value in state_of(modules, slots).items():
            saved = tensors.get(name)
            if saved is None or saved.shape != value.shape:
                shape = "is missing" if saved is None else f"has shape {tuple(saved.shape)}"
                raise Mismatch(
                    f"{source}: {name} {shape}; this run's has {tuple(value.shape)}: it is a "
                    "checkpoint of another model or optimizer"
                )
            value.copy_(saved)
