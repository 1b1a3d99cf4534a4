"""The curves of a training: its running means, and the files that hold them."""

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

CURVES = {
    "train.tsv": ("step", "tokens", "perplexity", "lr", "gradient_norm", "clipped"),
    "heldout.tsv": ("step", "tokens", "forward", "backward", "average"),
}


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
        """What a curve shows of these steps."""
        return {
            "perplexity": math.exp(self.nats_per_prediction),
            "gradient_norm": self.norm / self.steps,
            "clipped": self.clipped / self.steps,
        }


@dataclass(frozen=True)
class Curves:
    """The curves of one run: tables in `folder`, one row per report."""

    folder: Path
    columns: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(CURVES))

    def cut(self, step: int) -> None:
        """Start the curves, or drop what was written after the checkpoint of a step."""
        for name in self.columns:
            self._cut(name, step)

    def add(self, name: str, row: dict[str, float]) -> None:
        """Add a row, in place of one that a run killed since wrote of the same step."""
        self._cut(name, int(row["step"]) - 1)
        with (self.folder / name).open("a", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerow(
                [f"{row[column]:.10g}" for column in self.columns[name]]
            )

    def _cut(self, name: str, step: int) -> None:
        path, columns = self.folder / name, self.columns[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text() if path.exists() else ""
        kept = [line for line in old.splitlines()[1:] if line.count("\t") == len(columns) - 1]
        kept = [line for line in kept if int(line.split("\t")[0]) <= step]
        new = "".join(f"{line}\n" for line in ["\t".join(columns), *kept])
        if new != old:
            path.write_text(new)
