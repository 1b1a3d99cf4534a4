"""The stages of dvc.yaml: a module for each, with `run`, `summary` and the record `STAGE`.

To add a stage, write its module here, and add its name to `STAGES`, its settings to
`pipeline.settings.params` and params.yaml, and its entry to dvc.yaml.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stage import Stage

STAGES = (
    "corpus",
    "tokenize",
    "vocab",
    "pretrain",
    "finetune",
    "features",
    "register",
    "labels",
    "tasks",
    "report",
)


def load_stage(name: str) -> "Stage":
    """Import the module of the stage with this name, and return its `STAGE`."""
    stage: Stage = import_module(f"{__name__}.{name}").STAGE
    return stage
