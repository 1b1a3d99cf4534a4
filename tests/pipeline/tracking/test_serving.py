"""A registered text model answers in an environment that holds its requirements and no more."""

import io
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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.pyfunc import scoring_server

from elmo.data.tokenizer import installed_tokenization
from elmo.model.embedder import Embedder
from pipeline.tracking import pyfunc
from tests.elmo.conftest import make_store, save_tiny_model
from tests.pipeline.stages import test_register
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
TEXT = "He has a gift. The gift!"
ANSWER = 300.0  # seconds for a server to begin, on a busy machine


@pytest.fixture
def registered(tmp_path: Path, own_mlflow: Path) -> str:
    """The address of a registered model that cuts text into sentences and words."""
    save_tiny_model(tmp_path / "model", tokenizer=installed_tokenization("unicode", "split"))
    make_store(tmp_path, [["a", "gift"], ["he", "has"]], tmp_path / "model", heldout_every=2)
    test_register.run(tmp_path)
    return "models:/tiny@champion"


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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> mlflow.pyfunc.PyFuncModel:
    """A model as MLflow's server holds it, without the server."""
    folder = tmp_path_factory.mktemp("served")
    save_tiny_model(folder / "elmo", tokenizer=installed_tokenization("unicode", "split"))
    mlflow.pyfunc.save_model(
        folder / "model",
        python_model=str(Path(pyfunc.__file__)),
        artifacts={"model": str(folder / "elmo")},
        signature=pyfunc.make_signature(),
    )
    return mlflow.pyfunc.load_model(str(folder / "model"))


def post(model: mlflow.pyfunc.PyFuncModel, body: str) -> list[Any]:
    """What the server answers to a request."""
    schema = model.metadata.get_input_schema()
    answer = scoring_server.invocations(body, "application/json", model, schema)
    assert answer.status == 200
    return list(json.loads(answer.response)["predictions"])


def test_the_guides_request_and_what_mlflows_clients_send(
    served: mlflow.pyfunc.PyFuncModel,
) -> None:
    guide = (ROOT / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^curl -s .*$", guide, re.MULTILINE)
    words = shlex.split(command)
    (pooled,) = post(served, words[words.index("-d") + 1])
    text = "He has a gift for music"
    (tokens,) = post(served, json.dumps({"inputs": [text]}))
    assert len(tokens) == 6
    np.testing.assert_allclose(pooled, np.mean(tokens, axis=0), atol=1e-6)
    (example,) = re.findall(r"`({\"dataframe_split\".*})`", guide)
    bodies = [
        example,
        json.dumps({"dataframe_split": {"columns": ["tokens"], "data": [[["He", "has"]]]}}),
        json.dumps({"dataframe_records": [{"text": text, "id": 7}, {"text": "a gift"}]}),
        json.dumps({"inputs": [{"text": text}, {"text": None, "tokens": ["a"]}]}),
    ]
    lengths = [[len(one) for one in post(served, body)] for body in bodies]
    assert lengths == [[4], [2], [6, 2], [6, 1]]
    (none,) = post(served, json.dumps({"inputs": [""], "params": {"pooling": "mean"}}))
    assert set(none) == {0.0}


def test_a_table_as_csv_or_parquet_is_answered(served: mlflow.pyfunc.PyFuncModel) -> None:
    adapt = served.metadata.get_input_schema()
    text = "He has a gift, for music"
    table = pa.table({"text": [text, "a gift"], "id": [1, 2]})
    written = io.BytesIO()
    pq.write_table(table, written)
    csv_text = f'id,text\n1,"{text}"\n2,a gift\n'.encode()
    for data, kind in (
        (csv_text, "text/csv"),
        (csv_text, "text/csv; charset=utf-8"),
        (written.getvalue(), "application/x-parquet"),
    ):
        answer = scoring_server.invocations(data, kind, served, adapt)
        assert [len(one) for one in json.loads(answer.response)["predictions"]] == [7, 2]


DEEP = "[" * 100_000 + "]" * 100_000
MIXED = '{"inputs": ["a"], "params": {"layers": "%s", "gamma": %s}}'
WRONG: list[tuple[Any, str]] = [
    (f'{{"inputs": {DEEP}}}', "nested too deeply"),
    (f'{{"inputs": [{"9" * 5000}]}}', "the request must be JSON"),
    (f'{{"inputs": [{"9" * 40}]}}', "must be text or a list of tokens"),
    ('{"inputs": ["a"], "params": {"gamma": NaN}}', "NaN"),
    (MIXED % ("1,1,1", "1e999"), ""),
    (MIXED % ("1,1,1", "1e60"), "not all finite"),
    (MIXED % ("nan,1,1", "1"), "not all finite"),
    (MIXED % ("all", "null"), "gamma must have a"),
    ('{"inputs": ["a', "the request must be JSON"),
    ("[1]", "must be a JSON object"),
    (b'{"inputs": ["\xff"]}', "the request must be JSON"),
    ({"inputs": ["a"], "params": {"pooling": None}}, "pooling must have"),
    ({"inputs": ["a"], "params": [1]}, "params must be an object"),
    ({"inputs": ["a"], "params": {"layers": "middle"}}, "layers must be all, average, top"),
    ({"inputs": ["a"], "params": {"pooling": "sum"}}, "pooling must be none or mean"),
    ({"inputs": ["a"], "params": {"poolng": "mean"}}, "params must hold .* found poolng$"),
    ({"inputs": ["a"], "parms": {"pooling": "mean"}}, "request must hold .* found parms$"),
    ({}, "must hold inputs or a table"),
    ({"inputs": None}, "found None"),
    ({"inputs": ["a"], "dataframe_records": []}, "inputs or one table, found several"),
    ({"inputs": 3}, "must be a text, a list or a table, found 3"),
    ({"inputs": [{"txt": "a"}]}, "^the columns must be text or tokens, found txt$"),
    ({"inputs": {"text": "a"}}, "the column text must be a list, found 'a'"),
    ({"inputs": {"text": ["a"], "tokens": []}}, "the same number of rows, found text 1, tokens 0"),
    ({"inputs": [{"text": "a", "tokens": ["a"]}]}, "a row must have either text or tokens"),
    ({"dataframe_split": {"columns": ["txt", "id"], "data": [["a", 1]]}}, "found txt, id$"),
    ({"dataframe_split": {"columns": ["text"]}}, "must hold columns and data"),
    ({"dataframe_split": {"columns": ["text"], "data": [[]]}}, "a cell for each column"),
    ({"dataframe_split": {"columns": ["text"] * 2, "data": [["a", "b"]]}}, "must be distinct"),
    ({"dataframe_split": {"columns": [0], "data": [["a"]]}}, "found 0"),
    ({"dataframe_records": ["a"]}, "dataframe_records must be a list of records"),
]
PARAMS: list[tuple[Any, str]] = [
    ({"gamma": [1]}, r"gamma must be a number, found \[1\]"),
    ({"gamma": True}, "gamma must be a number, found True"),
    ({"poling": "mean"}, "params must hold layers, gamma, pooling, found poling"),
    (["mean"], r"params must be an object, found \['mean'\]"),
]


@pytest.mark.parametrize(("params", "says"), PARAMS)
def test_parameters_that_are_none(
    served: mlflow.pyfunc.PyFuncModel, params: Any, says: str
) -> None:
    with pytest.raises(mlflow.MlflowException, match=says):
        served.unwrap_python_model().predict(None, ["a"], params)


OTHER: list[tuple[Any, str, str | None]] = [
    ('{"inputs": ["a"]}', "content type must be", "text/plain"),
    ('{"inputs": ["a"]}', "content type must be", None),
    ("", "CSV with a header, found nothing", "text/csv"),
    ("txt\na\n", "the columns must be text or tokens, found txt", "text/csv"),
    ("tokens\n\"['a'\n 'b']\"\n", "tokens must be a list, found .* name the column", "text/csv"),
    ("text\na,b\n", "a cell for each column", "text/csv"),
    ('text\n"a\n', "must be CSV", "text/csv"),
    (b"text\n\xff\n", "must be CSV in UTF-8", "text/csv"),
    (b"nothing", "must be a Parquet file", "application/x-parquet"),
]


@pytest.mark.parametrize(
    ("body", "says", "kind"), [*((*case, "application/json") for case in WRONG), *OTHER]
)
def test_a_wrong_request_is_told_in_one_line_without_a_stack_trace(
    served: mlflow.pyfunc.PyFuncModel, body: Any, says: str, kind: str | None
) -> None:
    data = json.dumps(body) if isinstance(body, dict) else body
    with pytest.raises(mlflow.MlflowException) as error:
        scoring_server.invocations(data, kind, served, served.metadata.get_input_schema())
    assert re.search(says, error.value.message) and "\n" not in error.value.message
    assert error.value.get_http_status_code() == 400
    assert "stack_trace" not in json.loads(error.value.serialize_as_json())
