"""MLflow's scoring server, adapted to models that check their input themselves.

For such a model MLflow refuses tables, ignores unknown names in a request, and answers an error
with the whole request over several lines. MLflow is not imported here. The functions that are
replaced are private to it: a version that lacks them keeps its own behaviour.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elmo.errors import ElmoError

TABLES = ("dataframe_split", "dataframe_records")
_LONGEST = 1000  # characters of a message


def adapt_scoring_server() -> None:
    """Let MLflow's server, if this process is one, take tables, refuse names that it does not know,
    and answer errors in one line, for models that check their input themselves; do nothing in
    another process."""
    server = sys.modules.get("mlflow.pyfunc.scoring_server")
    needed = ("_parse_json_data", "_decode_json_input", "invocations")
    if server is None or hasattr(server, "adapted"):
        return
    if not all(hasattr(server, name) for name in needed):
        return
    answer, parse = server.invocations, server._parse_json_data

    def answer_in_one_line(data: Any, content_type: str, model: Any, schema: Any) -> Any:
        try:
            return answer(data, content_type, model, schema)
        except server.MlflowException as error:
            if model.metadata._is_signature_from_type_hint():
                said = error.message.rpartition("\nError: ")[2]  # before it stands the request
                error.message = " ".join(said.split())[:_LONGEST]
            raise

    def parse_checked(data: Any, metadata: Any, schema: Any) -> Any:
        body = server._decode_json_input(data)
        if metadata._is_signature_from_type_hint():
            known = metadata.get_params_schema()
            try:
                body = request_of_items(body, [one.name for one in known.params] if known else [])
            except ElmoError as error:
                raise server.MlflowException(str(error), server.BAD_REQUEST) from None
        return parse(json.dumps(body), metadata, schema)

    patched: Mapping[str, Callable[..., Any]] = {
        "invocations": answer_in_one_line,
        "_parse_json_data": parse_checked,
    }
    vars(server).update(patched, adapted=True)


def request_of_items(body: Mapping[str, Any], params: Iterable[str]) -> dict[str, Any]:
    """Return the JSON body of a request to MLflow's server with items as `inputs`: those given, or
    the rows of a table.

    `ElmoError` is raised for a malformed table, and for names that are not known, which might be a
    slip; `params` are the names of parameters that the model knows.
    """
    _check_names("the request", body, ("inputs", *TABLES, "params"))
    if isinstance(given := body.get("params"), dict):
        _check_names("params", given, params)
    request = {name: value for name, value in body.items() if name not in TABLES}
    for name in TABLES:
        if name in body:
            if "inputs" in request:
                raise ElmoError("the request must hold inputs or one table, found several")
            rows = body[name] if name == "dataframe_records" else _rows(body[name])
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ElmoError(f"{name} must be a list of records, found {rows!r:.80}")
            request["inputs"] = rows
    if "inputs" not in request:
        raise ElmoError("the request must hold inputs or a table, found neither")
    return request


def _check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    if unknown := [str(name) for name in given if name not in known]:
        expected = ", ".join(known) or "nothing"
        raise ElmoError(f"{where} must hold {expected}, found {', '.join(unknown)}")


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a table that is split into columns and data."""
    columns, data = (
        table.get(name) if isinstance(table, dict) else None for name in ("columns", "data")
    )
    if not isinstance(columns, list) or not isinstance(data, list):
        raise ElmoError(f"dataframe_split must hold columns and data, found {table!r:.80}")
    for row in data:
        if not isinstance(row, list) or len(row) != len(columns):
            raise ElmoError(f"a row must have a cell for each column, found {row!r:.80}")
    return [dict(zip(map(str, columns), row, strict=True)) for row in data]
