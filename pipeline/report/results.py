"""The results that the report shows, read from the files that the stages wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.data.tables import read_table
from elmo.errors import ElmoError, Mismatch
from elmo.io.location import Location
from elmo.io.records import read_json, read_record
from elmo.io.text_files import numbered_lines

if TYPE_CHECKING:
    from elmo.store import FeatureStore

    from ..stages.register import RegisterRecord
    from .plots import Curve

FIGURE_FILES = ("tokenize-general", "tokenize-domain", "pretrain", "finetune")
COLUMNS = {"train": ("tokens", "perplexity"), "heldout": ("tokens", "average")}
JsonObject = dict[str, Any]  # an object of a JSON file


@dataclass(frozen=True)
class Results:
    """The results of a run of the pipeline, read from its files."""

    figures: Mapping[str, JsonObject]
    """The figures of each stage."""
    tasks: Mapping[str, JsonObject]
    """The figures of each task."""
    training: JsonObject
    """The model's `training.json`."""
    network: JsonObject
    registered: "RegisterRecord"
    """The file that register wrote."""
    started_from: str
    """The model trained elsewhere from which the project starts; "" if it pretrained its own."""
    curves: "dict[str, dict[str, Curve]]"
    """The curves of each stage that trained, by the stage's label and the curves' file name."""
    store: "FeatureStore"

    @property
    def scores(self) -> JsonObject:
        """Return the model's held-out figures by time, text and name, as in `training.json`.

        For example, `scores["after"]["domain"]["average"]` is its perplexity on the domain text.
        "before" has the figures of the pretrained model with the fine-tuned model's vocabulary; it
        is absent if nothing was fine-tuned.
        """
        return self.training["perplexity"]

    @property
    def is_tuned(self) -> bool:
        """Tell whether the model was fine-tuned."""
        return "steps" in self.figures["finetune"]


def read_results(
    *,
    figures_folder: Path,
    curves: Path,
    model: Path,
    store: Location,
    registration_file: Path,
    tasks: Sequence[str],
    model_name: str,
) -> Results:
    """Read the results of all stages and of `tasks`; raise `ElmoError` if one is missing.

    The stages wrote the folders `figures_folder`, `curves`, `model` and `store`, and
    `registration_file`. `model_name` is the model that the settings name to start from, "" if none.
    """
    from elmo.store import FeatureStore

    figures = {name: read_json(figures_folder / f"{name}.json") for name in FIGURE_FILES}
    scores_by_task = {name: read_json(figures_folder / f"tasks-{name}.json") for name in tasks}
    training = read_json(model / "training.json")
    feature_store = FeatureStore(store, model=model, checked=True)
    registration = _read_registration(registration_file, feature_store)
    is_trained, is_finetuned = ("steps" in figures[stage] for stage in ("pretrain", "finetune"))
    return Results(
        figures=figures,
        tasks=scores_by_task,
        training=training,
        network=read_json(model / "config.json")["model"],
        registered=registration,
        started_from="" if is_trained else model_name or "a pretrained model",
        curves=_choose_curves(curves, training["perplexity"], is_trained, is_finetuned),
        store=feature_store,
    )


def _read_registration(path: Path, store: "FeatureStore") -> "RegisterRecord":
    from ..stages.register import RegisterRecord

    registration = read_record(path, RegisterRecord)
    model = store.model
    if registration.model_digest != model:
        raise Mismatch(
            f"{path}: names model {registration.model_digest[:12]}…, but the store was made by "
            f"{model[:12]}…; run: elmo run register"
        )
    return registration


def _choose_curves(
    folder: Path, perplexities: JsonObject, is_trained: bool, is_finetuned: bool
) -> dict[str, dict[str, "Curve"]]:
    """Return the curves of the stages that trained; fine-tuning's begin before its first step."""
    pretrain, finetune = (
        {name: _read_columns(folder / stage / f"{name}.tsv", COLUMNS[name]) for name in COLUMNS}
        for stage in ("pretrain", "finetune")
    )
    curves_by_label = {"pretraining on general text": pretrain} if is_trained else {}
    if not is_finetuned:
        return curves_by_label
    heldout = finetune["heldout"]
    heldout["tokens"].insert(0, 0.0)
    heldout["average"].insert(0, perplexities["before"]["domain"]["average"])
    return curves_by_label | {"fine-tuning on domain text": finetune}


def _read_columns(path: Path, names: tuple[str, ...]) -> "Curve":
    lines = (f"{line}\n" for _, line in numbered_lines(path))
    header, *rows = [row for _, row in read_table(lines, delimiter="\t", source=path)] or [[]]
    try:
        columns = {name: header.index(name) for name in names}
        return {name: [float(row[k]) for row in rows] for name, k in columns.items()}
    except ValueError as error:
        stage = path.parent.name
        raise ElmoError(f"{path}: is no curve ({error}); run: elmo run --force {stage}") from None
