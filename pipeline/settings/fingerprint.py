"""The digest that identifies a stage's work in progress."""

from collections.abc import Mapping
from typing import Any

import msgspec

from elmo.io.records import digest


def to_plain_dict(params: Any) -> dict[str, Any]:
    """Convert params or a dictionary to a dictionary of plain values."""
    return dict(msgspec.to_builtins(params))


def fingerprint(stage: str, version: int, params: Any, inputs: Mapping[str, str]) -> str:
    """Return a digest of a stage's name and version, its params and the digests of its inputs.

    Work in progress is resumed only if the digest is the same.
    """
    arguments = {"params": to_plain_dict(params), "inputs": dict(inputs)}
    return digest({"stage": stage, "results": version, **arguments})[:16]
