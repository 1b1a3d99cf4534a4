"""The files of a folder, to compare, and one bit of a file, to alter."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file below a folder, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def flip(path: Path, place: int | None = None, bit: int = 0) -> None:
    """Flip one bit of a file: of the byte at a place, or in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1 << bit
    path.write_bytes(data)
