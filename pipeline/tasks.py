"""Task models in MLflow: one run for each seed, with its settings, data and curve."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from elmo.files import digest, sha256
from elmo.store import model_digest
from elmo.tasks.settings import Settings

from . import tracking


@dataclass(frozen=True)
class TaskRun:
    """The params of a run."""

    kind: str
    seed: int
    settings: dict[str, Any]


def tracked(
    stack: ExitStack, kind: str, settings: Settings, sources: Mapping[str, Path], seed: int
) -> Callable[..., None]:
    """Open the run of a seed; the run before ends. Returns what logs figures at a step."""
    stack.close()
    inputs = {name: _digest(name, path) for name, path in sources.items()}
    params = TaskRun(kind, seed, msgspec.to_builtins(settings))
    run = stack.enter_context(
        tracking.run(f"task {kind}", params, inputs=inputs, sources=dict(sources))
    )
    return run.metrics


def _digest(name: str, path: Path) -> str:
    """What names a model, a file or a folder of files."""
    if name == "model":
        return model_digest(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        return digest([[file.name, sha256(file)] for file in files])
    return sha256(path)
