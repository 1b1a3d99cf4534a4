"""The six tasks of the paper, on labelled sentences."""

from typing import Literal, get_args

TaskKind = Literal["tagging", "classification", "pairs", "questions", "roles", "coreference"]
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
