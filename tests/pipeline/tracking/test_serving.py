"""A registered text model answers in an environment that holds its requirements and no more."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import mlflow
import numpy as np
import pytest

from elmo.data.shards import write_shards
from elmo.data.tokenizer import describe
from elmo.model.embedder import Embedder
from elmo.settings import StoreSettings
from elmo.store.build import build
from pipeline.settings.params import Register
from pipeline.stages import register
from tests.elmo.conftest import save_tiny_model

TEXT = "He has a gift. The gift!"
ANSWER = 300.0  # seconds for a server to begin, on a busy machine


@pytest.fixture
def registered(tmp_path: Path, own_mlflow: Path) -> str:
    """The address of a registered model that cuts text into sentences and words."""
    model, shards, store = tmp_path / "model", tmp_path / "shards", tmp_path / "store"
    write_shards(shards, [["a", "gift"], ["he", "has"]], heldout_every=2)
    save_tiny_model(model, tokenizer=describe("unicode", "split"))
    settings = StoreSettings()
    build(store, shards=shards, model=model, settings=settings, work=tmp_path / "work")
    params = Register(name="served", alias="champion", margin=0.01)
    out = tmp_path / "registered.json"
    register.run(model, store, out, params, general=shards, task=shards)
    return "models:/served@champion"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_text_model_is_served_where_only_its_requirements_are_installed(
    registered: str, tmp_path: Path
) -> None:
    listed = mlflow.pyfunc.get_model_dependencies(registered)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", listed], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    bare["PATH"] = os.pathsep.join([str(python.parent), bare["PATH"]])
    server = subprocess.Popen(
        [python, "-m", "mlflow", "models", "serve", "-m", registered]
        + ["--env-manager", "local", "--port", str(port)],
        env=bare,
        cwd=tmp_path,
    )
    try:
        answer = ask(f"http://127.0.0.1:{port}/invocations", {"inputs": [TEXT]}, server)
    finally:
        server.terminate()
        server.wait()
    (vectors,) = answer["predictions"]
    expected = Embedder.load(tmp_path / "model")
    sentences = expected.tokenize(TEXT)
    layers = np.concatenate([one.mean(axis=0) for one in expected.embed(sentences)])
    np.testing.assert_allclose(np.array(vectors), layers, atol=1e-5)


def ask(address: str, body: object, server: "subprocess.Popen[bytes]") -> dict[str, list[object]]:
    """The server's answer, as soon as it gives one."""
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.monotonic()
    while True:
        assert server.poll() is None and time.monotonic() - began < ANSWER
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return dict(json.load(answer))
        except ConnectionError:
            time.sleep(0.5)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.5)
