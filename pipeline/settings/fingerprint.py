"""The digest that identifies a stage's work in progress."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from elmo.io.records import digest


def to_plain(params: Any) -> dict[str, Any]:
    """Return a section of params, or a record, as a dictionary of plain values."""
    value = msgspec.to_builtins(params) if isinstance(params, msgspec.Struct) else asdict(params)
    return dict(value)


def fingerprint(stage: str, version: int, params: Any, inputs: Mapping[str, str]) -> str:
    """Return a digest of a stage's name and version, its params and the digests of its inputs.

    Work in progress is resumed only if the digest is the same.
    """
    key = {"stage": stage, "results": version, "params": to_plain(params), "inputs": dict(inputs)}
    return digest(key)[:16]
