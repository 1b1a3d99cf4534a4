"""`python -m research`, in a checkout: the paper's experiments on your own model and data."""

from pipeline.commands.cli import run_cli
from research.commands import findings

run_cli(findings, "python -m research")
