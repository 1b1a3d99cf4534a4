"""Measure the precision and recall of the corpus filters on a text with known faults.

    python -m benchmarks.dirty_text TEXT [--megabytes 4] [--changed 0.14] [--similarity 0.3]
        [--unseen UNSEEN]

TEXT is cut into documents of about 2 kB. Of every 100 documents, 5 are copied, 5 are copied with
the share `--changed` of their words replaced, 5 become tables of numbers, 5 Cyrillic, and 30 get
the same first line. `--similarity` is the setting `tokenize.near_duplicates`. Prints the precision
and recall of what `elmo run` leaves out; a copy counts as found if it or its original is left out.
With UNSEEN, a text from elsewhere, three models are trained: on the clean text, on the dirty text,
and on the dirty text, filtered. Prints the perplexity of each on its held-out text and on UNSEEN.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import print_figures
from elmo.data.shards import Shards

DOCUMENT_CHARACTERS = 2000  # about
HEADER = "Example Press. All rights reserved."
CYRILLIC = str.maketrans("abcdefghijklmnoprstuvxyz", "абцдефгхийклмнопрстувхыз")
FILTERS = {"repeated_lines": 10, "max_symbols": 0.3, "scripts": "[latin]"}


def main() -> None:
    """Add faults to the text, run the pipeline on it, and print the scores of the filters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--changed", type=float, default=0.14)
    parser.add_argument("--similarity", type=float, default=0.3)
    parser.add_argument("--unseen", type=Path)
    options = parser.parse_args()
    clean = _cut_documents(options.text, round(1_000_000 * options.megabytes))
    dirty = make_dirty(clean, options.changed)
    texts = {"filtered": dirty} | ({"clean": clean, "dirty": dirty} if options.unseen else {})
    figures: dict[str, Any] = {"documents": len(dirty)}
    with tempfile.TemporaryDirectory() as folder:
        for name, records in texts.items():
            is_filtered = name == "filtered"
            filters = FILTERS | {"near_duplicates": options.similarity} if is_filtered else {}
            project = _run_project(Path(folder, name), records, filters, train=bool(options.unseen))
            if is_filtered:
                figures |= score_filters(records, _read_kept_ids(project))
            if options.unseen:
                figures[f"perplexity, {name}"] = _perplexities(project, options.unseen)
    print_figures(figures)


def make_dirty(clean_records: list[dict[str, Any]], changed_share: float) -> list[dict[str, Any]]:
    """Return the documents with faults and copies added: `kind` names the change to a document,
    `of` is the id of the document that it copies, or -1."""
    rng, records = random.Random(1), [dict(record) for record in clean_records]
    for record in rng.sample(records, len(records) // 10):
        is_near = len(records) % 2
        text = _replace_words(record["text"], changed_share, rng) if is_near else record["text"]
        kind = "near" if is_near else "copy"
        records.append({"id": len(records), "kind": kind, "of": record["id"], "text": text})
    copied_ids = {record["of"] for record in records}
    for record in records:
        chance = rng.random()
        if record["of"] >= 0 or (record["id"] in copied_ids and chance < 0.1) or chance >= 0.4:
            continue
        if chance < 0.05:
            numbers = (str(rng.randrange(10**4)) for _ in range(200))
            record |= {"kind": "symbols", "text": " | ".join(numbers)}
        elif chance < 0.1:
            record |= {"kind": "script", "text": record["text"].lower().translate(CYRILLIC)}
        else:
            record["text"] = f"{HEADER}\n{record['text']}"
    rng.shuffle(records)
    return records


def score_filters(records: list[dict[str, Any]], kept_ids: set[int]) -> dict[str, float]:
    """Return the precision and recall of leaving out copies, and the recall of other filters."""
    faulty_ids = {record["id"] for record in records if record["kind"] in ("symbols", "script")}
    pairs = [
        (record["id"], record["of"], record["kind"]) for record in records if record["of"] >= 0
    ]
    dropped_ids = {record["id"] for record in records} - kept_ids
    copies = dropped_ids - faulty_ids
    pair_ids = {record_id for pair in pairs for record_id in pair[:2]}
    scores = {"copies, precision": len(copies & pair_ids) / max(1, len(copies))}
    for kind in ("copy", "near"):
        is_found = [bool({a, b} & dropped_ids) for a, b, pair_kind in pairs if pair_kind == kind]
        scores[f"{kind}, recall"] = sum(is_found) / max(1, len(is_found))
    scores["filters, recall"] = len(faulty_ids & dropped_ids) / max(1, len(faulty_ids))
    return {name: round(score, 4) for name, score in scores.items()}


def _cut_documents(path: Path, size: int) -> list[dict[str, Any]]:
    records = list[dict[str, Any]]()
    for text in _read_documents(path):
        if size <= 0:
            break
        records.append({"id": len(records), "kind": "", "of": -1, "text": text})
        size -= len(text.encode())
    return records


def _read_documents(path: Path) -> Iterator[str]:
    lines = list[str]()
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            lines.append(line.strip())
            if sum(map(len, lines)) >= DOCUMENT_CHARACTERS:
                yield "\n".join(filter(None, lines))
                lines = []


def _replace_words(text: str, share: float, rng: random.Random) -> str:
    words = text.split(" ")
    for k in rng.sample(range(len(words)), round(share * len(words))):
        words[k] = rng.choice(words)
    return " ".join(words)


def _run_project(
    project: Path, records: list[dict[str, Any]], filters: dict[str, Any], *, train: bool
) -> Path:
    """Make a project with the records as its text; run `tokenize` and, with `train`, `pretrain`."""
    text = project.with_suffix(".jsonl")
    lines = (json.dumps({"id": r["id"], "text": r["text"]}, ensure_ascii=False) for r in records)
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _run_elmo("init", str(project), "--text", str(text))
    values = {"corpus.keep": "[id]"} | {f"tokenize.{k}": v for k, v in filters.items()}
    settings = [f"--set-param={name}={value}" for name, value in values.items()]
    stages = ["tokenize@domain", *(["pretrain"] if train else [])]  # domain text keeps its ids
    command = [sys.executable, "-m", "dvc", "exp", "run", *settings, *stages]
    subprocess.run(command, cwd=project, check=True, stdout=sys.stderr, env=_environment())
    return project


def _read_kept_ids(project: Path) -> set[int]:
    shards = Shards(project / "data/shards/domain")
    columns = (shards.open(entry).records for entry in shards.entries())
    records = (record for column in columns if column for record in column.unique().to_pylist())
    return {int(json.loads(record)["id"]) for record in records}


def _perplexities(project: Path, unseen: Path) -> dict[str, float]:
    numbers = json.loads((project / "numbers/pretrain.json").read_text())
    model = str(project / "models/pretrain")
    scores = json.loads(_run_elmo("perplexity", model, "--input", str(unseen), "--json"))
    return {"held out": numbers["heldout_perplexity"], "unseen": scores["average"]}


def _run_elmo(*words: str) -> str:
    command = [sys.executable, "-m", "elmo_pipeline", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _environment() -> dict[str, str]:
    folder = str(Path(sys.executable).parent)  # the commands of the stages start `python`
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


if __name__ == "__main__":
    main()
