"""The file system behind a URL, from fsspec: its connection, options and errors."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from elmo.errors import ElmoError, reason_of

MAX_REQUESTS = 32  # simultaneous requests
_CONDITIONAL_STORES: set[str] = set()  # known to refuse to create an existing name


class Remote:
    """The folder at a URL; each process opens it anew. `options` are fsspec's storage options."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url, self.options = url, dict(options)
        self._connection: tuple[int, Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without a connection."""
        return {**self.__dict__, "_connection": None}

    @contextmanager
    def connect(self, file: str) -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system for the URL, and the path there of `file`, a path below the
        URL (empty: the URL itself).

        An error in the block becomes an `ElmoError` of one line, except `FileNotFoundError` and
        `FileExistsError`.
        """
        try:
            fs, root = self.file_system()
            yield fs, f"{root}/{file}"
        except (FileExistsError, ElmoError):
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError):  # also if a server does not answer
                cause = error.__cause__
                if not isinstance(cause, OSError) or isinstance(cause, FileNotFoundError):
                    raise
                error = cause
            name = f"{self.url}/{file}" if file else self.url
            reason = remove_login(reason_of(error, "check the URL and access"), self.url)
            raise ElmoError(f"{name}: {type(error).__name__}: {reason}") from error

    def listing(self, kind: str) -> list[tuple[str, Any]]:
        """Return the name of each file or folder directly below the URL, with fsspec's dictionary
        of its properties.

        `kind` is `file` or `directory`. If the URL does not exist, the list is empty.
        """
        try:
            with self.connect("") as (fs, path):
                entries = fs.ls(path.rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        entries = [entry for entry in entries if (entry["type"] == "file") == (kind == "file")]
        return [(entry["name"].rstrip("/").rpartition("/")[2], entry) for entry in entries]

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file below the URL, by its path below it.

        Links are left out. Raises `ElmoError` if a folder cannot be listed; a missing one is empty.
        """
        with self.connect("") as (fs, path):
            root = fs._strip_protocol(path).rstrip("/")
            if _has_recursive_listing(fs):
                entries = fs.find(root, detail=True).items()
            else:  # fsspec's own skips folders that it cannot list
                entries = list(_walk(fs, root))
        return {name[len(root) :].lstrip("/"): int(entry["size"] or 0) for name, entry in entries}

    def check_conditional_writes(self) -> None:
        """Raise `ElmoError` unless the service at the URL refuses to create a name a second time.

        It is tested once per process.
        """
        fs, root = self.file_system()
        store = f"{type(fs).__name__} {fs._fs_token} {root.lstrip('/').partition('/')[0]}"
        if store in _CONDITIONAL_STORES:
            return
        name = f".probe-{secrets.token_hex(8)}"
        with self.connect(name) as (fs, path):
            fs.pipe_file(path, b"first", mode="create")
            try:
                fs.pipe_file(path, b"second", mode="create")
            except FileExistsError:
                _CONDITIONAL_STORES.add(store)
            finally:
                fs.rm_file(path)
        if store not in _CONDITIONAL_STORES:
            raise ElmoError(
                f"{self.url}: this object store ignores If-None-Match, so two writers could "
                "overwrite each other; use one with conditional writes, such "
                "as S3, Google Cloud Storage, Azure or a newer version of your server"
            )

    def file_system(self) -> tuple[Any, str]:
        """Return fsspec's file system, opened by this process, and the root path in it.

        Listings are not cached, because other processes write too.
        """
        if self._connection is None or self._connection[0] != os.getpid():
            from fsspec.config import conf
            from fsspec.core import url_to_fs

            options = self.options
            if "::" not in self.url:
                options = {"use_listings_cache": False, **options}
            if self.url.startswith("s3://"):  # its client would open only 10 connections
                client_settings = {**conf.get("s3", {}), **options}.get("config_kwargs") or {}
                options["config_kwargs"] = {"max_pool_connections": MAX_REQUESTS, **client_settings}
            fs, root = url_to_fs(self.url, **options)
            self._connection = os.getpid(), fs, root.rstrip("/")
        _, fs, root = self._connection
        return fs, root


def _has_recursive_listing(fs: Any) -> bool:
    """Tell whether a file system implements recursive listing itself."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    if isinstance(fs, AsyncFileSystem):
        return type(fs)._find is not AsyncFileSystem._find
    return type(fs).find is not AbstractFileSystem.find


def _walk(fs: Any, folder: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and properties of each file in a folder and its subfolders, except links."""
    try:
        entries = fs.ls(folder, detail=True)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry["type"] == "directory" and not entry.get("islink"):
            yield from _walk(fs, entry["name"])
        elif entry["type"] == "file" and not entry.get("islink"):
            yield entry["name"], entry


def remove_login(reason: str, url: str) -> str:
    """Return `reason`, a library's error message, without the user and password in `url`: libraries
    may quote them as part of a bucket's name."""
    login = urlsplit(url).netloc.rpartition("@")[0]
    return reason.replace(f"{login}@", "") if login else reason
