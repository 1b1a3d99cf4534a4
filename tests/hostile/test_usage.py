"""Wrong usage of every command, made from the commands' own declarations: one line, exit code 1."""

from pathlib import Path

import pytest

from tests.hostile.harness import INNER, listing, paired, refused
from tests.pipeline.command_line import elmo

# In range for the command line's reader, and for nobody else.
EMBED = ["embed", "model", "--input", "in.txt", "--output", "o.npz"]
VALUES = {
    "batch of none": [*EMBED, "--batch-size", "0"],
    "layer 7": [*EMBED, "--layers", "7"],
    "layer -1": [*EMBED, "--layers", "-1"],
    "layers of words": [*EMBED, "--layers", "a"],
    "layers of nothing": [*EMBED, "--layers", ""],
    "no brackets": ["neighbors", "store", "a", "--model", "model"],
    "two brackets": ["neighbors", "store", "[a] [a]", "--model", "model"],
    "brackets in brackets": ["neighbors", "store", "[[a]]", "--model", "model"],
    "no such layout": ["dump", "store", "out", "--layout", "triangle"],
    "no such preset": ["preset", "../x"],
    "a column without a name": ["init", "new", "--text", "in.txt", "--column", ""],
    "a column of two lines": ["init", "new", "--text", "in.txt", "--column", "a\nb"],
    "no such optimizer": [
        "task",
        "train",
        "tagging",
        "--train",
        "x",
        "--dev",
        "x",
        "--out",
        "y",
        "--without-elmo",
        "--set",
        "optimizer=sgd",
    ],
}


@pytest.mark.parametrize("what", VALUES)
def test_values_out_of_range(case: Path, what: str) -> None:
    before = listing(case)
    code, _, err = elmo(*VALUES[what], cwd=case)
    assert code == 1, err
    assert err.count("\n") == 1 and err.startswith("error: ") and not INNER.search(err), err
    assert listing(case) == before


TRAIN = ["task", "train", "tagging", "--train", "x", "--dev", "x", "--out", "y", "--without-elmo"]
# Each path that a command reads.
READS = {
    "embed": ["embed", "IN", "--input", "in.txt", "--output", "o.npz"],
    "perplexity": ["perplexity", "IN", "--input", "in.txt"],
    "neighbors": ["neighbors", "IN", "[a]"],
    "verify": ["verify", "IN"],
    "lineage": ["lineage", "IN"],
    "dump": ["dump", "IN", "o.hdf5"],
    "export": ["export", "IN", "o.json", "o.hdf5"],
}


@pytest.mark.parametrize(("what", "name"), paired(READS, ["no/such", "in.txt", "x" * 300, "a\nb"]))
def test_paths_that_are_not_there(case: Path, what: str, name: str) -> None:
    refused(*(name if word == "IN" else word for word in READS[what]), cwd=case)
