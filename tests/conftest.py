"""What holds for all tests: one thread per process, the eager LSTM cell, its own commands.

The models of the tests are tiny. Several threads of one process gain nothing on them, and lose
much where the cores are busy: each waits for the one that has no core. Compiling takes longer
than what it would speed up; tests of the compiled cell ask for it (`compiled`). `dvc`, and the
`python` of dvc.yaml, are those of this interpreter's environment, activated or not.
"""

import os
import signal
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for processes that tests start
os.environ["ELMO_COMPILE"] = "0"
_COMMANDS = os.path.dirname(sys.executable)
os.environ["PATH"] = os.pathsep.join([_COMMANDS, os.environ.get("PATH", os.defpath)])

from collections import Counter  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes is slow too: `-m "not slow"` replaces the choice of pyproject.toml.

    The files that take longest begin first (those that start Ray, then those of many slow tests):
    at the end no process works on a long one while the others have nothing left to do.
    """
    ray, slow = set[Path](), Counter[Path]()
    for item in items:
        if item.get_closest_marker("long") or item.get_closest_marker("cluster"):
            item.add_marker("slow")
        if item.get_closest_marker("ray"):
            ray.add(item.path)
        slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: (item.path not in ray, -slow[item.path]))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A stage in this process sets as many as it was told."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fused cell, as users have it."""
    from elmo.nn import cell

    monkeypatch.setenv("ELMO_COMPILE", "1")
    monkeypatch.setattr(cell, "MIN_COMPILE_WORK", 0)
    cell.choose_cell_functions.cache_clear()
    yield
    cell.choose_cell_functions.cache_clear()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database as SQLite file, without a run; copy it."""
    from pipeline.tracking.client import check_mlflow

    path = tmp_path_factory.mktemp("database") / "empty.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        check_mlflow()
    return path


@pytest.fixture
def terminal_signals() -> Iterator[None]:
    """No signal is ignored: the tests may run in a shell's background, or below nohup."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {sig: signal.signal(sig, signal.SIG_DFL) for sig in signals}
    yield
    for sig, handler in handlers.items():
        signal.signal(sig, handler)
