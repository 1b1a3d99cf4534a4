"""Exceptions that libraries really raise, each one line; a bug keeps its traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.commands import cli
from pipeline.terminal.failures import user_message
from tests.pipeline.command_line import elmo


def arrow(folder: Path) -> None:
    import pyarrow.parquet as pq

    (folder / "x").write_bytes(b"no Parquet" * 10)
    pq.read_table(folder / "x")


def safetensors(folder: Path) -> None:
    from safetensors.numpy import load_file

    (folder / "x").write_bytes(b"\xff" * 100)
    load_file(folder / "x")


def database(folder: Path) -> None:
    from sqlalchemy import create_engine, text

    (folder / "x").write_bytes(b"no database" * 500)
    with create_engine(f"sqlite:///{folder / 'x'}").connect() as connection:
        connection.execute(text("select * from runs"))


def network(folder: Path) -> None:
    import requests

    requests.get("http://127.0.0.1:1", timeout=5)


def tracking(folder: Path) -> None:
    from mlflow.exceptions import MlflowException

    raise MlflowException("API request failed\nwith more lines")


def memory(folder: Path) -> None:
    import numpy as np

    np.empty(2**60, np.uint8)


def tensor_memory(folder: Path) -> None:
    import torch

    torch.empty(2**60)


def disk(folder: Path) -> None:
    with Path("/dev/full").open("wb") as file:
        file.write(b"x" * 100_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (arrow, "Arrow: Could not open Parquet input"),
        (safetensors, "safetensors: "),
        (database, "the tracking database: (sqlite3.DatabaseError) file is not a database"),
        (network, "the network: "),
        (tracking, "MLflow: API request failed"),
        (memory, "out of memory ("),
        (tensor_memory, "out of memory ("),
        (disk, "No space left on device; make room"),
    ],
)
def test_what_libraries_raise_is_one_line(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    with pytest.raises(Exception) as caught:
        make(tmp_path)
    line = user_message(caught.value)
    assert line is not None and line.startswith(message) and "\n" not in line


def test_a_deleted_folder_and_a_library_without_memory_are_named() -> None:
    assert user_message(FileNotFoundError(2, "No such file")) == (
        "the current folder no longer exists; change to another"
    )
    assert "out of memory" in str(user_message(ImportError("lib.so: failed to map segment")))


def test_a_part_of_ray_that_is_gone_says_what_to_do() -> None:
    from ray.exceptions import ActorUnavailableError

    error = ActorUnavailableError("RpcError: RPC error: Socket closed", b"0" * 16)
    line = user_message(error)
    assert line == "Ray lost a process that this work needs; run the same command again to resume"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_message(KeyError("x")) is None and user_message(AttributeError("y")) is None
    with pytest.raises(KeyError):
        cli._exit_with_message(KeyError("x"))
    with pytest.raises(SystemExit, match="^error: file:3: bad$"):
        cli._exit_with_message(ElmoError("file:3: bad"))
    monkeypatch.setenv("ELMO_VERBOSE", "1")
    with pytest.raises(ElmoError):
        cli._exit_with_message(ElmoError("file:3: bad"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embde"], "error: No such command 'embde'; did you mean 'embed'?"),
        (["verify"], "error: Missing argument 'STORE'. See elmo verify --help"),
        (["embed", "m", "--output", "o"], "error: Missing option '--input'. See elmo embed --help"),
        (["task", "train"], "roles, coreference. See elmo task train --help\n"),
        (["corpus", "o", "--workers", "many"], "error: No such option '--workers'."),
        (["perplexity", "m", "--input", "no/such"], "No such file or directory"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_1(arguments: list[str], message: str) -> None:
    code, out, error = elmo(*arguments)
    assert (code, out) == (1, "")
    assert message in error and error.count("\n") == 1
