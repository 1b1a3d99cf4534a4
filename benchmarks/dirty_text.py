"""What the filters of a corpus find in a text that was made dirty on purpose, and what it is worth.

    python -m benchmarks.dirty_text TEXT [--megabytes 4] [--changed 0.14] [--similarity 0.3]
        [--unseen UNSEEN]

TEXT is cut into documents of about 2 kB. Of every hundred, five are copied, five are copied with a
share of their words replaced, five become tables of numbers, five Cyrillic, and thirty get the same
first line. SIMILARITY is `tokenize.near_duplicates`. Prints the precision and recall of what
`elmo run` leaves out; a copy counts as found whichever of the two is left out. With UNSEEN, a text
that the model has not read, three models are trained: on the clean text, the dirty one, and the
dirty one with filters. Prints the perplexity of each on its own held-out text and on UNSEEN.
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

from benchmarks.machine import show
from elmo.data.shards import Shards

DOCUMENT = 2000  # characters, about
HEADER = "Example Press. All rights reserved."
CYRILLIC = str.maketrans("abcdefghijklmnoprstuvxyz", "абцдефгхийклмнопрстувхыз")
FILTERS = {"repeated_lines": 10, "max_symbols": 0.3, "scripts": "[latin]"}


def main() -> None:
    """Make the text dirty, run the pipeline on it, print what was found."""
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
    results: dict[str, Any] = {"documents": len(dirty)}
    with tempfile.TemporaryDirectory() as folder:
        for name, records in texts.items():
            is_filtered = name == "filtered"
            filters = FILTERS | {"near_duplicates": options.similarity} if is_filtered else {}
            project = _run(Path(folder) / name, records, filters, train=bool(options.unseen))
            if is_filtered:
                results |= score_filters(records, _kept_ids(project))
            if options.unseen:
                results[f"perplexity, {name}"] = _perplexities(project, options.unseen)
    show(results)


def make_dirty(clean: list[dict[str, Any]], changed_share: float) -> list[dict[str, Any]]:
    """Return the documents with what was put among them: `kind` is what was done to a document,
    `of` the one that it copies."""
    pick, records = random.Random(1), [dict(record) for record in clean]
    for record in pick.sample(records, len(records) // 10):
        is_near = len(records) % 2
        text = _replace_words(record["text"], changed_share, pick) if is_near else record["text"]
        kind = "near" if is_near else "copy"
        records.append({"id": len(records), "kind": kind, "of": record["id"], "text": text})
    copied_ids = {record["of"] for record in records}
    for record in records:
        chance = pick.random()
        if record["of"] >= 0 or (record["id"] in copied_ids and chance < 0.1) or chance >= 0.4:
            continue
        if chance < 0.05:
            numbers = (str(pick.randrange(10**4)) for _ in range(200))
            record |= {"kind": "symbols", "text": " | ".join(numbers)}
        elif chance < 0.1:
            record |= {"kind": "script", "text": record["text"].lower().translate(CYRILLIC)}
        else:
            record["text"] = f"{HEADER}\n{record['text']}"
    pick.shuffle(records)
    return records


def score_filters(records: list[dict[str, Any]], kept: set[int]) -> dict[str, float]:
    """Return precision and recall of what was left out: of copies and of the other filters."""
    filtered = {record["id"] for record in records if record["kind"] in ("symbols", "script")}
    pairs = [
        (record["id"], record["of"], record["kind"]) for record in records if record["of"] >= 0
    ]
    left_out = {record["id"] for record in records} - kept
    copies = left_out - filtered
    in_pairs = {number for pair in pairs for number in pair[:2]}
    scores = {"copies, precision": len(copies & in_pairs) / max(1, len(copies))}
    for kind in ("copy", "near"):
        is_found = [bool({a, b} & left_out) for a, b, of_kind in pairs if of_kind == kind]
        scores[f"{kind}, recall"] = sum(is_found) / max(1, len(is_found))
    scores["filters, recall"] = len(filtered & left_out) / max(1, len(filtered))
    return {name: round(figure, 4) for name, figure in scores.items()}


def _cut_documents(path: Path, size: int) -> list[dict[str, Any]]:
    records = list[dict[str, Any]]()
    for text in _documents(path):
        if size <= 0:
            break
        records.append({"id": len(records), "kind": "", "of": -1, "text": text})
        size -= len(text.encode())
    return records


def _documents(path: Path) -> Iterator[str]:
    lines = list[str]()
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            lines.append(line.strip())
            if sum(map(len, lines)) >= DOCUMENT:
                yield "\n".join(filter(None, lines))
                lines = []


def _replace_words(text: str, share: float, pick: random.Random) -> str:
    words = text.split(" ")
    for k in pick.sample(range(len(words)), round(share * len(words))):
        words[k] = pick.choice(words)
    return " ".join(words)


def _run(
    project: Path, records: list[dict[str, Any]], filters: dict[str, Any], *, train: bool
) -> Path:
    """Make a project of the records and run it up to the tokenized text or the model."""
    text = project.with_suffix(".jsonl")
    lines = (json.dumps({"id": r["id"], "text": r["text"]}, ensure_ascii=False) for r in records)
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _elmo("init", str(project), "--text", str(text))
    values = {"corpus.keep": "[id]"} | {f"tokenize.{k}": v for k, v in filters.items()}
    settings = [f"--set-param={name}={value}" for name, value in values.items()]
    stages = ["tokenize@domain", *(["pretrain"] if train else [])]  # the first keeps ids
    command = [sys.executable, "-m", "dvc", "exp", "run", *settings, *stages]
    subprocess.run(command, cwd=project, check=True, stdout=sys.stderr, env=_environment())
    return project


def _kept_ids(project: Path) -> set[int]:
    shards = Shards(project / "data/shards/domain")
    columns = (shards.open(entry).records for entry in shards.entries())
    records = (record for column in columns if column for record in column.unique().to_pylist())
    return {int(json.loads(record)["id"]) for record in records}


def _perplexities(project: Path, unseen: Path) -> dict[str, float]:
    figures = json.loads((project / "numbers/pretrain.json").read_text())
    model = str(project / "models/pretrain")
    answer = json.loads(_elmo("perplexity", model, "--input", str(unseen), "--json"))
    return {"held out": figures["heldout_perplexity"], "unseen": answer["perplexity"]}


def _elmo(*words: str) -> str:
    command = [sys.executable, "-m", "elmo_pipeline", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _environment() -> dict[str, str]:
    folder = str(Path(sys.executable).parent)  # the stages' commands say `python`
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


if __name__ == "__main__":
    main()
