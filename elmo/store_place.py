"""Where a store is: a local folder, or any URL that fsspec knows."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elmo.errors import ElmoError


class Place:
    """The folder of a store: a local one, or any URL that fsspec knows."""

    def __init__(self, url: str | Path, options: Mapping[str, Any] | None = None) -> None:
        self.url = str(url).rstrip("/")
        self.local = None if "://" in self.url else Path(url)
        if self.local is None:
            from fsspec.core import url_to_fs

            self._files, self._root = url_to_fs(self.url, **dict(options or {}))

    def name(self, file: str) -> str:
        """How messages call a file of the store."""
        return f"{self.url}/{file}"

    def exists(self, file: str) -> bool:
        """Whether the store's folder has that file."""
        if self.local is not None:
            return (self.local / file).is_file()
        return bool(self._files.exists(f"{self._root}/{file}"))

    def read(self, file: str) -> bytes:
        """The whole of a small file."""
        if self.local is not None:
            return (self.local / file).read_bytes()
        return bytes(self._files.cat_file(f"{self._root}/{file}"))

    def json(self, file: str) -> dict[str, Any]:
        """A JSON object; `ElmoError` where the file is absent or not one."""
        try:
            value = json.loads(self.read(file))
        except FileNotFoundError:
            raise ElmoError(f"{self.name(file)}: no such file") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ElmoError(f"{self.name(file)}: not valid JSON ({error})") from None
        if not isinstance(value, dict):
            raise ElmoError(f"{self.name(file)}: must hold a JSON object")
        return value

    def size(self, file: str) -> int:
        """The bytes of a file."""
        if self.local is not None:
            return (self.local / file).stat().st_size
        return int(self._files.size(f"{self._root}/{file}"))

    def check(self, file: str, *, size: int, sha256: str | None = None) -> None:
        """`ElmoError` naming a file that is missing, truncated or (given `sha256`) altered."""
        try:
            found = self.size(file)
        except FileNotFoundError:
            raise ElmoError(
                f"{self.name(file)}: is missing, though the manifest names it; make the store again"
            ) from None
        if found != size:
            raise ElmoError(
                f"{self.name(file)}: truncated or altered ({found} bytes, the manifest says "
                f"{size}); restore it or make the store again"
            )
        if sha256 is not None and self.sha256(file) != sha256:
            raise ElmoError(
                f"{self.name(file)}: altered (its sha256 is not the manifest's); elmo verify "
                "says where; restore it or make the store again"
            )

    def sha256(self, file: str) -> str:
        """The SHA-256 of a file's bytes, in hex."""
        found = hashlib.sha256()
        with self._binary(file) as stream:
            while block := stream.read(1 << 20):
                found.update(block)
        return found.hexdigest()

    def parquet(self, file: str, *, checksums: bool = False) -> pq.ParquetFile:
        """Open a Parquet file; `ElmoError` where its footer cannot be read."""
        source = str(self.local / file) if self.local is not None else self._binary(file)
        try:
            return pq.ParquetFile(source, page_checksum_verification=checksums)
        except (pa.ArrowInvalid, OSError) as error:
            raise ElmoError(
                f"{self.name(file)}: truncated or altered ({first_line(error)})"
            ) from None

    def _binary(self, file: str) -> Any:
        if self.local is not None:
            return (self.local / file).open("rb")
        return self._files.open(f"{self._root}/{file}", "rb")


def first_line(error: Exception) -> str:
    """What an error of Arrow's says, on one line."""
    return str(error).splitlines()[0][:200]
