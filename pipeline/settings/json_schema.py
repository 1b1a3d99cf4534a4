"""The settings of `params` as a JSON schema for editors, and the description of each."""

import ast
import inspect
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args

import msgspec

FILE = "params.schema.json"  # beside params.yaml
HEADER = f"# yaml-language-server: $schema={FILE}\n"


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of `kind`, a dataclass of settings: types, ranges and descriptions.

    Unknown keys are not allowed.
    """
    generated = msgspec.json.schema(kind)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}
    by_name = {one.__name__: one for one in _classes(kind)}
    for name, section in schema["$defs"].items():
        section["additionalProperties"] = False
        section["description"] = inspect.cleandoc(section["description"])
        for key, text in field_descriptions(by_name[name]).items():
            field = section["properties"][key]
            values = field.get("description")
            field["description"] = f"{text} ({values})" if values else text
    _use_json_patterns(schema)
    return schema


@cache
def field_descriptions(kind: type) -> dict[str, str]:
    """Return the description of each field of a dataclass: the string below it in the source."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _classes(kind: type) -> list[type]:
    """A dataclass and those of its fields."""
    inner = [t for field in fields(kind) for t in (field.type, *get_args(field.type))]
    return [
        kind,
        *(c for t in inner if isinstance(t, type) and is_dataclass(t) for c in _classes(t)),
    ]


def _use_json_patterns(node: Any) -> None:
    """Patterns as JSON schema writes them: it knows ^ and $ alone."""
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            node["pattern"] = node["pattern"].replace(r"\A", "^").replace(r"\Z", "$")
        for value in node.values():
            _use_json_patterns(value)
    elif isinstance(node, list):
        for value in node:
            _use_json_patterns(value)
