"""Cleaning a text that was made dirty on purpose: what is found, how fast, beside datatrove.

    python -m benchmarks.cleaning TEXT TEXT TEXT --peer PYTHON [--megabytes 100]

Each TEXT is cut into documents of about 2 kB. Of every hundred, five are copied, five are copied
with one word in a hundred replaced, five are turned into tables of numbers, five into Cyrillic, and
thirty get the same first line. Precision and recall are those of what was put in, per text; a copy
counts as found whichever of the two is left out. Of each text, up to 16 MB are read. `all` is the
texts together, up to `--megabytes`: seconds, CPU seconds and peak memory of one process each side.
Ours also writes tokenized shards; datatrove writes the documents that are left.

PYTHON is that of an environment with `datatrove[io,processing]` and spacy. Prints JSON.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.machine import show

_DOCUMENT = 2000  # characters of a document, about
_HEADER = "Example Press. All rights reserved."
_CYRILLIC = str.maketrans("abcdefghijklmnoprstuvxyz", "абцдефгхийклмнопрстувхыз")
LIMITS = {"min_bytes": 200, "max_bytes": 1_000_000, "max_symbols": 0.3}
SIMILARITY = 0.8


def main() -> None:
    """Clean each text and all of them, by both; print what was found and what it took."""
    options = _options()
    size = min(options.megabytes, 16) * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {
            path.parent.name: make_dirty([path], folder / f"{number}.jsonl", size)
            for number, path in enumerate(options.texts)
        }
        by_text = {text: _compare(path, options.peer) for text, path in texts.items()}
        large = make_dirty(options.texts, folder / "all.jsonl", options.megabytes * 1_000_000)
        sides = _compare(large, options.peer)
    show({"texts": by_text, "all": sides, "megabytes": options.megabytes})


def make_dirty(texts: list[Path], out: Path, size: int) -> Path:
    """Write up to `size` bytes of documents and what was put among them as JSON lines.

    `id` counts the documents, `kind` is what was done to it, `of` the document that it repeats.
    """
    pick, records = random.Random(1), list[dict[str, Any]]()
    for text in (text for path in texts for text in _documents(path)):
        if size <= 0:
            break
        records.append({"id": len(records), "kind": "", "of": -1, "text": text})
        size -= len(text.encode())
    for record in pick.sample(records, len(records) // 10):
        is_near = len(records) % 2
        text = _replace_words(record["text"], pick) if is_near else record["text"]
        kind = "near" if is_near else "copy"
        records.append({"id": len(records), "kind": kind, "of": record["id"], "text": text})
    originals = {record["of"] for record in records}
    for record in records:
        chance = pick.random()
        if record["of"] < 0 and record["id"] not in originals and chance < 0.1:
            is_table = chance < 0.05
            numbers = " | ".join(str(pick.randrange(10**4)) for _ in range(200))
            record["kind"] = "symbols" if is_table else "script"
            record["text"] = numbers if is_table else record["text"].lower().translate(_CYRILLIC)
        elif record["of"] < 0 and chance < 0.4:
            record["text"] = f"{_HEADER}\n{record['text']}"
    pick.shuffle(records)
    with out.open("w", encoding="utf-8") as file:
        for record in records:  # datatrove takes a number 0 for no id
            line = record | {"id": str(record["id"])}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return out


def _documents(path: Path) -> Iterator[str]:
    lines: list[str] = []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            lines.append(line.strip())
            if sum(map(len, lines)) >= _DOCUMENT:
                yield "\n".join(filter(None, lines))
                lines = []


def _replace_words(text: str, pick: random.Random) -> str:
    words = text.split(" ")
    for k in pick.sample(range(len(words)), max(1, len(words) // 100)):
        words[k] = pick.choice(words)
    return " ".join(words)


def _compare(text: Path, peer: str) -> dict[str, Any]:
    """Return for each side the seconds, peak memory, and precision and recall by kind."""
    records = [json.loads(line) for line in text.open(encoding="utf-8")]
    records = [record | {"id": int(record["id"])} for record in records]
    result: dict[str, Any] = {"bytes": text.stat().st_size, "documents": len(records)}
    our_command = [sys.executable, "-m", "benchmarks.cleaning", "--clean"]
    peer_command = [peer, str(Path(__file__).with_name("cleaning_peer.py"))]
    for side, command in (("elmo", our_command), ("datatrove", peer_command)):
        with tempfile.TemporaryDirectory() as folder:
            began, log_path = time.monotonic(), Path(folder) / "log"
            with log_path.open("w") as log:
                arguments = [*command, str(text), folder]
                process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT)
                _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
            if status:
                sys.exit(f"error: {side} failed: {log_path.read_text()[-2000:]}")
            kept = set(json.loads((Path(folder) / "kept.json").read_text()))
        result[side] = {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_memory_mb": round(usage.ru_maxrss / 1000),
            **_score(records, kept),
        }
    return result


def _score(records: list[dict[str, Any]], kept: set[int]) -> dict[str, float]:
    """Return precision and recall of what is left out, of copies and of what filters are for."""
    kind_by_id = {record["id"]: record["kind"] for record in records}
    pairs = [(r["id"], r["of"], r["kind"]) for r in records if r["of"] >= 0]
    in_pairs = {number for pair in pairs for number in pair[:2]}
    left_out = kind_by_id.keys() - kept
    is_filtered = {k: kind_by_id[k] in ("symbols", "script") for k in kind_by_id}
    copies = {k for k in left_out if not is_filtered[k]}
    scores = {"copies_precision": len(copies & in_pairs) / max(1, len(copies))}
    for name in ("copy", "near"):
        of_kind = [pair for pair in pairs if pair[2] == name]
        count = sum(a in left_out or b in left_out for a, b, _ in of_kind)
        scores[f"{name}_recall"] = count / len(of_kind)
    planted = {k for k in kind_by_id if is_filtered[k]}
    scores["filters_recall"] = len(planted & left_out) / len(planted)
    return {name: round(score, 4) for name, score in scores.items()}


def clean(text: Path, out: Path) -> None:
    """Tokenize a text with all filters; write the ids of the documents that are left."""
    from elmo.data.shards import Shards
    from elmo.io.location import Location
    from pipeline.cluster import workers
    from pipeline.settings.cluster import Cluster
    from pipeline.settings.params import TokenizeSettings
    from pipeline.stages.tokenize import tokenize
    from pipeline.text.input_files import find_inputs

    workers.tasks = lambda function, items, **_: map(function, items)  # type: ignore[assignment]
    workers.session = nullcontext  # type: ignore[assignment]
    filters = (LIMITS["min_bytes"], LIMITS["max_bytes"], LIMITS["max_symbols"], ("latin",))
    params = TokenizeSettings(
        "unicode",
        "split",
        "auto",
        0.05,
        SIMILARITY,
        10,
        *filters,
        1 << 22,  # type: ignore[arg-type]
    )
    tokenize(
        find_inputs([str(text)]),
        Location(out / "shards"),
        params,
        column="text",
        keep=("id",),
        work=Location(out / "work"),
        cluster=Cluster(workers=0, cpus=1, gpu=False, actors=1),
    )
    shards, kept = Shards(out / "shards"), set[int]()
    for entry in shards.entries():
        records = shards.open(entry).records
        kept |= {int(json.loads(record)["id"]) for record in records.unique().to_pylist()}
    (out / "kept.json").write_text(json.dumps(sorted(kept)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--megabytes", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1] == "--clean":
        clean(*map(Path, sys.argv[2:]))
    else:
        main()
