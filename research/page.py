"""Update the tables of README.md from the JSON files of findings.

The text between `<!-- finding NAME -->` and `<!-- end -->` is generated from NAME.json, with the
plot NAME.png if it exists. The other text of the page is written by hand and is not changed.
"""

import math
import os
import re
from pathlib import Path

from elmo.errors import ElmoError
from elmo.io.atomic import new_file
from elmo.io.records import check_regular_file
from elmo.tasks.kinds import task_settings
from research.finding import Finding, Row, read_finding

_MARK = re.compile(r"(<!-- finding ([A-Za-z0-9_-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NOT_MEASURED = "not measured yet\n"


def redraw_tables(folder: Path, page: Path) -> tuple[int, int]:
    """Update the tables of `page` from the files in `folder`.

    Returns how many tables have a file and how many have none. A file that no mark of the page
    names is an error, so that none is forgotten.
    """
    check_regular_file(page)
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ElmoError(f"{page}: not readable as UTF-8 text ({error})") from None
    if not folder.is_dir():
        raise ElmoError(f"{folder}: no such folder; pass the folder with the JSON files")
    names = [match[2] for match in _MARK.finditer(text)]
    if not names:
        raise ElmoError(f"{page}: has no tables; add <!-- finding NAME --> and <!-- end -->")
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    if not files:
        raise ElmoError(f"{folder}: holds no findings; pass the folder with their JSON files")
    for name, path in files.items():
        if name not in names:
            raise ElmoError(f"{path}: {page} has no mark <!-- finding {name} -->; add one")
    findings = {name: read_finding(path) for name, path in files.items()}

    def draw_match(match: re.Match[str]) -> str:
        finding = findings.get(match[2])
        if finding is None:
            return match[1] + NOT_MEASURED + match[4]
        return match[1] + format_finding(finding) + _plot_link(files[match[2]], page) + match[4]

    with new_file(page) as new_page:
        new_page.write_text(_MARK.sub(draw_match, text), encoding="utf-8")
    return len(findings), len(set(names) - findings.keys())


def format_finding(finding: Finding) -> str:
    """Return a finding as Markdown: the table, then the seeds, the model and the command."""
    lines = few_table_lines(finding) if finding.kind == "few" else _table_lines(finding)
    for query, ways in finding.neighbors.items():
        lines += ["", f"{query}:", ""]
        lines += [f"- {kind}: {'; '.join(neighbors) or 'none'}" for kind, neighbors in ways.items()]
    counts = ", ".join(f"{k.replace('_', ' ')} {count:,}" for k, count in finding.examples.items())
    unit = "draws" if finding.kind == "few" else "seeds"
    seeds = f"{unit} {', '.join(map(str, finding.seeds))}; " if finding.seeds else ""
    lines += ["", f"{counts}; {seeds}model {finding.model[:12]}.", "", f"`{finding.command}`", ""]
    if unfinished := _unfinished_names(finding):
        reason = "the best epoch was the last, or so near it that training did not stop early"
        lines += [f"Unfinished ({reason}): {'; '.join(unfinished)}.", ""]
    return "\n".join(lines)


def few_table_lines(finding: Finding) -> list[str]:
    """Return the lines of a table of few labels, with a column for each way; for each number of
    examples, one line of scores in %, with their range over draws, and one of CPU seconds."""
    rows_by_count: dict[str, dict[str, Row]] = {}
    for row in finding.rows:
        way, _, count = row.name.rpartition(", ")
        rows_by_count.setdefault(count, {})[way.removesuffix(", by hand")] = row
    titles = [f"{finding.metric}, %", *next(iter(rows_by_count.values()))]
    lines = [_format_line(titles), _format_line(["---"] * len(titles))]
    for count, row_by_way in rows_by_count.items():
        rows = row_by_way.values()
        best, draws = max(row.mean for row in rows), max(len(row.scores) for row in rows)
        cells = [f"{100 * row.mean:.1f}" for row in rows]
        for k, row in enumerate(rows):
            cells[k] = f"**{cells[k]}**" if row.mean == best else cells[k]
            if len(row.scores) > 1:
                low, high = 100 * row.extra["lowest"], 100 * row.extra["highest"]
                cells[k] += f" ({low:.1f} to {high:.1f})"
        lines.append(_format_line([f"{count} labels, {draws} draw{'s' * (draws > 1)}", *cells]))
        seconds = [f"{row.extra['seconds']:,.0f}" for row in rows]
        lines.append(_format_line(["CPU seconds per draw", *seconds]))
    return lines


def _table_lines(finding: Finding) -> list[str]:
    keys = {key for row in finding.rows for key in row.extra}
    weights = sorted(key for key in keys if key.startswith("weight_"))
    columns = {key: key.removeprefix("weight_").replace("_", " ") for key in weights}
    columns |= {
        "gain": "mean gain per seed",
        "gain_test_low": "interval of the gain over test units",
        "above": "gain over the layer below",
        "updates_to_baseline": "updates to reach the baseline's best dev score",
        "minutes": "minutes per seed",
    }
    titles = {key: title for key, title in columns.items() if key in keys}
    lines = [_format_line(["", finding.metric, "95% interval", *titles.values()])]
    lines.append(_format_line(["---"] * (3 + len(titles))))
    for row in finding.rows:
        cells = [_format_cell(row, key) for key in titles]
        lines.append(_format_line([row.name, f"{row.mean:.3f}", _format_interval(row), *cells]))
    return lines


def _unfinished_names(finding: Finding) -> list[str]:
    """Return the names of the baselines whose best epoch was too late for early stopping."""
    rows = [row for row in finding.rows if row.name.startswith("without ELMo")]
    rows = [row for row in rows if "updates_to_baseline" in row.extra]
    if not rows:
        return []
    settings = task_settings(finding.task, {k: str(v) for k, v in finding.settings.items()})
    names = []
    for row in rows:
        examples = row.extra.get("train_examples", finding.examples["train"])
        best_epoch = row.extra["updates_to_baseline"] / math.ceil(examples / settings.batch_size)
        if best_epoch > settings.epochs - settings.patience:
            names.append(row.name)
    return names


def _plot_link(path: Path, page: Path) -> str:
    """Return a Markdown link from the page to the plot of a finding, or "" if there is no plot."""
    plot = path.with_suffix(".png")
    if not plot.exists():
        return ""
    return f"\n![{path.stem}]({Path(os.path.relpath(plot, page.parent)).as_posix()})\n"


def _format_cell(row: Row, key: str) -> str:
    """Format one of the extra figures of a row, "" if it is missing."""
    value = row.extra.get(key)
    if value is None:
        return ""
    if key == "gain_test_low":
        return f"{value:+.3f} to {row.extra['gain_test_high']:+.3f}"
    if key in ("gain", "above"):
        low, high = row.extra.get(f"{key}_low"), row.extra.get(f"{key}_high")
        return f"{value:+.3f}" + ("" if low is None else f" ({low:+.3f} to {high:+.3f})")
    return f"{value:,.0f}" if key == "updates_to_baseline" else f"{value:.2f}"


def _format_interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    return f"{row.low:.3f} to {row.high:.3f}"


def _format_line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
