"""The picture of a finding, drawn from its JSON file alone."""

from pathlib import Path

from elmo.io.atomic import new_file
from pipeline.stages import plots
from research.finding import Finding, Row


def draw(path: Path, finding: Finding) -> None:
    """Draw a PNG: scores by share of the examples for `labels`, else a bar for each row."""
    with new_file(path) as new:
        if finding.kind == "labels":
            plots.draw_shares(new, _by_way(finding.rows), score=finding.metric)
        else:
            bars = {row.name: (row.mean, row.low, row.high) for row in finding.rows}
            plots.draw_intervals(new, bars, score=finding.metric)


def _by_way(rows: list[Row]) -> dict[str, list[tuple[float, float, float | None, float | None]]]:
    """Share, mean and interval of each way, in order."""
    lines: dict[str, list[tuple[float, float, float | None, float | None]]] = {}
    for row in rows:
        point = row.more["share"], row.mean, row.low, row.high
        lines.setdefault(row.name.rpartition(", ")[0], []).append(point)
    return lines
