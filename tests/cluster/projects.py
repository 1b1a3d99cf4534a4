"""The project that the tests submit, and what must not depend on where the work was done."""

import re
from pathlib import Path

import yaml

from elmo.io.records import sha256

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://10.77.0.1:8265"
WORDS = "the cat sat on a mat while an old dog slept near the open door today".split()


def text(shift: int, documents: int) -> str:
    lines = []
    for k in range(documents):
        for j in range(4):
            words = [WORDS[(k * 3 + j + shift * m) % len(WORDS)] for m in range(5 + k % 6)]
            lines.append(" ".join(words) + " .")
        lines.append("")
    return "\n".join(lines) + "\n"


def shrink(params: dict, *, shard_bytes: int) -> None:
    """Make the settings those of a tiny network and a text of one sentence a line."""
    params["tokenize"] |= {"sentences": "line", "heldout": 0.2, "shard_bytes": shard_bytes}
    params["pretrain"]["network"] |= {
        "char_dim": 4,
        "filters": [[1, 4], [2, 8]],
        "cells": 16,
        "projection": 8,
    }
    for stage in ("pretrain", "finetune"):
        params[stage]["training"] |= {"rows": 8, "window": 8, "samples": 16, "evaluate_every": 10}
        params[stage]["training"] |= {"epochs": 2, "block_sentences": 4}


def project(folder: Path, *, at: str = "") -> Path:
    """The project's own graph with a small corpus, beside it or at a URL, and a tiny network."""
    folder.mkdir()
    (folder / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    general, task = folder.parent / "general.txt", folder.parent / "task.txt"
    general.write_text(text(1, 120))
    task.write_text(text(2, 80))
    at = at or str(folder.parent)
    params["corpus"] |= {"general": [f"{at}/general.txt"], "domain": [f"{at}/task.txt"]}
    shrink(params, shard_bytes=4096)
    for stage in ("pretrain", "finetune"):
        params[stage]["training"]["precision"] = "float32"
    params["labels"] |= {"package": "click", "train": 40, "dev": 20, "test": 20}
    params["tasks"]["code"] |= {"seeds": 2, "settings": {"epochs": 1, "hidden": 8}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def digests(folder: Path) -> dict[str, str]:
    """What must not depend on where the work was done; a store's manifest names its run."""
    found = sorted((folder / "models").rglob("weights.safetensors"))
    found += sorted((folder / "data" / "features").rglob("*-?????-*"))
    found += sorted((folder / "data" / "shards").rglob("*.arrow"))
    names = [str(path.relative_to(folder)) for path in found]
    return {
        re.sub("/[0-9a-f]{16}/", "/", name): sha256(path)
        for name, path in zip(names, found, strict=True)
    }


def losses(folder: Path) -> list[float]:
    rows = (folder / "curves" / "pretrain" / "train.tsv").read_text().splitlines()
    column = rows[0].split("\t").index("perplexity")
    return [float(row.split("\t")[column]) for row in rows[1:]]
