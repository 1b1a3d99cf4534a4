"""The six tasks of the paper, on labelled sentences."""

from typing import Literal, get_args

TaskKind = Literal["tagging", "classification", "pairs", "questions", "roles", "coreference"]
RESULTS_VERSION = 6  # raised where a change of the code changes a task's numbers
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
