"""A registered text model answers in an environment that holds its requirements and no more."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow.pyfunc import scoring_server

from elmo.data.shards import write_shards
from elmo.data.tokenizer import installed_tokenization
from elmo.io.location import Location
from elmo.model.embedder import Embedder
from elmo.settings import StoreSettings
from elmo.store.build import build
from pipeline.settings.params import RegisterSettings
from pipeline.stages import register
from pipeline.tracking import pyfunc
from tests.elmo.conftest import save_tiny_model
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
TEXT = "He has a gift. The gift!"
ANSWER = 300.0  # seconds for a server to begin, on a busy machine


@pytest.fixture
def registered(tmp_path: Path, own_mlflow: Path) -> str:
    """The address of a registered model that cuts text into sentences and words."""
    model, shards, store = tmp_path / "model", tmp_path / "shards", tmp_path / "store"
    write_shards(shards, [["a", "gift"], ["he", "has"]], heldout_every=2)
    save_tiny_model(model, tokenizer=installed_tokenization("unicode", "split"))
    settings = StoreSettings()
    build(store, shards=shards, model=model, settings=settings, work=tmp_path / "work")
    params = RegisterSettings(name="served", alias="champion", margin=0.01)
    out = tmp_path / "registered.json"
    register.run(
        Location(model),
        Location(store),
        out,
        params,
        general=Location(shards),
        domain=Location(shards),
    )
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
    port = free_port()
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


def test_the_guides_request_is_answered(tmp_path: Path) -> None:
    """By a model as MLflow's server holds it, without the server."""
    save_tiny_model(tmp_path / "elmo", tokenizer=installed_tokenization("unicode", "split"))
    mlflow.pyfunc.save_model(
        tmp_path / "model",
        python_model=str(Path(pyfunc.__file__)),
        artifacts={"model": str(tmp_path / "elmo")},
        signature=pyfunc.signature(),
    )
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))

    def post(body: str) -> list[Any]:
        schema = model.metadata.get_input_schema()
        answer = scoring_server.invocations(body, "application/json", model, schema)
        assert answer.status == 200
        return list(json.loads(answer.response)["predictions"])

    guide = (ROOT / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^curl -s .*$", guide, re.MULTILINE)
    words = shlex.split(command)
    (pooled,) = post(words[words.index("-d") + 1])
    text = "He has a gift for music"
    (tokens,) = post(json.dumps({"inputs": [text]}))
    assert len(tokens) == 6
    np.testing.assert_allclose(pooled, np.mean(tokens, axis=0), atol=1e-6)
    (example,) = re.findall(r"`({\"inputs\": \[{.*})`", guide)
    assert [len(vectors) for vectors in post(example)] == [2]
    for wrong in (
        {"inputs": ["a"], "params": {"layers": "middle"}},
        {"inputs": ["a"], "params": {"gamma": 1e60, "layers": "1,1,1"}},
        {"inputs": [{"txt": "a"}]},
        {"inputs": [3]},
    ):
        with pytest.raises(mlflow.MlflowException) as error:
            post(json.dumps(wrong))
        assert error.value.get_http_status_code() == 400
    (none,) = post(json.dumps({"inputs": [""], "params": {"pooling": "mean"}}))
    assert set(none) == {0.0}
