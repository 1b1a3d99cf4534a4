"""Reports exceptions of libraries and of the system in one line; no other module knows their types.

The exceptions listed here come from bad input, a service that is down or refuses, or a full
machine. Any other is a bug in this project, and keeps its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from elmo.errors import ElmoError, NotFound, first_line, reason_of
from elmo.io.remote import remove_login

# A package that defines exceptions, and the name by which users know it.
_LIBRARIES = {
    "aiohttp": "the network",
    "boto3": "object storage",
    "botocore": "object storage",
    "fsspec": "storage",
    "gcsfs": "object storage",
    "h5py": "HDF5",
    "mlflow": "MLflow",
    "pyarrow": "Arrow",
    "ray": "Ray",
    "requests": "the network",
    "s3fs": "object storage",
    "safetensors": "safetensors",
    "safetensors_rust": "safetensors",
    "sqlalchemy": "the tracking database",
    "sqlite3": "the tracking database",
    "urllib3": "the network",
    "yaml": "YAML",
    "zipfile": "a zip file",
    "zstandard": "Zstandard",
}
# What Ray's exceptions say if its head or another of its own processes is gone.
_RAY_IS_LOST = ("is unavailable", "temporarily unavailable", "Socket closed")
_NO_MEMORY = ("allocate memory", "out of memory", "Unable to allocate", "bad_alloc", "map segment")


def user_message(error: BaseException) -> str | None:
    """Describe an exception of a library or of the system in one line for the user.

    Return None for a bug of this project. Pass no `ElmoError`: its text is one line already.
    """
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return f"out of memory ({first_line(error)}); use smaller batches, or a machine with more"
    for class_ in type(error).__mro__:
        package = class_.__module__.split(".")[0]
        if package == "ray" and any(words in str(error) for words in _RAY_IS_LOST):
            return "Ray lost a process that this work needs; run the same command again to resume"
        if package in _LIBRARIES:
            return f"{_LIBRARIES[package]}: {first_line(error)}"
    if isinstance(error, FileNotFoundError) and not error.filename:
        return "the current folder no longer exists; change to another"
    if isinstance(error, OSError):
        prefix = f"{error.filename}: " if error.filename else ""
        return f"{prefix}{reason_of(error)}"
    return None


def escape_control_characters(message: str) -> str:
    """Return a message on one line, with control characters in names escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


@contextmanager
def catch_read_errors(
    url: str, failure: str = "cannot be read", remedy: str = "restore it, or correct its name"
) -> Iterator[None]:
    """Turn any exception in the block into an `ElmoError`: `URL: failure: reason; remedy`.

    `url` is the URL or path of the file read there. The libraries that read files (Arrow, fsspec
    and its backends, lzma, zlib) share no base exception, so put only calls to them inside.
    """
    try:
        yield
    except ElmoError:
        raise
    except FileNotFoundError:
        raise NotFound(f"{url}: no such file; check the name") from None
    except Exception as error:
        reason = remove_login(reason_of(error, remedy), url)
        raise ElmoError(f"{url}: {failure}: {reason}") from error
