"""Findings: JSON files of scores with intervals, and with what is needed to measure them again."""

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from elmo.io.atomic import check_output_record, write_json
from elmo.io.records import Count, Sha256, read_record
from elmo.tasks.metrics import BOOTSTRAP_DRAWS, interval_over_seeds
from pipeline.terminal import urls

FindingKind = Literal[
    "elmo",
    "layers",
    "positions",
    "context",
    "models",
    "labels",
    "few",
    "senses",
    "probe",
    "neighbors",
]


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One row of a table.

    `low` and `high` are the 95% interval of `mean`: over seeds (Student's t) or, if no score
    depends on a seed, over sentences (bootstrap). For one seed they are None. `scores` are by seed.
    `extra` (`more` in the file) has other figures, such as the learned weight of each layer.
    """

    name: str
    mean: float
    low: float | None = None
    high: float | None = None
    scores: dict[str, float] = {}
    extra: dict[str, float] = msgspec.field(name="more", default_factory=dict)


class Finding(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON file of an experiment. `data` has the digests of the input files, by option."""

    format: Literal[1]
    kind: FindingKind
    task: str
    metric: str
    command: str
    model: Sha256
    data: dict[str, Sha256]
    examples: dict[str, Count]
    seeds: list[Count]
    settings: dict[str, str | int | float | bool | None | list[int]]
    rows: Annotated[list[Row], Meta(min_length=1)]
    neighbors: dict[str, dict[str, list[str]]] = {}


def write_finding(out: Path, finding: Finding) -> None:
    """Write a finding to the JSON file `out`."""
    write_json(out, msgspec.to_builtins(finding))


def read_finding(path: Path) -> Finding:
    """Read a finding from its JSON file; raise `ElmoError` if the file is not one."""
    return read_record(path, Finding)


def command_line() -> str:
    """Return the command line of this process, without passwords in URLs."""
    return urls.hide_credentials_in(shlex.join(["python", "-m", "research", *sys.argv[1:]]))


def mean_row(name: str, scores: Sequence[float], extra: Mapping[str, float]) -> Row:
    """Return a row with the mean of the scores of all seeds and its interval (Student's t)."""
    low, high = interval_over_seeds(scores) or (None, None)
    score_by_seed = {str(seed): score for seed, score in enumerate(scores)}
    return Row(name, statistics.fmean(scores), low, high, score_by_seed, dict(extra))


def bootstrap_row(name: str, answers: npt.NDArray[Any], lengths: Sequence[int]) -> Row:
    """Return a row with the mean of `answers` and its bootstrap interval over sentences.

    `answers` has a value for each answer: whether it is right, or the difference (-1, 0 or 1)
    between two layers. `lengths` are the numbers of answers in each sentence.
    """
    starts = np.cumsum([0, *lengths[:-1]])
    sums, sizes = np.add.reduceat(answers.astype(np.int64), starts), np.asarray(lengths)
    rng = np.random.default_rng(0)
    draws = (rng.integers(len(sizes), size=len(sizes)) for _ in range(BOOTSTRAP_DRAWS))
    means = [sums[rows].sum() / sizes[rows].sum() for rows in draws]
    low, high = np.quantile(means, (0.025, 0.975))
    return Row(name, float(answers.mean()), float(low), float(high))


def check_replaceable(out: Path) -> None:
    """Raise `ElmoError` if `out` exists and is not a finding, so that it is not overwritten."""
    check_output_record(out, Finding)
