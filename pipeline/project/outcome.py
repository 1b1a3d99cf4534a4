"""The lines that end a run of the whole pipeline: results, scores, and what to do next."""

import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.io.records import read_record

from ..stages import STAGES, load_stage

if TYPE_CHECKING:
    from ..stages.stage import Stage


def outcome_lines(
    commands: Iterable[str], tracked: Sequence[str], *, started_from: str = ""
) -> list[str]:
    """Return the three lines at the end of `elmo run`: what was made, its scores, what to do next.

    `commands` are those of the project's stages, as in dvc.yaml; `tracked` are the files that the
    user should commit to git; `started_from` is the model that the settings name, if any.
    """
    made: list[str] = []
    scored: list[str] = []
    for command in commands:
        if not (name := stage_of(command)):
            continue
        words, stage = shlex.split(command), load_stage(name)
        if stage.product and Path(product := stage.product.format(out=_out(words))).name:
            made += [product] if Path(product.split(" ", 1)[1]).exists() else []
        if score := _score(stage, words, started_from):
            scored.append(score)
    return [
        f"made:   {', '.join(made) or 'nothing yet'}",
        f"scored: {'; '.join(scored) or 'nothing yet'}",
        f"next:   {'; '.join(_next(made, tracked))}",
    ]


def stage_of(command: str) -> str:
    """Return the name of the stage that a command of dvc.yaml runs; empty if it is not ours."""
    words = shlex.split(command)
    ours = words[:3] == ["python", "-m", "elmo_pipeline"] and words[3] in STAGES
    return words[3] if ours else ""


def _out(words: Sequence[str]) -> str:
    """The stage's own output: the last of what stands before the options."""
    options = [index for index, word in enumerate(words) if word.startswith("--")]
    return words[min(options, default=len(words)) - 1]


def _score(stage: "Stage", words: Sequence[str], started_from: str) -> str:
    """The score among the numbers of a stage, which stand in the file that its command names."""
    if stage.score is None or "--numbers" not in words:
        return ""
    file = Path(words[words.index("--numbers") + 1])
    if not file.is_file():
        return ""
    subject = [
        word for one, word in zip(stage.inputs, words[4:], strict=False) if one.kind == "word"
    ]
    return " ".join([*subject, stage.score(read_record(file, stage.numbers), started_from)])


def _next(made: Sequence[str], tracked: Sequence[str]) -> list[str]:
    """The steps that a newcomer may take from here."""
    steps = [f"open {one.removeprefix('report ')}" for one in made if one.startswith("report ")]
    if _changed(tracked):
        tracked = [*tracked, *(["params.yaml"] if _changed(["params.yaml"]) else [])]
        steps.append(f"keep these numbers: git add {' '.join(tracked)} && git commit -m Results")
    steps.append("compare runs: dvc metrics diff")
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        steps.append("curves: mlflow ui --backend-store-uri sqlite:///mlflow.db")
    return steps


def _changed(tracked: Sequence[str]) -> bool:
    """Tell whether git would commit something of these files."""
    if not tracked:
        return False
    command = ["git", "status", "--porcelain", "--", *tracked]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout)
