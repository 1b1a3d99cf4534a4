"""What is promised of a refusal, and damage that may come to a file of any kind.

A refusal is one line on stderr that names the file, exit code 1, and a folder that is as it was.
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.pipeline.command_line import elmo

Value = TypeVar("Value")
# Words of Python's or a library's own, which tell a user neither what is wrong nor what to do.
INNER = re.compile(
    r"KeyError|TypeError|AttributeError|IndexError|NoneType|has no attribute|codec can't|"
    r"Traceback|positional argument|\[[Ee]rrno|object is not|0x[0-9a-f]{8}"
)


def paired(*cases: Iterable[Value]) -> list[tuple[Value, ...]]:
    """Each case of each kind at least once: the kinds side by side, shorter ones again and again.

    For what one piece of code does, whichever command calls it.
    """
    kinds = [list(kind) for kind in cases]
    most = max(map(len, kinds))
    return [tuple(kind[k % len(kind)] for kind in kinds) for k in range(most)]


def listing(folder: Path, *, work: bool = False) -> dict[str, str]:
    """Each path under `folder` and what it holds; with the files of `work` in progress, or not."""
    entries = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        mode = path.lstat().st_mode
        if name.split("/")[0] == "work" and (not work or stat.S_ISDIR(mode)):
            continue
        if stat.S_ISLNK(mode):
            entries[name] = f"-> {os.readlink(path)}"
        elif not stat.S_ISREG(mode):
            entries[name] = "folder" if stat.S_ISDIR(mode) else "other"
        elif path.stat().st_size > 1 << 26:
            entries[name] = str(path.stat().st_size)
        else:
            entries[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return entries


def refused(*arguments: object, cwd: Path, names: str = "", work: bool = False) -> str:
    """Run a command that must be refused; return its line. It may leave `work` to resume from."""
    before = listing(cwd, work=not work)
    code, out, err = elmo(*arguments, cwd=cwd)
    assert code == 1, f"exit code {code}\n{out}{err}"
    (line,) = [row for row in err.splitlines() if not row.startswith(("  ", "warning: "))]
    assert line.startswith("error: "), line
    assert not INNER.search(line), line
    assert len(line) < 1500, line
    assert names in line, f"{names} is not named in: {line}"
    rest = line.removeprefix("error: ").split(": ", 1)[-1]
    assert len(rest.split()) >= 2, f"says too little: {line}"
    assert listing(cwd, work=not work) == before
    return line


def _instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        path.unlink()
        make(path)

    return do


def folders(kind: str, others: Mapping[str, str]) -> dict[str, Callable[[Path], object]]:
    """What may stand where a folder of a `kind` should, `others` of the project among it."""

    def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def do(path: Path) -> None:
            shutil.rmtree(path)
            make(path)

        return do

    def copy(name: str) -> Callable[[Path], object]:
        return lambda path: shutil.copytree(path.parent / name, path)

    return {
        "absent": shutil.rmtree,
        "empty": instead(Path.mkdir),
        "a file": instead(lambda path: path.write_text(kind)),
        **{what: instead(copy(name)) for what, name in others.items()},
    }


# What may happen to a file of any kind.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "absent": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "folder": _instead(Path.mkdir),
    "dangling": _instead(lambda path: path.symlink_to("nowhere")),
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff\xfe"}\n'),
}
