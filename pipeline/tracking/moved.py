"""Addresses in MLflow's database after a project was moved or copied.

MLflow keeps absolute addresses. Where its database is a file, artifacts lie beside it in `mlruns`,
so an address that names another folder's `mlruns` dates from before a move or a copy.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

HOME = "elmo.home"  # the tag of our experiments: the folder of the database and of `mlruns`
_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)


def rewrite_moved_paths(database: Path) -> list[Path]:
    """Rewrite the artifact addresses in `database` after its project was moved or copied.

    Returns the folders that the project was in before; none if it was not moved. Files that were
    left there are still found.
    """
    here = database.absolute().parent
    if not database.is_file():
        return []
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        columns = [one for one in _ADDRESSES if _has(connection, *one)]
        homes = [home for home in _homes(connection, columns, here, database.name)]
        for home in homes:
            for table, column in columns:
                for prefix, now in (
                    ((home / "mlruns").as_uri(), (here / "mlruns").as_uri()),
                    (str(home / "mlruns"), str(here / "mlruns")),
                ):
                    _rewrite(connection, table, column, prefix, now)
            _rewrite(connection, "tags", "value", str(home), str(here))
            connection.execute(
                "UPDATE experiment_tags SET value = ? WHERE key = ? AND value = ?",
                (str(here), HOME, str(home)),
            )
    return homes


def _homes(
    connection: sqlite3.Connection, columns: list[tuple[str, str]], here: Path, name: str
) -> Iterator[Path]:
    """Yield where the database was: by the tag of our experiments, or, without one, by an
    experiment's `mlruns` whose files are now here."""
    if ("experiments", "artifact_location") not in columns:
        return
    found = connection.execute(
        "SELECT DISTINCT artifact_location, value FROM experiments LEFT JOIN experiment_tags "
        "ON experiments.experiment_id = experiment_tags.experiment_id AND key = ?",
        (HOME,),
    ).fetchall()
    for location, tag in found:
        folder = _path(str(location))
        home = folder.parent
        if folder.name != "mlruns" or home == here or _same(home / name, here / name):
            continue
        if tag == str(home) or _has_moved(connection, columns, folder, here):
            yield home


def _has_moved(
    connection: sqlite3.Connection, columns: list[tuple[str, str]], folder: Path, here: Path
) -> bool:
    """Tell whether a file that the database names below `folder` is in the `mlruns` of here."""
    for table, column in columns:
        for (value,) in connection.execute(f"SELECT DISTINCT {column} FROM {table}"):
            path = _path(str(value))
            if path != folder and path.is_relative_to(folder):
                if (here / "mlruns" / path.relative_to(folder)).exists():
                    return True
    return False


def _rewrite(
    connection: sqlite3.Connection, table: str, column: str, prefix: str, now: str
) -> None:
    """Exchange the beginning of addresses, but of those whose files are only where they were."""
    condition = " WHERE key = 'store_place'" if table == "tags" else ""
    for (value,) in connection.execute(f"SELECT DISTINCT {column} FROM {table}{condition}"):
        if value != prefix and not str(value).startswith(f"{prefix}/"):
            continue
        new = now + str(value).removeprefix(prefix)
        if _path(str(value)).exists() and value != prefix and not _path(new).exists():
            continue
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, value))


def _has(connection: sqlite3.Connection, table: str, column: str) -> bool:
    return column in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _path(address: str) -> Path:
    return Path(unquote(urlsplit(address).path) if address.startswith("file:") else address)


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths lead to one file, as those of a folder that is mounted twice do."""
    with contextlib.suppress(OSError):
        return os.path.samefile(one, other)
    return False
