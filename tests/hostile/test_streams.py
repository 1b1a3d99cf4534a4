"""Standard input that is no text, and standard output that nobody reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import listing, refused
from tests.pipeline.command_line import ROOT, elmo

READING = {
    "embed": ["embed", "model", "--input", "-", "--output", "out.npz"],
    "perplexity": ["perplexity", "model", "--input", "-"],
}


@pytest.mark.parametrize(
    ("redirected", "code"),
    [(">&-", 0), ("<&- >&-", 0), (">&$BROKEN", 1)],  # the last as in `elmo … | head -0`
)
def test_standard_output_that_takes_nothing(case: Path, redirected: str, code: int) -> None:
    """Closed, it is that of a user who wants none."""
    words = ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-m", "pipeline"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*words, *COMMANDS["verify"]],
        cwd=case,
        env=os.environ | {"PYTHONPATH": str(ROOT), "BROKEN": str(writing)},
        pass_fds=[writing],
        capture_output=True,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    "words",
    [
        *(COMMANDS[name] for name in ("perplexity", "neighbors")),
        [*COMMANDS["verify"], "--json"],
        ["inspect", "in.txt"],
        ["task", "predict", "model", "--input", "in.txt"],
        ["task", "evaluate", "model", "--data", "in.txt"],
        ["unused"],
    ],
)
def test_a_result_is_not_printed_on_a_closed_output(
    case: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stdout__", None)
    assert "standard output is closed" in refused(*words, cwd=case)


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
