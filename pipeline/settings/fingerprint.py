"""The key of work in progress."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from elmo.io.records import digest


def plain(params: Any) -> dict[str, Any]:
    """A section of params, or a record, as a dictionary."""
    value = msgspec.to_builtins(params) if isinstance(params, msgspec.Struct) else asdict(params)
    return dict(value)


def fingerprint(stage: str, version: int, params: Any, inputs: Mapping[str, str]) -> str:
    """A digest of a stage, the version of its results, its params and the digests of its inputs."""
    key = {"stage": stage, "results": version, "params": plain(params), "inputs": dict(inputs)}
    return digest(key)[:16]
