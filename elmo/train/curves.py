"""The training curves: means over recent steps, and tables of them."""

import math
from dataclasses import dataclass

from elmo.io.folders import new_folder
from elmo.io.location import Location

CURVES = {
    "train.tsv": ("step", "tokens", "perplexity", "lr", "gradient_norm", "clipped"),
    "heldout.tsv": ("step", "tokens", "forward", "backward", "average"),
}


def write_empty_curves(out: Location) -> None:
    """Write a folder `out` of curves without rows, `train.tsv` and `heldout.tsv`, for a model that
    was not trained."""
    with new_folder(out, required=tuple(CURVES), pattern="") as new_curves:
        for name, columns in CURVES.items():
            (new_curves / name).write_text("\t".join(columns) + "\n", encoding="utf-8")


@dataclass
class StepSums:
    """The sums of the figures of all steps since the last report, to compute their means.

    They are part of a checkpoint, so that resumed training reports the same means.
    """

    steps: int = 0
    nats: float = 0.0  # the sum of both directions
    predictions: int = 0  # in each direction
    norm: float = 0.0
    clipped: int = 0

    def add(self, *, nats: float, predictions: int, norm: float, was_clipped: bool) -> None:
        """Add the figures of one step: −log p of both directions in nats, predictions per
        direction, gradient norm, and whether it was clipped."""
        self.steps += 1
        self.nats += nats
        self.predictions += predictions
        self.norm += norm
        self.clipped += was_clipped

    @property
    def nats_per_prediction(self) -> float:
        """Return the mean −log p of a prediction, in nats, over both directions."""
        return self.nats / 2 / self.predictions

    def curve_row(self) -> dict[str, float]:
        """Return the means over these steps as a row of the training curve: `perplexity`,
        `gradient_norm`, and `clipped`, the share of steps with clipped gradients."""
        return {
            "perplexity": math.exp(self.nats_per_prediction),
            "gradient_norm": self.norm / self.steps,
            "clipped": self.clipped / self.steps,
        }


class Curves:
    """The training curves of one run: tables in `folder`, with one row per report.

    They are kept in memory and rewritten by `flush`, because files at a URL cannot be appended to.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self._rows: dict[str, list[str]] = {name: [] for name in CURVES}

    def resume(self, step: int) -> None:
        """Read the rows up to step `step`, drop later rows, and write the files again; call this
        before training continues from that step (0: from the beginning)."""
        for name, columns in CURVES.items():
            text = self.folder.read(name).decode() if step and self.folder.exists(name) else ""
            rows = [line for line in text.splitlines()[1:] if line.count("\t") == len(columns) - 1]
            self._rows[name] = [row for row in rows if _step_of_row(row) <= step]
        self.flush()

    def add(self, name: str, row: dict[str, float]) -> None:
        """Add a row, figures by column, to the table `train.tsv` or `heldout.tsv`, and drop rows of
        the same or later steps. `flush` writes the table."""
        rows = self._rows[name]
        while rows and _step_of_row(rows[-1]) >= int(row["step"]):
            rows.pop()
        rows.append("\t".join(f"{row[column]:.10g}" for column in CURVES[name]))

    def flush(self) -> None:
        """Write all tables to the folder."""
        for name, columns in CURVES.items():
            lines = ["\t".join(columns), *self._rows[name]]
            self.folder.write(name, "".join(f"{line}\n" for line in lines).encode())


def _step_of_row(row: str) -> int:
    return int(row.split("\t")[0])
