"""MLflow that is down, refuses, is locked, or is none: one line before any work, in each command
that asks it."""

import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pipeline.tracking import database as database_checks
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import paired, refused

pytestmark = pytest.mark.usefixtures("without_ray")
ASKING = {name: COMMANDS[name] for name in ("pretrain", "features", "register")}
FEW = ("features", "register")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not answer is given up at once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(database_checks, "MAX_LOCK_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)


def other_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (name TEXT)")
    connection.close()


def from_the_future(database: Path, path: Path) -> None:
    shutil.copyfile(database, path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'from the future'")
    connection.close()


# What stands where MLflow's database should be.
DATABASES: dict[str, Callable[[Path, Path], object]] = {
    "a folder": lambda database, path: path.mkdir(),
    "garbage": lambda database, path: path.write_bytes(b"no database, whatever its name" * 100),
    "another's tables": lambda database, path: other_tables(path),
    "a later MLflow's": from_the_future,
}


@pytest.mark.parametrize(("command", "what"), paired(ASKING, DATABASES))
def test_a_database_that_is_none(
    case: Path, database: Path, monkeypatch: pytest.MonkeyPatch, command: str, what: str
) -> None:
    path = case / "mlflow.db"
    DATABASES[what](database, path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    refused(*ASKING[command], cwd=case, names="mlflow.db")


@pytest.mark.parametrize("command", ASKING)
def test_a_database_that_is_locked(
    case: Path, database: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    path = case / "mlflow.db"
    shutil.copyfile(database, path)
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    try:
        refused(*ASKING[command], cwd=case, names="database is locked")
    finally:
        held.close()


@contextmanager
def silent() -> Iterator[int]:
    """It takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@contextmanager
def closed() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


def answering(status: int, body: bytes) -> Callable[[], "contextmanager[int]"]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    @contextmanager
    def serve() -> Iterator[int]:
        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return serve


SERVERS = {
    "is down": closed,
    "never answers": silent,
    "asks for a login": answering(401, b"who are you?"),
    "is ill": answering(500, b"a\ntraceback\n"),
    "answers no JSON": answering(200, b"<html>welcome</html>"),
}


@pytest.mark.parametrize(("command", "what"), paired(FEW, SERVERS))
def test_a_server_that(
    case: Path, monkeypatch: pytest.MonkeyPatch, command: str, what: str
) -> None:
    with SERVERS[what]() as port:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:hunter2@127.0.0.1:{port}")
        line = refused(*ASKING[command], cwd=case, names="MLflow")
    assert "hunter2" not in line
