"""The version of each stage's results: raised when the code changes what a stage writes.

DVC sees params and files, not code. So the number is in `params.yaml` too, where DVC sees it, and
in the fingerprint of work in progress; where the two differ, the stage refuses to run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from elmo.errors import ElmoError
from elmo.io.records import digest
from elmo.settings import Positive


@dataclass(frozen=True)
class Results:
    """One version per stage."""

    corpus: Positive
    """The version of what corpus writes, as this file was made for."""
    tokenize: Positive
    """The version of what tokenize writes, as this file was made for."""
    vocab: Positive
    """The version of what vocab writes, as this file was made for."""
    pretrain: Positive
    """The version of what pretrain writes, as this file was made for."""
    finetune: Positive
    """The version of what finetune writes, as this file was made for."""
    features: Positive
    """The version of what features writes, as this file was made for."""
    register: Positive
    """The version of what register writes, as this file was made for."""
    labels: Positive
    """The version of what labels writes, as this file was made for."""
    tasks: Positive
    """The version of what tasks writes, as this file was made for."""
    report: Positive
    """The version of what report writes, as this file was made for."""


RESULTS = Results(
    corpus=1,
    tokenize=2,
    vocab=2,
    pretrain=3,
    finetune=3,
    features=4,
    register=2,
    labels=1,
    tasks=5,
    report=2,
)


def check(stage: str, declared: Results, params_file: Path) -> None:
    """Refuse a stage whose version in `params.yaml` is not that of the code."""
    code, stated = version(stage), getattr(declared, stage)
    if code != stated:
        raise ElmoError(
            f"{params_file}: results.{stage} is {stated} and this code's is {code}; set "
            f"results.{stage} to {code}, and dvc repro makes the stage's results again"
        )


def version(stage: str) -> int:
    """The version of a stage's results in this code; 1 for a command that is no stage."""
    return int(getattr(RESULTS, stage, 1))


def plain(params: Any) -> dict[str, Any]:
    """A section of params, or a record, as a dictionary."""
    value = msgspec.to_builtins(params) if isinstance(params, msgspec.Struct) else asdict(params)
    return dict(value)


def fingerprint(stage: str, params: Any, inputs: Mapping[str, str]) -> str:
    """What work in progress is keyed by: params, inputs, and the results version of the code."""
    key = {
        "stage": stage,
        "results": version(stage),
        "params": plain(params),
        "inputs": dict(inputs),
    }
    return digest(key)[:16]
