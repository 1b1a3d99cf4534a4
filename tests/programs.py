"""Programs in processes of their own, run to their end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def call(*command: object, cwd: Path = ROOT, **options: Any) -> str:
    """Run a command that must end well; return what it prints."""
    words, options = [*map(str, command)], {"capture_output": True, "text": True} | options
    done = subprocess.run(words, cwd=cwd, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def python(code: str, *arguments: object, **options: Any) -> str:
    """Run a program of Python's that must end well; return what it prints."""
    return call(sys.executable, "-c", code, *arguments, **options)
