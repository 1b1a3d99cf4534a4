"""The curves of a training: its running means, and the files that hold them."""

import math
from dataclasses import dataclass

from elmo.io.folders import new_folder
from elmo.io.location import Location

CURVES = {
    "train.tsv": ("step", "tokens", "perplexity", "lr", "gradient_norm", "clipped"),
    "heldout.tsv": ("step", "tokens", "forward", "backward", "average"),
}


def write_empty(out: Location) -> None:
    """Write the curves of a model that was taken as it is: no row."""
    with new_folder(out, ours=tuple(CURVES), also="") as new:
        for name, columns in CURVES.items():
            (new / name).write_text("\t".join(columns) + "\n", encoding="utf-8")


@dataclass
class Means:
    """Sums over the steps since the last report; part of a checkpoint."""

    steps: int = 0
    nats: float = 0.0  # of both directions
    predictions: int = 0  # in each direction
    norm: float = 0.0
    clipped: int = 0

    def add(self, *, nats: float, predictions: int, norm: float, clipped: bool) -> None:
        """Add one step."""
        self.steps += 1
        self.nats += nats
        self.predictions += predictions
        self.norm += norm
        self.clipped += clipped

    @property
    def nats_per_prediction(self) -> float:
        """The mean −log p."""
        return self.nats / 2 / self.predictions

    def row(self) -> dict[str, float]:
        """Return what a curve shows of these steps."""
        return {
            "perplexity": math.exp(self.nats_per_prediction),
            "gradient_norm": self.norm / self.steps,
            "clipped": self.clipped / self.steps,
        }


class Curves:
    """The curves of one run: tables in `folder`, one row per report.

    They are kept in memory and written whole by `flush`, since no file at a URL can be added to.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self._rows: dict[str, list[str]] = {name: [] for name in CURVES}

    def resume(self, step: int) -> None:
        """Take the rows that were written up to the checkpoint of a step, and only those."""
        for name, columns in CURVES.items():
            old = self.folder.read(name).decode() if step and self.folder.exists(name) else ""
            rows = [line for line in old.splitlines()[1:] if line.count("\t") == len(columns) - 1]
            self._rows[name] = [row for row in rows if _step(row) <= step]
        self.flush()

    def add(self, name: str, row: dict[str, float]) -> None:
        """Add a row, in place of one of the same step or later."""
        rows = self._rows[name]
        while rows and _step(rows[-1]) >= int(row["step"]):
            rows.pop()
        rows.append("\t".join(f"{row[column]:.10g}" for column in CURVES[name]))

    def flush(self) -> None:
        """Write the files."""
        for name, columns in CURVES.items():
            lines = ["\t".join(columns), *self._rows[name]]
            self.folder.write(name, "".join(f"{line}\n" for line in lines).encode())


def _step(row: str) -> int:
    return int(row.split("\t")[0])
