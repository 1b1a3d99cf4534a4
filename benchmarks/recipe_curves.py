"""A picture of the curves that benchmarks.recipes left.

    python -m benchmarks.recipe_curves OUT.png "NAME=FOLDER" ...

A line for the training perplexity of each folder (means of ten steps, under the training softmax)
and points for the held-out perplexity (full softmax, both directions), over tokens read each way.
The last steps of an epoch, when few rows still read, are left out of the lines.
"""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("curves", nargs="+", metavar="NAME=FOLDER")
    options = parser.parse_args()
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, curve in enumerate(options.curves):
        name, folder = curve.rsplit("=", 1)
        color = f"C{number}"
        tokens, training = _read(Path(folder) / "train.tsv", "perplexity")
        axes.plot(tokens, training, color=color, linewidth=1, alpha=0.6)
        tokens, heldout = _read(Path(folder) / "heldout.tsv", "average")
        label = f"{name}: held-out {heldout[-1]:.0f}"
        axes.plot(tokens, heldout, "o-", color=color, markersize=5, label=label)
    axes.set(yscale="log", xlabel="million tokens read each way", ylabel="perplexity")
    ticks = [50, 100, 200, 400, 800, 1600, 3200, 6400]
    axes.set_yticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(top=6400)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=110, metadata={"Software": None})


def _read(path: Path, column: str) -> tuple[list[float], list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    tokens = [int(row["tokens"]) / 1e6 for row in rows]
    least = 0.9 * (tokens[0] if column == "perplexity" else 0)
    kept = [k for k in range(len(rows)) if tokens[k] - (tokens[k - 1] if k else 0) >= least]
    return [tokens[k] for k in kept], [float(rows[k][column]) for k in kept]


if __name__ == "__main__":
    main()
