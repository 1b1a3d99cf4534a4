"""`python -m research`, in a checkout: what the paper measures, on your own model and data."""

from pipeline.commands.cli import run
from research.commands import findings

run(findings, "python -m research")
