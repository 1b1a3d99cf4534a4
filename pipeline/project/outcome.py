"""The lines that end a run of the whole pipeline: products, scores, and what to do next."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.io.records import read_record

from ..settings import params
from ..stages import STAGES, load_stage

if TYPE_CHECKING:
    from ..stages.stage import Stage


def outcome_lines() -> list[str]:
    """Return the three lines at the end of `elmo run`: products, scores, what to do next.

    Read `dvc.yaml` and `dvc.lock` in the current folder. A stage's product is the out that its
    command names first; the order of the list of outs means nothing, because `dvc freeze` sorts it.
    """
    project, lock = _read_stages("dvc.yaml"), _read_stages("dvc.lock")
    model = params.load(Path("params.yaml")).pretrain.model if "pretrain" in lock else ""
    products: list[str] = []
    scores: list[str] = []
    for stage, key, outs in _list_own_stages(project, lock):
        product = stage.product.format(out=outs[0]) if stage.product and outs else ""
        if product and Path(product.split(" ", 1)[1]).exists():
            products.append(product)
        files = [Path(out) for out in outs if Path(out).parent.name == "numbers"]
        if stage.describe_score is not None and files and files[0].is_file():
            score = stage.describe_score(read_record(files[0], stage.figures_type), model)
            scores += [f"{key} {score}".strip()] if score else []
    return [
        f"made:   {', '.join(products) or 'nothing yet'}",
        f"scored: {'; '.join(scores) or 'nothing yet'}",
        f"next:   {'; '.join(_next_steps(products))}",
    ]


def _read_stages(name: str) -> dict[str, Any]:
    """Return the stages in one of DVC's files, by name; none if there is no such file."""
    import yaml

    if not Path(name).exists():
        return {}
    return (yaml.safe_load(Path(name).read_text(encoding="utf-8")) or {}).get("stages") or {}


def _list_own_stages(
    project: Mapping[str, Any], lock: Mapping[str, Any]
) -> "Iterator[tuple[Stage, str, list[str]]]":
    """Yield our stages that have run, each with its `foreach` key and the paths of its outs.

    The key is empty for a stage without `foreach`.
    """
    for name, entry in project.items():
        for key in (item.partition("@")[2] for item in lock if item.partition("@")[0] == name):
            if name in STAGES:
                entry = entry.get("do", entry)
                outs = sorted(map(_path_of_out, entry.get("outs", ())), key=str(entry["cmd"]).find)
                paths = [item.replace("${key}", key).replace("${item}", key) for item in outs]
                yield load_stage(name), key, paths


def _path_of_out(out: str | Mapping[str, Any]) -> str:
    """Return the path of an out, which may have options."""
    return out if isinstance(out, str) else next(iter(out))


def _next_steps(products: Sequence[str]) -> list[str]:
    """Return the next steps for a new user."""
    pages = [product for product in products if product.startswith("report ")]
    steps = [page.replace("report ", "open ", 1) for page in pages]
    steps += ["keep these numbers: git add dvc.lock metrics params.yaml && git commit"]
    steps += ["compare runs: dvc metrics diff"]
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        steps.append("curves: mlflow ui --backend-store-uri sqlite:///mlflow.db")
    return steps
