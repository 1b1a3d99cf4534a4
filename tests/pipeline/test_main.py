"""The process of a command: how its threads wait for each other, unless the user has said so, and
how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elmo.conftest import WHITESPACE, make_store, save_tiny_model

ROOT = Path(__file__).resolve().parents[2]
EMBED = ["-m", "pipeline", "embed", "absent", "--input", "-", "--output", "out.npz"]


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP elsewhere")
@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_openmp_spins_for_a_while_and_not_for_milliseconds(
    given: dict[str, str], spins: str, tmp_path: Path
) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": str(ROOT), **given}
    done = subprocess.run(
        [sys.executable, *EMBED], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    shown = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    assert shown and all(f"'{spins}'" in line for line in shown), done.stderr


INTERRUPTED = """
import os, signal, sys
module = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from pipeline.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "command", "line"),
    [
        ("pipeline.commands.cli", ["embed"], "error: interrupted\n"),
        (  # which Arrow imports
            "pandas",
            ["verify", "store"],
            "error: interrupted; run the same command again\n",
        ),
    ],
)
def test_an_interrupt_in_the_imports_is_one_line(
    tmp_path: Path, module: str, command: list[str], line: str
) -> None:
    save_tiny_model(tmp_path / "model")
    make_store(tmp_path, [["a"], ["the"]], tmp_path / "model", tokenizer=WHITESPACE)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        # As from a terminal: the tests themselves may run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stderr) == (1, line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_no_work_ends_because_its_progress_can_not_be_shown() -> None:
    program = """import sys
from pipeline.__main__ import main
from pipeline.commands import cli
from pipeline.terminal.progress import say
cli.run_cli = lambda: [say("warning " * 9000), print("x" * 9000, file=sys.stderr), print("done")]
main()"""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=full
        )
    assert (done.returncode, done.stdout) == (0, b"done\n")
