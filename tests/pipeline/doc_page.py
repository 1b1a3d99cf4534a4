"""A page of the documentation as a program: its commands are run and what they print is compared.

In a `console` block a line that begins with `$ ` is a command; the lines after it are its output.
The output of a `python` block is the `text` block after it; names live on from block to block.
A line of `…` stands for any lines, `…` in a line for any text. Numbers of a console are any
numbers. Blocks of other languages are not run.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,.]*")
SERVER = """
import contextlib, io, json, os, sys, traceback
answers, names = os.fdopen(os.dup(1), "w"), {}
os.dup2(2, 1)
for line in sys.stdin:
    folder, code = json.loads(line)
    os.chdir(folder)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(code, "the page", "exec"), names)
        except BaseException:
            out.write(traceback.format_exc())
    print(json.dumps(out.getvalue()), file=answers, flush=True)
"""


class Step(NamedTuple):
    """One command, or one block of Python, and what it prints (None: it is not shown)."""

    line: int
    kind: str
    source: str
    expected: str | None


def steps(page: Path) -> list[Step]:
    """What a page tells its reader to run, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Step] = []
    for block in FENCE.finditer(text):
        line = text.count("\n", 0, block.start()) + 2
        language, content = block.groups()
        if language == "python":
            found.append(Step(line, "python", content, None))
        elif language == "text":
            found[-1] = found[-1]._replace(expected=content)
        elif language == "console":
            found += _commands(line, content)
    return found


def _commands(line: int, content: str) -> Iterator[Step]:
    for part in re.split(r"^(?=\$ )", content, flags=re.MULTILINE):
        if part:
            command, _, output = part.partition("\n")
            assert command.startswith("$ "), f"line {line}: {command!r} is no command"
            yield Step(line, "console", command[2:], output)
            line += part.count("\n")


def pattern(expected: str, *, exact: bool) -> re.Pattern[str]:
    """What the output must match."""
    whole = ""
    for line in expected.splitlines():
        if line == "…":
            whole += r"(?:.*\n)*?"
            continue
        parts = [line] if exact else NUMBER.split(line)
        escaped = (re.escape(part).replace("…", ".*") for part in parts)
        whole += r"\d[\d,.]*".join(escaped) + r"\n"
    return re.compile(whole)


class Reader:
    """Someone who runs a page's blocks in `folder`."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder, self.variables = folder, variables
        self.python = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            text=True,
        )

    def close(self) -> None:
        """End its Python."""
        self.python.communicate()

    def run(self, step: Step) -> str:
        """What a step prints; standard error too, as on a terminal."""
        if step.kind == "python":
            assert self.python.stdin and self.python.stdout
            print(json.dumps([str(self.folder), step.source]), file=self.python.stdin, flush=True)
            return str(json.loads(self.python.stdout.readline()))
        if step.source.startswith("cd "):
            self.folder = self.folder / step.source[3:]
            return ""
        done = subprocess.run(
            step.source,
            shell=True,
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{step.source}\n{done.stdout[-5000:]}"
        return done.stdout

    def check(self, page: Path, step: Step) -> None:
        """Run a step and compare what it prints with what the page says."""
        printed = self.run(step)
        if step.expected is not None or step.kind == "python":
            wanted = pattern(step.expected or "", exact=step.kind == "python")
            message = f"{page.name}:{step.line}: {step.source}\n--- printed\n{printed}"
            assert wanted.fullmatch(printed), message
