"""The files of a folder, to compare."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file below a folder, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
