"""A picture of the curves of benchmarks.recipes.

    python -m benchmarks.recipe_curves OUT.png RECORDS.json [NAME ...] [--whole]

RECORDS.json holds records of benchmarks.recipes by name; default: all of them. For each a line of
the training perplexity (means of ten steps, under the training softmax) and points of the held-out
perplexity (full softmax, both directions), over tokens read each way. The last steps of an epoch,
when few rows still read, are left out of the lines. With `evaluate_tokens` the points are of a part
of the text, another one for other rows or windows: `--whole` has one point, at the end, of all.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

TICKS = [50, 100, 200, 300, 400, 600, 800, 1600, 3200, 6400]


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    records = json.loads(options.records.read_text(encoding="utf-8"))
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    lowest = []
    for number, name in enumerate(options.names or records):
        record, color = records[name], f"C{number}"
        axes.plot(*_line(record["curves"]["train"]), color=color, linewidth=1, alpha=0.6)
        final = record["heldout"]["average"]
        points = [(record["tokens"], final)] if options.whole else record["curves"]["heldout"]
        tokens, heldout = zip(*points, strict=True)
        label = f"{name}: held-out {final:.0f}"
        axes.plot([n / 1e6 for n in tokens], heldout, "o-", color=color, markersize=5, label=label)
        lowest.append(min(heldout))
    axes.set(yscale="log", xlabel="million tokens read each way", ylabel="perplexity")
    axes.set_yticks(TICKS, labels=[str(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.6 * min(lowest), top=3200)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=110, metadata={"Software": None})


def _line(curve: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    read = [0] + [tokens for tokens, _ in curve]
    least = 0.9 * read[1]
    kept = [k for k in range(len(curve)) if read[k + 1] - read[k] >= least]
    return [curve[k][0] / 1e6 for k in kept], [curve[k][1] for k in kept]


if __name__ == "__main__":
    main()
