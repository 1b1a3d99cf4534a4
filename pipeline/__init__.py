"""The stages: what `dvc.yaml` runs, one module per stage, and the command line."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
