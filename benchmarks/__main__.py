"""Measure every claim of speed on this machine, one after another, and update docs/benchmarks.md.

    python -m benchmarks --text TEXT --raw TEXT --model FOLDER …      measures, then draws the page
    python -m benchmarks                                             draws the page alone
    python -m benchmarks --only embedding_small --text TEXT

`--text` has one sentence per line, with tokens separated by spaces; `--raw` is any text. Other
implementations run in separate environments, which `--peers FOLDER` creates once. A benchmark whose
options are missing keeps its earlier figures; the page shows the processor, date and commit of each
row. Do not use the machine for anything else in the meantime.
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
    """Run the benchmarks whose options are given, save their figures and draw the page."""
    options = _parse_options()
    values = {name.replace("_", "-"): value for name, value in vars(options).items() if value}
    if options.peers:
        values |= peers.interpreters(options.peers)
    for benchmark in BENCHMARKS:
        if _is_run(benchmark, values, selected=options.only):
            for name in benchmark.needs:
                if name in peers.PEERS:
                    peers.make(name, Path(values[name]))
            keep(benchmark, _measure(benchmark, values))
    text = redraw_table(PAGE.read_text(encoding="utf-8"), _result_files())
    PAGE.write_text(text, encoding="utf-8")
    print(f"benchmarks: {PAGE.relative_to(ROOT)}")


def _is_run(benchmark: Benchmark, values: Mapping[str, Any], *, selected: Sequence[str]) -> bool:
    if selected:
        if benchmark.name in selected and (lacking_needs := set(benchmark.needs) - values.keys()):
            need = sorted(lacking_needs)[0]
            option = f"--{'peers' if need in peers.PEERS else need}"
            sys.exit(f"error: {benchmark.name} needs {need if option[2:] in values else option}")
        return benchmark.name in selected
    if benchmark.on_gpu and not _has_gpu():
        return False
    has_input = any(name in values for name in ("text", "raw", "model"))
    return has_input and values.keys() >= set(benchmark.needs)


def _has_gpu() -> bool:
    import torch  # slow to load, and the page alone is drawn without it

    return torch.cuda.is_available()


def _measure(benchmark: Benchmark, values: Mapping[str, Any]) -> dict[str, Any]:
    """Run the command; return its figures with the date, the commit and the command line."""
    words = [str(values[w[1:-1]]) if w.startswith("{") else w for w in benchmark.command]
    print(f"{benchmark.name}: about {benchmark.minutes} min", file=sys.stderr)
    began = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"error: {benchmark.name} ended with {process.returncode}; see its output above")
    figures: dict[str, Any] = json.loads(process.stdout[process.stdout.index("{") :])
    return figures | {
        "command": " ".join(["python", "-m", f"benchmarks.{words[0]}", *benchmark.command[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def keep(benchmark: Benchmark, figures: Mapping[str, Any]) -> None:
    """Write the figures to the file from which the page is drawn."""
    text = json.dumps(figures, indent=1) + "\n"
    (RESULTS / f"{benchmark.name}.json").write_text(text, encoding="utf-8")


def _result_files() -> dict[str, dict[str, Any]]:
    files = {item.name: RESULTS / f"{item.name}.json" for item in BENCHMARKS}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.exists()
    }


def redraw_table(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with its table redrawn; rows without figures are left out."""
    lines = ["| what | against | | measured on | command |", "|---|---|---|---|---|"]
    for benchmark in BENCHMARKS:
        if benchmark.name not in results:
            continue
        figures = results[benchmark.name]
        command = " ".join(benchmark.command).replace("{", "").replace("}", "")
        machine = _describe_machine(figures, on_gpu=benchmark.on_gpu)
        ends = f"{machine} | `benchmarks.{command}`"
        for row in benchmark.rows:
            if cell := row.cell(figures):
                lines.append(f"| {row.claim} | {row.against} | {cell} | {ends} |")
                ends = "″ | ″"
    if not _MARK.search(page):
        sys.exit("error: the page has no <!-- rows --> and <!-- end -->; put them around the table")
    table = "\n".join(lines) + "\n"
    return _MARK.sub(lambda match: match[1] + table + match[2], page)


def _describe_machine(figures: Mapping[str, Any], *, on_gpu: bool) -> str:
    machine = figures.get("machine", {})
    units = [u for u in machine.get("units", []) if u not in ("AVX2", "AVX-512")] or ["AVX2 alone"]
    processor = re.sub(r"\(\w+\)| Processor", "", machine.get("processor", "x86-64")).strip()
    if on_gpu:
        processor = f"{machine['gpu']}, {processor}"
    text = f"{processor} ({', '.join(units)}), {machine.get('cores', 2)} cores"
    return f"{text}, {figures['date']}, {figures['commit']}"


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--text", type=_file, help="text, one tokenized sentence per line")
    parser.add_argument("--raw", type=_file, help="any text")
    parser.add_argument("--model", type=_file, help="model folder")
    parser.add_argument("--tags-train", type=_file, help="tagged sentences to train on, CoNLL-U")
    parser.add_argument("--tags-dev", type=_file, help="tagged sentences, dev split")
    parser.add_argument("--questions", type=_file, help="questions in SQuAD's JSON format")
    parser.add_argument("--fasttext", type=_file, help="word vectors, word2vec text format")
    parser.add_argument("--peers", type=Path, help="folder for the others' environments")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", choices=[item.name for item in BENCHMARKS]
    )
    return parser.parse_args()


def _file(path: str) -> Path:
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path}: no such file or folder")
    return Path(path).absolute()


if __name__ == "__main__":
    main()
