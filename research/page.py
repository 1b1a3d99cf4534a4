"""The tables of README.md, regenerated from the JSON files of findings.

In the page, what stands between `<!-- finding NAME -->` and `<!-- end -->` is generated from
NAME.json, with the picture NAME.png where there is one; the rest is written by hand and stays.
"""

import math
import os
import re
from pathlib import Path

from elmo.errors import ElmoError
from elmo.io.atomic import new_file
from elmo.io.records import check_readable
from elmo.tasks.kinds import task_settings
from research.finding import Finding, Row, read

_MARK = re.compile(r"(<!-- finding ([A-Za-z0-9_-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NOT_MEASURED = "not measured yet\n"


def redraw_tables(folder: Path, page: Path) -> tuple[int, int]:
    """Regenerate the tables of `page` from the files in `folder`.

    Returns how many tables have a file and how many lack one. A file that no mark of the page names
    is an error, so that none is forgotten.
    """
    check_readable(page)
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ElmoError(f"{page}: not readable as UTF-8 text ({error})") from None
    if not folder.is_dir():
        raise ElmoError(f"{folder}: no such folder; pass the one with the findings' JSON files")
    _check_closed(text, page)
    names = [match[2] for match in _MARK.finditer(text)]
    if not names:
        raise ElmoError(f"{page}: has no mark such as <!-- finding NAME --> … <!-- end -->")
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    if not files:
        raise ElmoError(f"{folder}: holds no findings; name the folder of their JSON files")
    for name, path in files.items():
        if name not in names:
            raise ElmoError(f"{path}: {page} has no mark <!-- finding {name} -->; add one")
    findings = {name: read(path) for name, path in files.items()}

    def draw_match(match: re.Match[str]) -> str:
        finding = findings.get(match[2])
        if finding is None:
            return match[1] + NOT_MEASURED + match[4]
        return match[1] + table(finding) + _picture(files[match[2]], page) + match[4]

    with new_file(page) as new_page:
        new_page.write_text(_MARK.sub(draw_match, text), encoding="utf-8")
    return len(findings), len(set(names) - findings.keys())


def _check_closed(text: str, page: Path) -> None:
    """Refuse a page on which a mark is not closed before the next: what is between would go."""
    start: int | None = None
    for number, line in enumerate(text.split("\n"), 1):
        begins, ends = line.startswith("<!-- finding "), line.startswith("<!-- end -->")
        if (begins and start is not None) or (ends and start is None):
            place, fault = (start, "is not closed") if begins else (number, "closes nothing")
            raise ElmoError(f"{page}:{place}: the mark {fault}; write <!-- end --> after its table")
        start = number if begins else None if ends else start
    if start is not None:
        raise ElmoError(f"{page}:{start}: the mark is not closed; write <!-- end --> after it")


def table(finding: Finding) -> str:
    """Return a finding as Markdown: its table, then the seeds, the model and the command."""
    lines = few_lines(finding) if finding.kind == "few" else _table_lines(finding)
    for query, ways in finding.neighbors.items():
        lines += ["", f"{query}:", ""]
        lines += [f"- {kind}: {'; '.join(neighbors) or 'none'}" for kind, neighbors in ways.items()]
    counts = ", ".join(f"{k.replace('_', ' ')} {count:,}" for k, count in finding.examples.items())
    unit = "draws" if finding.kind == "few" else "seeds"
    seeds = f"{unit} {', '.join(map(str, finding.seeds))}; " if finding.seeds else ""
    lines += ["", f"{counts}; {seeds}model {finding.model[:12]}.", "", f"`{finding.command}`", ""]
    if unfinished := _name_unfinished(finding):
        reason = "the best epoch was the last, or so near it that training did not stop early"
        lines += [f"Unfinished ({reason}): {'; '.join(unfinished)}.", ""]
    return "\n".join(lines)


def few_lines(finding: Finding) -> list[str]:
    """Return the lines of a table of few labels, in %: a line for each number of examples, with the
    range of several draws, and one for its CPU seconds; a column for each way."""
    by_count: dict[str, dict[str, Row]] = {}
    for row in finding.rows:
        way, _, count = row.name.rpartition(", ")
        by_count.setdefault(count, {})[way.removesuffix(", by hand")] = row
    heads = [f"{finding.metric}, %", *next(iter(by_count.values()))]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for count, by_way in by_count.items():
        rows = by_way.values()
        best, draws = max(row.mean for row in rows), {len(row.scores) for row in rows}
        cells = [f"{100 * row.mean:.1f}" for row in rows]
        for k, row in enumerate(rows):
            cells[k] = f"**{cells[k]}**" if row.mean == best else cells[k]
            if len(row.scores) > 1:
                low, high = 100 * row.extra["lowest"], 100 * row.extra["highest"]
                cells[k] += f" ({low:.1f} to {high:.1f})"
        lines.append(_line([f"{count} labels, {max(draws)} draw{'s' * (max(draws) > 1)}", *cells]))
        seconds = [f"{row.extra['seconds']:,.0f}" for row in rows]
        lines.append(_line(["CPU seconds a draw", *seconds]))
    return lines


def _table_lines(finding: Finding) -> list[str]:
    keys = {key for row in finding.rows for key in row.extra}
    weights = sorted(key for key in keys if key.startswith("weight_"))
    columns = {key: key.removeprefix("weight_").replace("_", " ") for key in weights}
    columns |= {
        "gain": "mean gain of a seed",
        "gain_test_low": "its interval over test units",
        "above": "above the layer below",
        "updates_to_baseline": "updates to the baseline's best",
        "minutes": "minutes a seed",
    }
    heads = {key: title for key, title in columns.items() if key in keys}
    lines = [_line(["", finding.metric, "95 % interval", *heads.values()])]
    lines.append(_line(["---"] * (3 + len(heads))))
    for row in finding.rows:
        cells = [_cell(row, key) for key in heads]
        lines.append(_line([row.name, f"{row.mean:.3f}", _interval(row), *cells]))
    return lines


def _name_unfinished(finding: Finding) -> list[str]:
    """Return the names of the baselines whose best epoch came too late for early stopping."""
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


def _picture(path: Path, page: Path) -> str:
    """The picture beside a finding's file, as seen from the page; nothing where there is none."""
    picture = path.with_suffix(".png")
    if not picture.exists():
        return ""
    return f"\n![{path.stem}]({Path(os.path.relpath(picture, page.parent)).as_posix()})\n"


def _cell(row: Row, key: str) -> str:
    """One of a row's other figures, empty where it has none."""
    value = row.extra.get(key)
    if value is None:
        return ""
    if key == "gain_test_low":
        return f"{value:+.3f} to {row.extra['gain_test_high']:+.3f}"
    if key in ("gain", "above"):
        low, high = row.extra.get(f"{key}_low"), row.extra.get(f"{key}_high")
        return f"{value:+.3f}" + ("" if low is None else f" ({low:+.3f} to {high:+.3f})")
    return f"{value:,.0f}" if key == "updates_to_baseline" else f"{value:.2f}"


def _interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    return f"{row.low:.3f} to {row.high:.3f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
