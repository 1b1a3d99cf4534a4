"""Run every benchmark on this machine, one after another, and update docs/benchmarks.md.

    python -m benchmarks --text TEXT --raw TEXT --model FOLDER …     run benchmarks, update the page
    python -m benchmarks                                             only update the page
    python -m benchmarks --only embedding_small --text TEXT          run one benchmark

`--text` has one sentence per line, with tokens separated by spaces; `--raw` is any text. Other
implementations run in separate environments, which `--peers FOLDER` creates once. A benchmark whose
options are missing keeps its earlier figures; the page shows the processor, date and commit of each
row. While benchmarks run, use the machine for nothing else.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.rows import BENCHMARKS, Benchmark

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
_MARK = re.compile(r"(<!-- rows -->\n).*(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Run the benchmarks whose options are given, save their figures and update the page."""
    options = _parse_options()
    values = {name.replace("_", "-"): value for name, value in vars(options).items() if value}
    if options.peers:
        values |= peers.find_interpreters(options.peers)
    for benchmark in BENCHMARKS:
        if _should_run(benchmark, values, options.only):
            for name in benchmark.required_options:
                if name in peers.PEERS:
                    peers.make_environment(name, Path(values[name]))
            save_figures(benchmark, _measure(benchmark, values))
    text = redraw_table(PAGE.read_text(encoding="utf-8"), _read_results())
    PAGE.write_text(text, encoding="utf-8")
    print(f"benchmarks: {PAGE.relative_to(ROOT)}")


def _should_run(benchmark: Benchmark, values: Mapping[str, Any], only_names: Sequence[str]) -> bool:
    missing_options = sorted(set(benchmark.required_options) - values.keys())
    if only_names:
        if benchmark.name in only_names and missing_options:
            option = f"--{'peers' if missing_options[0] in peers.PEERS else missing_options[0]}"
            need = missing_options[0] if option[2:] in values else option
            sys.exit(f"error: {benchmark.name} needs {need}")
        return benchmark.name in only_names
    if benchmark.on_gpu and not _has_gpu():
        return False
    has_input = any(name in values for name in ("text", "raw", "model"))
    return has_input and not missing_options


def _has_gpu() -> bool:
    import torch  # slow to import; updating the page alone does not need it

    return torch.cuda.is_available()


def _measure(benchmark: Benchmark, values: Mapping[str, Any]) -> dict[str, Any]:
    """Run the command; return its figures with the date, the commit and the command line."""
    words = [str(values[w[1:-1]]) if w.startswith("{") else w for w in benchmark.command]
    print(f"{benchmark.name}: takes about {benchmark.minutes} min", file=sys.stderr)
    start_time = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"error: {benchmark.name} failed ({process.returncode}); see its output above")
    figures: dict[str, Any] = json.loads(process.stdout[process.stdout.index("{") :])
    return figures | {
        "command": " ".join(["python", "-m", f"benchmarks.{words[0]}", *benchmark.command[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": _current_commit(),
        "minutes": round((time.monotonic() - start_time) / 60, 1),
    }


def save_figures(benchmark: Benchmark, figures: Mapping[str, Any]) -> None:
    """Write the figures to the benchmark's JSON file, which the page is made from."""
    text = json.dumps(figures, indent=1) + "\n"
    (RESULTS / f"{benchmark.name}.json").write_text(text, encoding="utf-8")


def _read_results() -> dict[str, dict[str, Any]]:
    files = {item.name: RESULTS / f"{item.name}.json" for item in BENCHMARKS}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.exists()
    }


def redraw_table(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with a new table; a row that has no figures is left out."""
    lines = ["| measured | compared with | result | machine | command |", "|---|---|---|---|---|"]
    for benchmark in BENCHMARKS:
        if benchmark.name not in results:
            continue
        figures = results[benchmark.name]
        command = " ".join(benchmark.command).replace("{", "").replace("}", "")
        machine = _format_machine(figures, on_gpu=benchmark.on_gpu)
        last_cells = f"{machine} | `benchmarks.{command}`"
        for row in benchmark.rows:
            if cell := row.cell(figures):
                lines.append(f"| {row.label} | {row.baseline} | {cell} | {last_cells} |")
                last_cells = "″ | ″"
    if not _MARK.search(page):
        sys.exit(f"error: {PAGE}: put <!-- rows --> and <!-- end --> around the table")
    table = "\n".join(lines) + "\n"
    return _MARK.sub(lambda match: match[1] + table + match[2], page)


def _format_machine(figures: Mapping[str, Any], *, on_gpu: bool) -> str:
    machine = figures.get("machine", {})
    units = [u for u in machine.get("units", []) if u not in ("AVX2", "AVX-512")] or ["AVX2 alone"]
    processor = re.sub(r"\(\w+\)| Processor", "", machine.get("processor", "x86-64")).strip()
    if on_gpu:
        processor = f"{machine['gpu']}, {processor}"
    text = f"{processor} ({', '.join(units)}), {machine.get('cores', 2)} cores"
    return f"{text}, {figures['date']}, {figures['commit']}"


def _current_commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--text", type=_check_path, help="text, one tokenized sentence per line")
    parser.add_argument("--raw", type=_check_path, help="any text")
    parser.add_argument("--model", type=_check_path, help="model folder")
    parser.add_argument("--tags-train", type=_check_path, help="tagged sentences, CoNLL-U")
    parser.add_argument("--tags-dev", type=_check_path, help="tagged sentences of the dev split")
    parser.add_argument("--questions", type=_check_path, help="questions in SQuAD's JSON format")
    parser.add_argument("--fasttext", type=_check_path, help="word vectors, word2vec text format")
    parser.add_argument("--peers", type=Path, help="folder for environments of other libraries")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", choices=[item.name for item in BENCHMARKS]
    )
    return parser.parse_args()


def _check_path(path: str) -> Path:
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path}: no such file or folder")
    return Path(path).absolute()


if __name__ == "__main__":
    main()
