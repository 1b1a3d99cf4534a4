"""Standard input that is no text, and standard output that nobody reads."""

import os
import sys
from pathlib import Path

import pytest

from pipeline.commands import cli
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import listing
from tests.pipeline.command_line import elmo

READING = {
    "embed": ["embed", "model", "--input", "-", "--output", "out.npz"],
    "perplexity": ["perplexity", "model", "--input", "-"],
}


@pytest.mark.parametrize("command", ["lineage", "perplexity"])
def test_nobody_reads_what_is_printed(
    case: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `elmo … | head -0`: it ends without a word."""
    run = cli.run_cli
    reading, writing = os.pipe()
    os.close(reading)

    def broken() -> None:
        sys.stdout = os.fdopen(writing, "w")
        run()

    monkeypatch.setattr(cli, "run_cli", broken)
    code, _, error = elmo(*COMMANDS[command], cwd=case)
    assert (code, error) == (1, "")


INPUTS = {
    "not UTF-8": b"he has\n\xff\n",
    "not UTF-8, late": b"he has\n" * 5000 + b"caf\xe9\n",
    "UTF-16": "he has\n".encode("utf-16"),
    "too many tokens": b"a " * 40_000 + b"\n",
}


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("command", [*READING, "scores", "carry"])
def test_what_standard_input_holds(case: Path, command: str, what: str) -> None:
    if what == "too many tokens" and command in ("perplexity", "scores"):
        pytest.skip("it is scored piece by piece")
    more = {"scores": ["--sentences"], "carry": ["--state", "carry"]}.get(command, [])
    name = {"scores": "perplexity", "carry": "embed"}.get(command, command)
    before = listing(case)
    code, _, error = elmo(*READING[name], *more, stdin=INPUTS[what], cwd=case)
    assert code == 1 and error.startswith("error: <stdin>:") and error.count("\n") == 1, error
    assert listing(case) == before
