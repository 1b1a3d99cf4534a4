"""Types of arguments, and options that several commands share."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmo.errors import ElmoError, NotFound

if TYPE_CHECKING:
    from elmo.io.location import Location


def _check_name(value: str, *, allows_urls: bool) -> None:
    """Refuse a name that is empty or not UTF-8 (a manifest could not hold it), a malformed URL, or
    a URL instead of a path."""
    from ..terminal.urls import hide_credentials

    name = hide_credentials(value)
    if not value.strip():
        raise ElmoError(f"{value!r}: the name is empty; pass a file or folder")
    if not value.isascii() and value != value.encode("utf-8", "ignore").decode("utf-8"):
        raise ElmoError(f"{os.fsencode(value)!r}: the name is not UTF-8; rename it")
    if "://" in value:
        if not allows_urls:
            raise ElmoError(f"{name}: is a URL; pass a local file or folder")
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", value):
        raise ElmoError(f"{name}: looks like a URL with one slash; write s3://… or ./… (a folder)")


class _Path(click.Path):
    """A local file or folder; a URL is refused, because a `Path` would change it."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Make it a `Path`."""
        _check_name(os.fspath(value), allows_urls=False)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)


class _NewFile(_Path):
    """A file to write; its folder must exist."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the name as a `Path`; refuse one whose folder does not exist."""
        from elmo.io.atomic import check_output_parent

        path = super().convert(value, param, ctx)
        check_output_parent(path)
        if not path.parent.is_dir():
            raise NotFound(
                f"{path}: the folder {path.parent} does not exist; create it or change the output"
            )
        return path


NEW_FILE = _NewFile(path_type=Path)


class _Folder(click.ParamType):  # type: ignore[type-arg]
    """A folder of the project, or a URL, which a `Path` would change."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> "Location":
        """Return the name as a `Location`."""
        from elmo.io.location import Location

        if isinstance(value, Location):
            return value
        _check_name(value, allows_urls=True)
        return Location(value if "://" in value else Path(value))


class _InputFolder(_Folder):
    """A folder to read, which may be a pointer to one at the `storage` URL."""

    def convert(self, value: Any, param: Any, ctx: Any) -> "Location":
        from ..cluster import storage

        return storage.resolve_input(super().convert(value, param, ctx))


OUTPUT_FOLDER = _Folder()
INPUT_FOLDER = _InputFolder()


class _Text(click.File):
    """A file, or standard input for `-`."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Open the file."""
        if isinstance(value, str):
            _check_name(value, allows_urls=False)
        return super().convert(value, param, ctx)


TEXT = _Text("rb")


def print_done(line: str) -> None:
    """Print one line that says what a command has done; control characters in names are escaped."""
    from ..terminal.failures import escape_control_characters

    click.echo(escape_control_characters(line))


PARAMS = click.option(
    "--params",
    "params_file",
    default="params.yaml",
    show_default=True,
    type=PATH,
    help="The settings file.",
)
METRICS = click.option("--metrics", type=PATH, help="Write the main figures to this JSON file.")
NUMBERS = click.option("--numbers", type=PATH, help="Write all figures to this JSON file.")


def _check_device(context: click.Context, _: Any, device: str) -> str:
    """Refuse, before any work, a device that this machine does not have."""
    if device == "cpu" or context.resilient_parsing:
        return device
    from elmo.nn.device import check_device

    check_device(device)
    return device


DEVICE = click.option(
    "--device",
    default="cpu",
    show_default=True,
    callback=_check_device,
    help="The device: cpu, or cuda for a GPU.",
)
PRETOKENIZED = click.option(
    "--pretokenized", is_flag=True, help="The input is already tokenized; spaces separate tokens."
)
DTYPE = click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="The number type of the vectors.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def check_stdout(*, is_needed: bool = True) -> None:
    """Refuse, before any work, a closed standard output if the result `is_needed` there."""
    if is_needed and sys.__stdout__ is None:
        raise ElmoError("standard output is closed; redirect it to a file, for example: > out.txt")


OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace an existing output once the new one is complete."
)


def output_file(
    out: Path, overwrite: bool, *, start: bytes, inputs: Sequence["Path | Location | str"]
) -> AbstractContextManager[Path]:
    """Return a context manager that yields the path to write an output to.

    It is `out` or, with `overwrite`, a temporary file that replaces `out` when the block ends
    without an error. Raises `ElmoError` if `out` is one of `inputs` or inside one, or if it would
    replace a file whose beginning does not match the regular expression `start`.
    """
    from elmo.io.atomic import check_output_file, new_file

    if overwrite:
        check_output_file(out, pattern=start)
    for source in inputs:
        path = Path(os.path.realpath(str(source)))
        if path.exists() and Path(os.path.realpath(out)).is_relative_to(path):
            raise ElmoError(f"{out}: is the input {source}, or inside it; choose another path")
    return new_file(out) if overwrite else nullcontext(out)


# Regular expressions for the beginning of each kind of output.
NPZ_START, HDF5_START, PARQUET_START = b"PK", rb"\x89HDF", b"PAR1"
OPTIONS_JSON_START = rb'\s*\{.*"(lstm|char_cnn)"'


def add_cluster_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: read cluster.yaml, check a cluster's nodes, and pass it as `cluster`."""

    @wraps(command)
    def run_with_settings(**values: Any) -> None:
        from ..settings import cluster as cluster_settings
        from ..terminal.progress import say

        cluster, settings_line = cluster_settings.load(Path("cluster.yaml"))
        if cluster != cluster_settings.Cluster():
            say(settings_line)
        if not os.environ.get("RAY_ADDRESS"):
            return command(cluster=cluster, **values)
        from elmo.io.location import Location

        from ..cluster import preflight, workers

        # The nodes need the folders; only the driver uses other files.
        parameters = click.get_current_context().command.params
        names = [item.name for item in parameters if item.name and isinstance(item.type, _Folder)]
        folders = [values[name] for name in names if values[name] is not None]
        with workers.session() as ray:
            preflight.check_nodes(ray, [Location(cluster.storage)] if cluster.storage else folders)
            command(cluster=cluster, **values)

    return run_with_settings
