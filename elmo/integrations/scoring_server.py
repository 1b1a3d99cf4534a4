"""Adapts MLflow's scoring server to models that check their input themselves.

For such a model MLflow refuses tables, ignores unknown names in a request, and answers an error
with the whole request and a stack trace. MLflow is not imported here. A version of MLflow without
the function replaced here is left unchanged.
"""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from elmo.data.texts import check_column_names, list_items
from elmo.errors import ElmoError

TABLE_KEYS = ("dataframe_split", "dataframe_records")
_MAX_MESSAGE_CHARACTERS = 1000  # characters of a message


def adapt_scoring_server() -> None:
    """Make MLflow's server accept tables, refuse unknown names, and answer each bad request with
    status 400 and one line; do nothing unless this process is such a server."""
    server = sys.modules.get("mlflow.pyfunc.scoring_server")
    if server is None or hasattr(server, "adapted") or not hasattr(server, "invocations"):
        return

    def answer_request(data: Any, content_type: str | None, model: Any, schema: Any) -> Any:
        valid_params = model.metadata.get_params_schema()
        try:
            items, params = read_request(
                data,
                content_type or "",
                [param.name for param in valid_params.params] if valid_params else [],
            )
            text = io.StringIO()
            server.predictions_to_json(model.predict(items, params=params), text)
        except (ElmoError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise server.MlflowException(_to_one_line(str(error)), server.BAD_REQUEST) from None
        except server.MlflowException as error:
            raise server.MlflowException(_to_one_line(error.message), server.BAD_REQUEST) from None
        return server.InvocationsResponse(text.getvalue(), 200, "application/json")

    vars(server).update(invocations=answer_request, adapted=True)


def _to_one_line(message: str) -> str:
    return " ".join(message.split())[:_MAX_MESSAGE_CHARACTERS]


def read_request(
    data: bytes | str, content_type: str, params: Iterable[str]
) -> tuple[Any, dict[str, Any] | None]:
    """Return the items of a request to MLflow's server, and its parameters if it has any.

    A request is JSON with `inputs` or a table, CSV with a header, or Parquet. Raises `ElmoError`
    for a malformed request, or for unknown names, which might be typing errors; `params` are the
    names of the model's parameters.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "text/csv":
        return _csv_rows(data), None
    if media_type == "application/x-parquet":
        return _parquet_rows(data), None
    if media_type != "application/json":
        raise ElmoError(
            "the request's content type must be application/json, text/csv or "
            f"application/x-parquet, found {content_type or 'none'}"
        )
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ElmoError("the request is nested too deeply") from None
    except ValueError as error:
        raise ElmoError(f"the request must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise ElmoError(f"the request must be a JSON object with inputs, found {body!r:.80}")
    body = build_request(body, params)
    request_params = body.get("params")
    if request_params is not None and not isinstance(request_params, dict):
        raise ElmoError(f"params must be an object, found {request_params!r:.80}")
    if null_names := [name for name, value in (request_params or {}).items() if value is None]:
        raise ElmoError(f"params: {null_names[0]} must have a value, found null; leave it out")
    return body["inputs"], request_params


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _csv_rows(data: bytes | str) -> list[dict[str, str | None]]:
    """Return the rows of CSV with a header; an empty cell is None."""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        rows = list(csv.reader(io.StringIO(text), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ElmoError(f"the request must be CSV in UTF-8 ({error})") from None
    if not rows:
        raise ElmoError("the request must be CSV with a header, found nothing")
    cells = [[cell or None for cell in row] for row in rows[1:] if row]
    return _split_table_rows({"columns": rows[0], "data": cells})


def _parquet_rows(data: bytes | str) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list_items(pq.read_table(pa.BufferReader(data)))
    except (pa.ArrowException, OSError, TypeError) as error:
        raise ElmoError(f"the request must be a Parquet file ({error})") from None


def build_request(body: Mapping[str, Any], params: Iterable[str]) -> dict[str, Any]:
    """Return the JSON body of a request to MLflow's server with its items as `inputs`: those given,
    or the rows of a table.

    Raises `ElmoError` for a malformed table, or for unknown names, which might be typing errors;
    `params` are the names of the model's parameters.
    """
    check_names("the request", body, ("inputs", *TABLE_KEYS, "params"))
    if isinstance(request_params := body.get("params"), dict):
        check_names("params", request_params, params)
    request = {name: value for name, value in body.items() if name not in TABLE_KEYS}
    for name in TABLE_KEYS:
        if name in body:
            if "inputs" in request:
                raise ElmoError("the request must hold inputs or one table, found several")
            rows = body[name] if name == "dataframe_records" else _split_table_rows(body[name])
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ElmoError(f"{name} must be a list of records, found {rows!r:.80}")
            request["inputs"] = rows
    if "inputs" not in request:
        raise ElmoError("the request must hold inputs or a table, found neither")
    return request


def check_names(subject: str, names: Iterable[str], valid_names: Iterable[str]) -> None:
    """Raise `ElmoError`, which begins with `subject`, if some of the names are not valid."""
    valid_names = list(valid_names)
    if unknown_names := [str(name) for name in names if name not in valid_names]:
        expected = ", ".join(valid_names) or "nothing"
        raise ElmoError(f"{subject} must hold {expected}, found {', '.join(unknown_names)}")


def _split_table_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a table given as a list of columns and a list of rows."""
    columns, data = (
        table.get(name) if isinstance(table, dict) else None for name in ("columns", "data")
    )
    if not isinstance(columns, list) or not isinstance(data, list):
        raise ElmoError(f"dataframe_split must hold columns and data, found {table!r:.80}")
    check_column_names(columns)
    for row in data:
        if not isinstance(row, list) or len(row) != len(columns):
            raise ElmoError(f"a row must have a cell for each column, found {row!r:.80}")
    return [dict(zip(map(str, columns), row, strict=True)) for row in data]
