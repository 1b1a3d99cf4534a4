"""An MLflow of the tests' own."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.pipeline import here


@pytest.fixture(scope="module")
def own_mlflow(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A module's own database; it lies in the folder that its tests run in."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    path.write_bytes(empty_database.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        patch.chdir(path.parent)
        yield path


@pytest.fixture(autouse=True)
def forget_the_tracking_address() -> Iterator[None]:
    """MLflow keeps an address that one test has set, and prefers it to the next one's variable."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    yield
    if mlflow := sys.modules.get("mlflow"):
        mlflow.set_tracking_uri(None)  # which deletes the variable too
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before


@pytest.fixture
def in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks here, but where a test asks for Ray."""
    if "ray" not in request.keywords:
        monkeypatch.setattr("pipeline.cluster.workers.map_tasks", here.map_tasks)
        monkeypatch.setattr("pipeline.cluster.workers.session", nullcontext)
