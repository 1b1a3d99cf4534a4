"""The six tasks of the paper, on labelled sentences."""

from typing import Literal, get_args

Kind = Literal["tagging", "classification", "pairs", "questions", "roles", "coreference"]
KINDS: tuple[Kind, ...] = get_args(Kind)
