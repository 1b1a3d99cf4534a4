"""MLflow's SQLite database: checked before use, created whole or not at all."""

import contextlib
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from elmo.errors import ElmoError
from elmo.io.atomic import hidden_folder

MAX_LOCK_SECONDS = 5.0  # seconds to wait while another process holds the database
_TABLES = {"alembic_version", "experiments", "runs"}  # in every version of MLflow


def database_path(uri: str) -> Path | None:
    """Return the file of an SQLite URI, or None for any other URI."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def check_database(path: Path) -> None:
    """Raise `ElmoError` for a database that can't be used.

    MLflow itself would retry for a minute and then print a traceback.
    """
    remedy = "or set MLFLOW_TRACKING_URI"
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise ElmoError(
            f"{folder}: is not writable, and MLflow's database is there; make it writable, {remedy}"
        )
    if not path.exists():
        return
    try:
        address = f"file:{quote(str(path))}?mode=rw"
        connection = sqlite3.connect(
            address, uri=True, timeout=MAX_LOCK_SECONDS, isolation_level=None
        )
        with contextlib.closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        advice = {
            "file is not a database": "move it away",
            "database is locked": "end the process that holds it",
            "attempt to write a readonly database": "make it writable",
        }.get(str(error), "restore it")
        raise ElmoError(
            f"{path}: MLflow's database can't be used ({error}); {advice}, {remedy}"
        ) from None
    if tables and not tables >= _TABLES:  # MLflow would add its own to them
        raise ElmoError(f"{path}: is another program's database, not MLflow's; {remedy[3:]}")


def make_database(path: Path) -> None:
    """Create an SQLite database for MLflow, whole or not at all.

    MLflow creates its tables one by one, and cannot recover if it is killed halfway.
    """
    if path.exists():
        return
    import mlflow

    with hidden_folder(path) as folder:
        new_path = folder / path.name
        mlflow.MlflowClient(f"sqlite:///{new_path}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(new_path, path)
