"""The stages that `dvc.yaml` runs, one module per stage, and the command line."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
RUN_VARIABLE = "ELMO_IN_RUN"  # set in the stages of `elmo run`, which reports an interrupt itself
