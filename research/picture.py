"""The plot of a finding, drawn only from its JSON file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from elmo.io.atomic import new_file
from pipeline.report.plots import BLUE, GREY, ORANGE, save_figure
from research.finding import Finding, Row

Point = tuple[float, float, float | None, float | None]  # examples or percentage, mean, interval
COLORS = (GREY, BLUE, ORANGE, "#2f855a", "#6b46c1", "#c53030", "#0f766e", "#111111")


def draw_plot(path: Path, finding: Finding) -> None:
    """Draw a PNG: for `labels` and `few`, scores by number of examples; else a bar for each row."""
    with new_file(path) as new_path:
        if finding.kind in ("labels", "few"):
            unit = "training examples" + (", percent" if finding.kind == "labels" else "")
            _draw_lines(new_path, _points_by_way(finding.rows), unit=unit, score=finding.metric)
        else:
            bars = {row.name: (row.mean, row.low, row.high) for row in finding.rows}
            _draw_intervals(new_path, bars, score=finding.metric)


def _points_by_way(rows: list[Row]) -> dict[str, list[Point]]:
    """Return the points of each way, in order: examples (or percentage), mean and interval."""
    lines: dict[str, list[Point]] = {}
    for row in rows:
        count = row.extra["examples"] if "examples" in row.extra else 100 * row.extra["share"]
        low, high = row.extra.get("lowest", row.low), row.extra.get("highest", row.high)
        point = count, row.mean, low, high  # `few` has the range: too few draws for an interval
        lines.setdefault(row.name.rpartition(", ")[0], []).append(point)
    return lines


def _draw_intervals(
    path: Path, bars: Mapping[str, tuple[float, float | None, float | None]], *, score: str
) -> None:
    """Draw a bar for each name, with the interval of its value, if any."""
    figure, axis = plt.subplots(figsize=(9, 0.8 + 0.42 * len(bars)))
    rows = np.arange(len(bars))
    axis.barh(rows, [mean for mean, _, _ in bars.values()], 0.6, color=BLUE)
    for row, (mean, low, high) in enumerate(bars.values()):
        if low is not None and high is not None:
            axis.plot([low, high], [row, row], color=ORANGE, lw=2)
        axis.text(max(mean, high or mean), row, f"  {mean:.3f}", va="center")
    axis.set_yticks(rows, [name if len(name) <= 60 else name[:59] + "…" for name in bars])
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set(xlabel=score)
    save_figure(figure, path)


def _draw_lines(path: Path, lines: Mapping[str, Sequence[Point]], *, unit: str, score: str) -> None:
    """Draw the score by the number of training examples, one line for each way of training."""
    figure, axis = plt.subplots(figsize=(8, 3.6))
    for (name, points), color in zip(lines.items(), COLORS, strict=False):
        examples = [count for count, _, _, _ in points]
        axis.plot(examples, [mean for _, mean, _, _ in points], "o-", color=color, ms=4, label=name)
        for count, _, low, high in points:
            if low is not None and high is not None:
                axis.plot([count] * 2, [low, high], color=color, lw=1.2)
    axis.set(xlabel=unit, ylabel=score, xscale="log")
    axis.set_xticks(sorted({count for points in lines.values() for count, *_ in points}))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(color="#edf2f7")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, path)
