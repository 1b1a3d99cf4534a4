"""report: all figures of a run as pictures and one HTML page that needs nothing else."""

import base64
import csv
import html
from pathlib import Path
from typing import Any

import numpy as np

from elmo.errors import ElmoError
from elmo.files import new_folder, read_json
from pipeline.params import Report

SENTENCES = 300
_STYLE = """
body{font:16px/1.55 system-ui,sans-serif;color:#1a202c}
body{max-width:60rem;margin:2.5rem auto;padding:0 1rem}
h1{font-size:1.7rem;margin-bottom:.2rem}
h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #e2e8f0}
table{border-collapse:collapse;margin:.8rem 0}td,th{padding:.25rem .9rem .25rem 0;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}img{max-width:100%}
code{background:#f7fafc;padding:.1rem .3rem}p.small,td.small{color:#4a5568;font-size:.9rem}
"""


def run(
    out: Path,
    params: Report,
    *,
    metrics: Path,
    curves: Path,
    vocab: Path,
    model: Path,
    store: Path,
    registered: Path,
) -> dict[str, int]:
    """Write `index.html` and its PNGs to `out`; the same inputs give the same bytes."""
    from elmo.vocabulary import Vocabulary
    from pipeline import pictures

    names = ("corpus", "tokenize-general", "tokenize-task", "vocab", "pretrain", "finetune")
    figures = {name: read_json(metrics / f"{name}.json") for name in (*names, "features")}
    lines = {stage: _curves(curves / stage) for stage in ("pretrain", "finetune")}
    counts = np.array(Vocabulary.load(vocab).counts)[3:]
    layers = _layers(store)
    with new_folder(out) as folder:
        pictures.curves(folder / "curves.png", lines)
        pictures.perplexity(folder / "perplexity.png", _bars(figures))
        pictures.layers(folder / "layers.png", layers)
        pictures.vocabulary(folder / "vocabulary.png", counts)
        sections = [
            ("What was run", _what(figures, read_json(registered), model)),
            ("Perplexity", _picture(folder / "perplexity.png") + _perplexities(figures)),
            ("Training", _picture(folder / "curves.png")),
            ("Corpus", _corpus(figures)),
            ("Vocabulary", _picture(folder / "vocabulary.png") + _vocabulary(figures)),
            ("Layers", _picture(folder / "layers.png")),
            ("Neighbours", _neighbors(params, store, model)),
        ]
        (folder / "index.html").write_text(_page(params.title, sections), encoding="utf-8")
    return {"pictures": 4}


def _page(title: str, sections: list[tuple[str, str]]) -> str:
    body = "\n".join(f"<h2>{name}</h2>\n{content}" for name, content in sections)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    page = f"<h1>{html.escape(title)}</h1>\n{body}"
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>{page}</body></html>\n"


def _what(figures: dict[str, Any], registered: dict[str, Any], model: Path) -> str:
    lineage = read_json(model / "training.json")
    rows = [
        ("Model", f"{registered['uri']}, version {registered['version']}"),
        ("Model digest", registered["model_digest"][:16]),
        ("MLflow run of its training", lineage.get("run_id", "")),
        *((f"Digest of {name}", value[:16]) for name, value in lineage["inputs"].items()),
        ("Pretrained on", f"{figures['pretrain']['tokens_seen']:,} tokens"),
        ("Fine-tuned on", f"{figures['finetune']['tokens_seen']:,} tokens"),
        ("Store", f"{figures['features']['tokens']:,} tokens"),
        ("Bytes a token in the store", f"{figures['features']['bytes_per_token']:,.0f}"),
    ]
    return _table(rows)


def _bars(figures: dict[str, Any]) -> list[tuple[str, float, str]]:
    pretrain, tuned = figures["pretrain"], figures["finetune"]
    return [
        ("general text, unigram model", pretrain["unigram_perplexity"], "unigram"),
        ("general text, pretrained", tuned["general_perplexity_before"], "before"),
        ("general text, fine-tuned", tuned["general_perplexity_after"], "after"),
        ("task text, pretrained", tuned["task_perplexity_before"], "before"),
        ("task text, fine-tuned", tuned["task_perplexity_after"], "after"),
    ]


def _perplexities(figures: dict[str, Any]) -> str:
    pretrain, tuned = figures["pretrain"], figures["finetune"]
    return _table(
        [
            ("General text, forward", f"{pretrain['heldout_forward']:.1f}"),
            ("General text, backward", f"{pretrain['heldout_backward']:.1f}"),
            ("Times below the unigram model", f"{pretrain['times_below_unigram']:.2f}"),
            ("Task perplexity lowered by", f"{tuned['task_gain']:.1%}"),
            ("General perplexity raised by", f"{tuned['general_loss']:.1%}"),
            ("Words added for the task", f"{tuned['words_added']:,}"),
        ]
    )


def _corpus(figures: dict[str, Any]) -> str:
    rows = []
    for text in ("general", "task"):
        found = figures[f"tokenize-{text}"]
        plain = ("documents", "sentences", "tokens", "heldout_tokens", "bytes", "blank_lines")
        rows += [(f"{text.title()} text, {_words(n)}", f"{found[n]:,}") for n in plain]
        rows += [
            (f"{text.title()} text, {_words(name)}", f"{value:,}")
            for name, value in found.items()
            if name.startswith("dropped_") and value
        ]
        rows.append((f"{text.title()} text, tokens too long", f"{found['long_tokens']:,}"))
        rows.append((f"{text.title()} text, duplicates", f"{found['duplicate_share']:.1%}"))
    return _table(rows)


def _vocabulary(figures: dict[str, Any]) -> str:
    found = figures["vocab"]
    return _table(
        [
            ("Words", f"{found['words']:,}"),
            ("Distinct tokens", f"{found['types']:,}"),
            ("Characters", f"{found['characters']:,}"),
            ("Training tokens covered", f"{found['coverage']:.2%}"),
            ("Held-out tokens covered", f"{found['heldout_coverage']:.2%}"),
            ("Tokens cut to fit", f"{found['long_tokens']:,}"),
        ]
    )


def _layers(path: Path) -> dict[str, dict[str, float]]:
    """Norms and likeness of vectors, over sentences spread evenly through the store."""
    from elmo.features import FeatureStore

    store = FeatureStore(path)
    chosen = range(0, len(store), max(1, len(store) // SENTENCES))
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in store.layers}
    for k in chosen:
        vectors = store[k]
        if vectors.shape[1] < 2:
            continue
        for name, layer in zip(store.layers, vectors, strict=True):
            norms = np.linalg.norm(layer, axis=1)
            unit = layer / np.maximum(norms, 1e-9)[:, None]
            n = len(unit)
            cosine = (float((unit.sum(0) ** 2).sum()) - n) / (n * (n - 1))
            rows[name].append((float(norms.mean()), cosine))
    means = {name: np.mean(found, 0) for name, found in rows.items()}
    return {name: {"norm": float(m[0]), "cosine": float(m[1])} for name, m in means.items()}


def _neighbors(params: Report, store: Path, model: Path) -> str:
    from pipeline.text_commands import nearest_of

    found = nearest_of(store, params.neighbors_of, model=model, count=params.neighbors, layer=None)
    rows = []
    for one in found:
        tokens = [html.escape(token) for token in one.tokens]
        tokens[one.place] = f"<b>{tokens[one.place]}</b>"
        near = tokens[max(0, one.place - 12) : one.place + 13]
        rows.append(f"<tr><td class=n>{one.cosine:.3f}</td><td>{' '.join(near)}</td></tr>")
    query = html.escape(params.neighbors_of)
    head = (
        f"<p>The tokens of the store used most like the one in brackets: <code>{query}</code></p>"
    )
    return f"{head}<table>{''.join(rows)}</table>"


def _curves(folder: Path) -> dict[str, dict[str, list[float]]]:
    return {name: _columns(folder / f"{name}.tsv") for name in ("train", "heldout")}


def _columns(path: Path) -> dict[str, list[float]]:
    if not path.is_file():
        raise ElmoError(f"{path}: no such curve; run the stage that writes it")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else ("tokens",))}


def _table(rows: list[tuple[str, str]]) -> str:
    cells = (
        f"<tr><td>{html.escape(k)}</td><td class=n>{html.escape(v)}</td></tr>" for k, v in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{path.stem}" src="data:image/png;base64,{data}">'


def _words(name: str) -> str:
    return name.replace("_", " ")
