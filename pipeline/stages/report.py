"""report: all figures of a run as pictures and one HTML page that needs nothing else.

The frame of the page is report.html; each section here is a function from figures to HTML.
"""

import base64
import csv
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import ElmoError, Mismatch, NotFound
from elmo.io.atomic import new_folder
from elmo.io.folders import local_folder
from elmo.io.location import Folder
from elmo.io.records import read_json
from elmo.store.neighbors import parse_query

from .. import tracking
from ..settings.params import Report
from .occurrences import (
    FEWEST,
    Occurrence,
    occurrences,
    picture,
)
from .stage import Argument, Stage

if TYPE_CHECKING:
    from elmo.store import FeatureStore

    from .plots import Curve

SENTENCES = 300
FIGURES = ("tokenize-general", "tokenize-domain", "vocab", "pretrain", "finetune", "features")
PICTURES = ("curves", "perplexity", "layers", "vocabulary")
COLUMNS = {"train": ("tokens", "perplexity"), "heldout": ("tokens", "average")}
TEXTS = {"general": "general text", "domain": "domain text"}
INPUTS = {"corpus": "Domain text", "general": "General text", "parent": "Pretrained model"}


class FileFigures(dict[str, Any]):
    """The figures of a JSON file; one that is missing is an `ElmoError` naming the file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise ElmoError(f"{self.path}: has no {key}; run the stage that writes it again")

    def under(self, key: str) -> "FileFigures":
        """The object at `key`."""
        return FileFigures(self.path, self[key])


STAGE = Stage(
    name="report",
    version=4,
    help="Write one HTML page with the figures and plots of all stages.",
    inputs=(
        Argument("numbers_in", "path", "The folder of the stages' figures."),
        Argument("curves", "path", "The folder of the curves."),
        Argument("vocab", help="The vocabulary."),
        Argument("model", help="The model."),
        Argument("store", help="The store."),
        Argument("registered", "path", "What register wrote."),
    ),
    outputs=(Argument("out", "path"),),
    run=lambda params, **given: run(params=params.report, tasks=tuple(params.tasks), **given),
    summary=lambda figures, given: summary(figures, given["out"]),
    product="report {out}/index.html",
    work=None,
)


def run(
    out: Path,
    params: Report,
    *,
    numbers_in: Path,
    curves: Path,
    vocab: Folder,
    model: Folder,
    store: Folder,
    registered: Path,
    tasks: Sequence[str] = (),
) -> dict[str, int]:
    """Write `index.html` and its PNGs to `out`, and log the page to MLflow; equal inputs give equal
    bytes.

    `tasks` names those whose figures and pictures are there.
    `model` is a fine-tuned model and `store` one that it made: `ElmoError` where they disagree, or
    where a figure is missing.
    """
    with local_folder(vocab) as words, local_folder(model) as local_model:
        sources = {"model": model, "store": store}
        folders = {"numbers_in": numbers_in, "curves": curves, "vocab": words, "model": local_model}
        return _write(out, params, store, registered, tasks, sources=sources, **folders)


def summary(figures: dict[str, int], out: Path) -> str:
    """Return where the page is, in words."""
    return f"open {out / 'index.html'} ({figures['pictures']} pictures)"


def _write(
    out: Path,
    params: Report,
    store: Folder,
    registered: Path,
    tasks: Sequence[str],
    *,
    sources: dict[str, Folder],
    numbers_in: Path,
    curves: Path,
    vocab: Path,
    model: Path,
) -> dict[str, int]:
    from elmo.store import FeatureStore

    from . import plots as pictures

    figures = {name: _read(numbers_in / f"{name}.json") for name in FIGURES}
    by_task = {name: _read(numbers_in / f"tasks-{name}.json") for name in tasks}
    training = _read(model / "training.json")
    scores = training.under("perplexity")
    opened = FeatureStore(store, model=model)
    version = _registered(registered, opened)
    lines = _curves(curves, scores)
    counts = _counts(vocab)
    layers = layer_statistics(opened)
    unigram = {
        "pretraining on general text": figures["pretrain"]["unigram_perplexity"],
        "fine-tuning on domain text": scores.under("after").under("domain")["unigram"],
    }
    read = {"model": version["model_digest"], "store": opened.digest}
    with tracking.run("report", params, inputs=read, sources=sources) as log:
        with new_folder(out, ours=("index.html", "curves.png"), also=r"\w+\.png") as folder:
            pictures.curves(folder / "curves.png", lines, unigram)
            pictures.perplexity(folder / "perplexity.png", _bars(scores))
            pictures.layers(folder / "layers.png", layers)
            pictures.vocabulary(
                folder / "vocabulary.png", counts, tokens=figures["vocab"]["tokens"]
            )
            drawn = {name: _picture(folder / f"{name}.png") for name in PICTURES}
            sections = {
                "What was run": _what(figures, version, training, model, opened),
                "Perplexity": _perplexities(figures, scores) + drawn["perplexity"],
                "Training": _training(figures) + drawn["curves"],
                "Corpus": _corpus(figures),
                "Vocabulary": _vocabulary(figures) + drawn["vocabulary"],
                "Layers": _layers(layers) + drawn["layers"],
                "Neighbours": _neighbors(params, store, model),
                "Uses of a word": _uses(params, opened, model),
                "Store": _store(opened),
            }
            if by_task:
                sections |= {"Tasks": _tasks(by_task, curves / "tasks")}
            page = _page(params.title, _summary(figures), sections)
            (folder / "index.html").write_text(page, encoding="utf-8")
        log.artifact(out / "index.html")
    return {"pictures": len(PICTURES)}


def layer_statistics(store: "FeatureStore") -> dict[str, dict[str, float]]:
    """For each layer the mean norm of a vector, and the mean cosine of different tokens of a
    sentence (NaN where no sentence has two), over sentences spread evenly through the store."""
    norms: list[np.ndarray[Any, Any]] = []
    cosines: list[np.ndarray[Any, Any]] = []
    for k in range(0, len(store), max(1, len(store) // SENTENCES)):
        vectors_LTD, tokens = store[k], np.array(store.tokens(k))
        norm_LT = np.linalg.norm(vectors_LTD, axis=-1)
        unit_LTD = vectors_LTD / np.maximum(norm_LT, 1e-9)[..., None]
        different_TT = tokens[:, None] != tokens[None, :]
        norms.append(norm_LT)
        if different_TT.any():
            cosines.append((unit_LTD @ unit_LTD.swapaxes(1, 2))[:, different_TT].mean(1))
    nothing = np.full((len(store.layers), 1), np.nan)
    norm_L = (np.concatenate(norms, 1) if norms else nothing).mean(1)
    cosine_L = (np.stack(cosines, 1) if cosines else nothing).mean(1)
    return {
        name: {"norm": float(norm), "cosine": float(cosine)}
        for name, norm, cosine in zip(store.layers, norm_L, cosine_L, strict=True)
    }


def _read(path: Path) -> FileFigures:
    return FileFigures(path, read_json(path))


def _version(registered: FileFigures) -> str:
    if not registered["version"]:
        return "nothing: it is an experiment"
    return f"{_code(registered['uri'])}, version {registered['version']}"


def _registered(path: Path, store: "FeatureStore") -> FileFigures:
    registered = _read(path)
    model = store.manifest.model.digest
    if registered["model_digest"] != model:
        raise Mismatch(
            f"{path}: names model {registered['model_digest'][:12]}…, the store was made by "
            f"{model[:12]}…; run register again"
        )
    return registered


def _counts(vocab: Path) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return how often each word was seen, without the boundaries and the unknown."""
    from elmo.data.vocabulary import Vocabulary

    words = Vocabulary.load(vocab)
    if words.counts is None:
        raise NotFound(f"{vocab / 'counts.txt'}: no such file; run vocab again")
    known = np.delete(np.array(words.counts, np.int64), [words.bos, words.eos, words.unk])
    return np.sort(known)[::-1]


def _curves(folder: Path, scores: FileFigures) -> dict[str, dict[str, "Curve"]]:
    """The curves of both stages; the fine-tuned held-out one begins before the first step."""
    pretrain, finetune = (
        {name: _columns(folder / stage / f"{name}.tsv", COLUMNS[name]) for name in COLUMNS}
        for stage in ("pretrain", "finetune")
    )
    heldout = finetune["heldout"]
    heldout["tokens"].insert(0, 0.0)
    heldout["average"].insert(0, scores.under("before").under("domain")["average"])
    return {"pretraining on general text": pretrain, "fine-tuning on domain text": finetune}


def _columns(path: Path, names: tuple[str, ...]) -> "Curve":
    if not path.is_file():
        raise ElmoError(f"{path}: no such curve; run the stage that writes it")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    columns: Curve = {name: [] for name in names}
    for number, row in enumerate(rows, 2):
        for name in names:
            try:
                columns[name].append(float(row.get(name) or ""))
            except ValueError:
                raise ElmoError(
                    f"{path}:{number}: {name} must be a number, found {row.get(name)!r}; "
                    "run the stage that writes it again"
                ) from None
    return columns


def _page(title: str, summary: str, sections: dict[str, str]) -> str:
    names = {name: name.lower().replace(" ", "-") for name in sections}
    return Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        summary=summary,
        contents=" ".join(f'<a href="#{anchor}">{name}</a>' for name, anchor in names.items()),
        sections="\n".join(
            f'<h2 id="{names[name]}">{name}</h2>\n{content}' for name, content in sections.items()
        ),
    )


def _summary(figures: dict[str, FileFigures]) -> str:
    pretrain, tuned = figures["pretrain"], figures["finetune"]
    general = ""
    if "times_below_unigram" in pretrain:
        general = (
            f"Held-out perplexity {pretrain['heldout_perplexity']:.1f} on general text, "
            f"{pretrain['times_below_unigram']:.1f} times below the unigram model. "
        )
    return (
        f"{general}Fine-tuning took domain text from {tuned['domain_perplexity_before']:.1f} to "
        f"{tuned['domain_perplexity_after']:.1f}."
    )


def _what(
    figures: dict[str, FileFigures],
    version: FileFigures,
    training: FileFigures,
    model: Path,
    store: "FeatureStore",
) -> str:
    network = _read(model / "config.json").under("model")
    rows = [
        ("Registered as", _version(version)),
        ("Network", _network(network)),
        ("Pretrained on", _pretrained_on(figures["pretrain"])),
        (
            "Fine-tuned on",
            f"{figures['finetune']['tokens_seen']:,} tokens of domain text, read in "
            f"{figures['finetune']['steps']:,} steps",
        ),
        ("MLflow run of the model", _code(training.get("run_id", ""))),
        ("Digest of the model", _code(version["model_digest"])),
        *(
            (f"Digest of its {INPUTS.get(name, name).lower()}", _code(value))
            for name, value in sorted(training["inputs"].items())
        ),
        ("Digest of the store", _code(store.digest)),
    ]
    return _table(rows)


def _pretrained_on(pretrain: FileFigures) -> str:
    if "steps" not in pretrain:
        return "another text, elsewhere: the model was taken as it is (pretrain.model)"
    return (
        f"{pretrain['tokens_seen']:,} tokens of general text, read in {pretrain['steps']:,} steps"
    )


def _network(network: FileFigures) -> str:
    filters = sum(count for _, count in network["filters"])
    return (
        f"{filters} character filters, {network['highways']} highway, {network['layers']} layers "
        f"of {network['cells']} cells each way, projected to {network['projection']}: vectors of "
        f"{2 * network['projection']} numbers"
    )


def _bars(scores: FileFigures) -> dict[str, dict[str, float]]:
    before, after = scores.under("before"), scores.under("after")
    return {
        title: {
            "unigram model": after.under(text)["unigram"],
            "pretrained": before.under(text)["average"],
            "fine-tuned": after.under(text)["average"],
        }
        for text, title in TEXTS.items()
    }


def _perplexities(figures: dict[str, FileFigures], scores: FileFigures) -> str:
    rows = []
    for text, title in TEXTS.items():
        before, after = scores.under("before").under(text), scores.under("after").under(text)
        change = after["average"] / before["average"] - 1
        rows.append(
            (
                title.capitalize(),
                *(
                    f"{value:.1f}"
                    for value in (after["unigram"], before["average"], after["average"])
                ),
                f"{change:+.1%}".replace("-", "−"),
                f"{after['unigram'] / after['average']:.2f} ×",
                f"{after['bits_per_byte']:.3f}",
                f"{after['tokens']:,}",
                f"{after['unk_rate']:.1%}",
            )
        )
    head = (
        "Held-out",
        "unigram",
        "pretrained",
        "fine-tuned",
        "change",
        "below unigram",
        "bits per byte",
        "tokens",
        "unknown",
    )
    pretrain, added = figures["pretrain"], figures["finetune"]["words_added"]
    note = ""
    if "times_below_unigram" in pretrain:
        note = (
            f"With its own vocabulary the pretrained model has "
            f"{pretrain['heldout_perplexity']:.1f} on general text (forward "
            f"{pretrain['heldout_forward']:.1f}, backward {pretrain['heldout_backward']:.1f}; "
            f"unigram model {pretrain['unigram_perplexity']:.1f}). "
        )
    note += (
        "The table and the picture compare both models under the fine-tuned one's vocabulary, "
        f"which has {added:,} words more; before training these share the probability of <UNK>."
    )
    return _table(rows, head=head) + _note(note)


def _training(figures: dict[str, FileFigures]) -> str:
    return _note(
        "Held-out perplexity is the mean of both directions under the full softmax. Training "
        "perplexity is that of the loss: with dropout, and under the softmax of the settings."
    )


def _corpus(figures: dict[str, FileFigures]) -> str:
    both = [figures[f"tokenize-{text}"] for text in TEXTS]
    names = {
        "documents": "Documents",
        "sentences": "Sentences",
        "blank_lines": "Blank lines",
        "tokens": "Tokens",
        "heldout_tokens": "Tokens held out",
        "long_tokens": "Tokens too long, cut",
        "bytes": "Bytes of text",
        "token_bytes": "Bytes in tokens",
    }
    dropped = sorted(
        {
            name
            for figures_of_text in both
            for name in figures_of_text
            if name.startswith("dropped_")
        }
    )
    names |= {name: f"Dropped, {_reason(name)}" for name in dropped}
    others = {
        "not_text_sentences": "Sentences that hardly look like text",
        "odd_script_sentences": "Sentences in an unusual script",
    }
    rows = []
    for name, title in (names | others).items():
        rows.append((title, *(f"{text.get(name, 0):,}" for text in both)))
    rows.append(("Duplicates among sentences", *(f"{f['duplicate_share']:.1%}" for f in both)))
    return _table(rows, head=("", *TEXTS.values()))


def _reason(name: str) -> str:
    reason, unit = name.removeprefix("dropped_").rsplit("_", 1)
    return f"{reason.replace('_', ' ')} ({unit})"


def _vocabulary(figures: dict[str, FileFigures]) -> str:
    vocab = figures["vocab"]
    rows = [
        ("Words", f"{vocab['words']:,}"),
        ("Distinct tokens", f"{vocab['types']:,}"),
        ("Training tokens", f"{vocab['tokens']:,}"),
        ("Training tokens covered", f"{vocab['coverage']:.2%}"),
        ("Held-out tokens covered", f"{vocab['heldout_coverage']:.2%}"),
        ("Characters", f"{vocab['characters']:,}"),
        ("Tokens cut to fit", f"{vocab['long_tokens']:,}"),
    ]
    return _table(rows, numbers=True)


def _tasks(by_task: dict[str, FileFigures], pictures: Path) -> str:
    """Return what each task scored on its test file with ELMo and without."""
    from .tasks import ARMS, SIMPLE, rank

    titles = ARMS | SIMPLE

    parts = []
    for name, figures in by_task.items():
        arms = {arm: figures.under(arm) for arm in titles if arm in figures}
        names = [key for key in next(iter(arms.values())) if not key.endswith("_sd")]
        scores = sorted(names, key=rank)
        rows = [(titles[arm], *(_score(row, key) for key in scores)) for arm, row in arms.items()]
        parts += [f"<h3>{escape(name)}</h3>\n", _table(rows, head=("", *map(escape, scores)))]
        examples = figures.under("examples")
        parts.append(
            _note(
                f"Mean of {figures['seeds']} seeds on {examples['test']:,} test examples, "
                f"± the standard deviation; {examples['train']:,} to learn from." + _gain(figures)
            )
        )
        parts.append(_picture(pictures / f"{name}.png"))
    return "".join(parts)


def _gain(figures: FileFigures) -> str:
    """Return what ELMo gains, with both intervals; nothing where one arm was trained alone."""
    from .tasks import between

    if "gain" not in figures:
        return ""
    seeds = between(figures["gain_low"], figures["gain_high"])
    units = between(figures["gain_test_low"], figures["gain_test_high"])
    return (
        f" With ELMo {figures['gain']:+.3f}: the 95 % interval over seeds is {seeds} (Student's "
        f"t), over the test examples {units} (paired bootstrap)."
    )


def _score(figures: FileFigures, name: str) -> str:
    deviation = f" ± {figures[name + '_sd']:.3f}" if name + "_sd" in figures else ""
    return f"{figures[name]:.3f}{deviation}"


def _layers(by_layer: dict[str, dict[str, float]]) -> str:
    rows = [
        (name.replace("_", " "), f"{row['norm']:.2f}", f"{row['cosine']:.3f}")
        for name, row in by_layer.items()
    ]
    note = (
        f"Over up to {SENTENCES} sentences spread evenly through the store. Layer 0 sees the "
        "characters of a token alone, the others its sentence; the cosine is that of two "
        "different tokens of one sentence."
    )
    return _note(note) + _table(rows, head=("Layer", "mean norm", "mean cosine"))


def _neighbors(params: Report, store: Folder, model: Path) -> str:
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore
    from elmo.store.neighbors import clearest_layer, neighbors, parse_query, random_cosine

    opened, embedder = FeatureStore(store, checked=True), Embedder.load(model, device="cpu")
    layer = clearest_layer(opened)
    compared = "The vectors" if layer is None else f"Layer {layer}, whose vectors differ most,"
    parts = [
        f"<p>Which tokens of the store are used most like the marked one? {compared} compared by "
        f"cosine; two random tokens have {random_cosine(opened, layer):.3f}.</p>\n"
    ]
    for text in params.neighbors_of:
        tokens, position = parse_query(text, tokenize=embedder.tokenize)
        nearest = neighbors(opened, embedder, tokens, position, k=params.neighbors, layer=layer)
        rows = [
            (
                f"{neighbor.cosine:.3f}",
                str(neighbor.sentence_id),
                _marked(neighbor.tokens, neighbor.position),
            )
            for neighbor in nearest
        ]
        query = re.sub(r"\[(\S+)\]", r"<b>\1</b>", escape(text))
        head = ("cosine", "sentence", "used there")
        parts.append(f"<h3>{query}</h3>\n" + _table(rows, head=head, words=(2,)))
    return "".join(parts)


def _uses(params: Report, store: "FeatureStore", model: Path) -> str:
    """Each marked token's occurrences on a plane."""
    from elmo.model.embedder import Embedder

    tokenize = Embedder.load(model, device="cpu").tokenize
    words: dict[str, None] = {}
    for text in params.neighbors_of:
        tokens, index = parse_query(text, tokenize=tokenize)
        words[tokens[index]] = None
    parts = [
        _note(
            "Each point is an occurrence in the store: the mean of its layers on the two principal "
            "directions. Its colour is the nearest of at most three uses (k-means of the vectors); "
            "a list shows the most typical occurrence of each. A point tells its sentence."
        )
    ]
    for word in words:
        of_word = occurrences(store, word)
        drawn = _note(f"Occurs {len(of_word)} times, too rarely for a picture.")
        if len(of_word) >= FEWEST:
            drawn = picture(of_word)
        parts.append(f"<h3>{escape(word)}</h3>\n{drawn}")
    return "".join(parts)


def _marked(tokens: list[str], index: int) -> str:
    """The tokens around `index`, that one in bold."""
    return Occurrence(np.empty(0, np.float32), index, tokens).marked()


def _store(store: "FeatureStore") -> str:
    counts, layout = store.manifest.counts, store.layout
    rows = [
        ("Sentences", f"{counts.sentences:,}"),
        ("Tokens", f"{counts.tokens:,}"),
        ("Layers", ", ".join(name.replace("_", " ") for name in layout.layers)),
        ("Numbers in a vector", f"{layout.dim:,}, {layout.dtype}"),
        ("Compression", layout.codec),
        ("Parts", f"{counts.parts:,}"),
        ("Bytes", f"{counts.bytes:,}"),
        ("Bytes per token", f"{counts.bytes / max(1, counts.tokens):,.0f}"),
        ("Tokens of a row group, at most", f"{layout.row_group_tokens:,}"),
        ("Version", str(store.manifest.version)),
    ]
    return _table(rows, numbers=True)


def _table(
    rows: Sequence[tuple[str, ...]],
    *,
    head: tuple[str, ...] = (),
    numbers: bool = False,
    words: tuple[int, ...] = (0,),
) -> str:
    """Rows of HTML as a table. With `head` or `numbers` all columns but `words` hold numbers."""

    def row(tag: str, cells: tuple[str, ...]) -> str:
        shown = []
        for index, cell in enumerate(cells):
            kind = "" if index in words or not (head or numbers) else " class=n"
            label = f' data-label="{escape(head[index])}"' if head and tag == "td" else ""
            shown.append(f"<{tag}{kind}{label}>{cell}</{tag}>")
        return "".join(shown)

    body = "\n".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    top = f"<thead><tr>{row('th', head)}</tr></thead>\n" if head else ""
    kind = " class=cards" if len(head) > 3 or 2 in words else ""
    return f"<table{kind}>{top}<tbody>\n{body}\n</tbody></table>\n"


def _note(text: str) -> str:
    return f'<p class="small">{text}</p>\n'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{path.stem}" src="data:image/png;base64,{data}">\n'
