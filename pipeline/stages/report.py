"""report: all figures of a run as pictures and one self-contained HTML page.

Each section here is a function from figures to blocks of the page, which `page.py` renders.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from elmo.errors import ElmoError, Mismatch, NotFound
from elmo.io.folders import local_folder, new_folder
from elmo.io.location import Location
from elmo.io.records import read_json

from .. import tracking
from ..settings.fingerprint import plain
from ..settings.params import Params, Report
from .occurrences import (
    FEWEST,
    Occurrence,
    occurrences,
    picture,
)
from .page import Block, Drawing, Fold, Heading, Paragraph, Picture, Table, code, render
from .stage import UNKNOWN, Argument, Stage, beside_unigram

if TYPE_CHECKING:
    from elmo.store import FeatureStore

    from .plots import Curve

SENTENCES = 300
FIGURES = ("tokenize-general", "tokenize-domain", "vocab", "pretrain", "finetune", "features")
PICTURES = ("curves", "steps", "perplexity", "layers", "vocabulary")
COLUMNS = {
    "train": ("tokens", "perplexity", "lr", "gradient_norm"),
    "heldout": ("tokens", "average"),
}
SAMPLES = 6  # sentences of the text that are shown
FILES = 12  # of a text whose names are shown; the others are folded away
TEXTS = {"general": "general text", "domain": "domain text"}
INPUTS = {"corpus": "Domain text", "general": "General text", "parent": "Pretrained model"}


class FileFigures(dict[str, Any]):
    """The figures of a JSON file; a missing one is an `ElmoError` that names the file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise ElmoError(f"{self.path}: has no {key}; run the stage that writes it again")

    def under(self, key: str) -> "FileFigures":
        """Return the figures of the object at `key`."""
        return FileFigures(self.path, self[key])


STAGE = Stage(
    name="report",
    version=7,
    help="Write one HTML page with the figures and plots of all stages.",
    inputs=(
        Argument("numbers_in", "path", "The folder of the stages' figures."),
        Argument("curves", "path", "The folder of the curves."),
        Argument("vocab", help="The vocabulary."),
        Argument("model", help="The model."),
        Argument("store", help="The store."),
        Argument("registered", "path", "What register wrote."),
        Argument("corpus", "path", "The corpus, whose files are named.", required=False),
    ),
    outputs=(Argument("out", "path"),),
    run=lambda params, **given: run(
        params=params.report, tasks=tuple(params.tasks), settings=params, **given
    ),
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
    vocab: Location,
    model: Location,
    store: Location,
    registered: Path,
    corpus: Path | None = None,
    tasks: Sequence[str] = (),
    settings: Params | None = None,
) -> dict[str, int]:
    """Write `index.html` and its PNGs to `out`, and log the page to MLflow; return their number.

    `tasks` are the names of tasks that have figures and pictures. `settings`, if given, are listed
    on the page, and what MLflow knows of the training runs and of the previous run is added. Raises
    `ElmoError` where a figure is missing, or `store` was not made from `model`. Equal inputs, and
    equal runs in MLflow, give equal bytes.
    """
    with local_folder(vocab) as words, local_folder(model) as local_model:
        sources = {"model": model, "store": store}
        folders = {"numbers_in": numbers_in, "curves": curves, "vocab": words, "model": local_model}
        return _write(
            out,
            params,
            store,
            registered,
            tasks,
            sources=sources,
            corpus=corpus,
            settings=settings,
            **folders,
        )


def summary(figures: dict[str, int], out: Path) -> str:
    """Return a line that names the page."""
    return f"open {out / 'index.html'} ({figures['pictures']} pictures)"


def _write(
    out: Path,
    params: Report,
    store: Location,
    registered: Path,
    tasks: Sequence[str],
    *,
    sources: dict[str, Location],
    numbers_in: Path,
    curves: Path,
    vocab: Path,
    model: Path,
    corpus: Path | None,
    settings: Params | None,
) -> dict[str, int]:
    from elmo.store import FeatureStore

    from . import plots

    figures = {name: _read(numbers_in / f"{name}.json") for name in FIGURES}
    by_task = {name: _read(numbers_in / f"tasks-{name}.json") for name in tasks}
    training = _read(model / "training.json")
    scores = training.under("perplexity")
    opened = FeatureStore(store, model=model)
    version = _registered(registered, opened)
    trained, tuned = ("steps" in figures[stage] for stage in ("pretrain", "finetune"))
    lines = _curves(curves, scores, trained=trained, tuned=tuned)
    counts = _counts(vocab)
    layers = layer_statistics(opened)
    unigram = {}
    if trained:
        unigram["pretraining on general text"] = figures["pretrain"]["unigram_perplexity"]
    if tuned:
        unigram["fine-tuning on domain text"] = scores.under("after").under("domain")["unigram"]
    read = {"model": version["model_digest"], "store": opened.digest}
    draw: dict[str, Callable[..., None]] = {
        "curves": lambda file, **how: plots.draw_curves(file, lines, unigram, **how),
        "steps": lambda file, **how: plots.draw_steps(file, lines, **how),
        "perplexity": lambda file, **how: plots.draw_perplexity(file, _bars(scores), **how),
        "layers": lambda file, **how: plots.draw_layers(file, layers, **how),
        "vocabulary": lambda file, **how: plots.draw_vocabulary(
            file, counts, tokens=figures["vocab"]["tokens"], **how
        ),
    }
    with tracking.run("report", params, inputs=read, sources=sources) as log:
        runs = _runs(training, version)
        marks = ("index.html", "curves.png")
        with new_folder(Location(out), ours=marks, also=r"\w+\.png") as folder:
            drawn = {name: _drawn(folder / f"{name}.png", draw[name]) for name in PICTURES}
            sections: dict[str, list[Block]] = {
                "What was run": [
                    *_what(figures, version, training, model, opened, runs),
                    *_settings(settings),
                ],
                "The run before": _before(runs),
                "Perplexity": [*_perplexities(figures, scores), drawn["perplexity"]],
                "Training": [_training(), drawn["curves"], drawn["steps"]],
                "Text": [*_files(corpus), *_corpus(figures), *_samples(opened)],
                "Vocabulary": [_vocabulary(figures), drawn["vocabulary"]],
                "Layers": [*_layers(layers), drawn["layers"]],
                "Neighbours": _neighbors(params, store, model),
                "Uses of a word": _uses(params, opened, model),
                "Store": [_store(opened)],
                "Tasks": _tasks(by_task, curves / "tasks"),
            }
            page = render(params.title, _summary(figures), sections)
            (folder / "index.html").write_text(page, encoding="utf-8")
        log.artifact(out / "index.html")
    return {"pictures": len(PICTURES)}


def _drawn(path: Path, draw: Callable[..., None]) -> Picture:
    """Draw a picture to `path`, and again for a narrow screen."""
    narrow = io.BytesIO()
    draw(path)
    draw(narrow, narrow=True)
    return Picture(path.stem, path.read_bytes(), narrow.getvalue())


def layer_statistics(store: "FeatureStore") -> dict[str, dict[str, float]]:
    """Return each layer's mean norm of a vector, and mean cosine of a sentence's tokens.

    They are of sentences spread evenly through the store; the cosine is NaN where no sentence has
    two different tokens.
    """
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
    return Markup("{}, version {}").format(code(registered["uri"]), registered["version"])


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


def _curves(
    folder: Path, scores: FileFigures, *, trained: bool, tuned: bool
) -> dict[str, dict[str, "Curve"]]:
    """The curves of the stages that trained; the held-out one of fine-tuning begins before the
    first step."""
    pretrain, finetune = (
        {name: _columns(folder / stage / f"{name}.tsv", COLUMNS[name]) for name in COLUMNS}
        for stage in ("pretrain", "finetune")
    )
    lines = {"pretraining on general text": pretrain} if trained else {}
    if not tuned:
        return lines
    heldout = finetune["heldout"]
    heldout["tokens"].insert(0, 0.0)
    heldout["average"].insert(0, scores.under("before").under("domain")["average"])
    return lines | {"fine-tuning on domain text": finetune}


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


def _summary(figures: dict[str, FileFigures]) -> str:
    pretrain, tuned = figures["pretrain"], figures["finetune"]
    general = ""
    if "times_below_unigram" in pretrain:
        general = (
            f"Held-out perplexity {pretrain['heldout_perplexity']:.1f} on general text, "
            f"{beside_unigram(pretrain['times_below_unigram'], 'times')} the unigram model. "
        )
    if "steps" not in tuned:
        return f"{general}The domain text is the general text, so nothing was fine-tuned."
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
    runs: Mapping[str, tracking.RunFacts],
) -> list[Block]:
    network = _read(model / "config.json").under("model")
    rows = [
        ("Registered as", _version(version)),
        ("Network", _network(network)),
        ("Pretrained on", _pretrained_on(figures["pretrain"])),
        ("Fine-tuned on", _tuned_on(figures["finetune"])),
        *((f"{stage.capitalize()}", _described(facts)) for stage, facts in runs.items()),
    ]
    digests = [
        ("MLflow run of the model", code(training.get("run_id", ""))),
        ("Digest of the model", code(version["model_digest"])),
        *(
            (f"Digest of its {INPUTS.get(name, name).lower()}", code(value))
            for name, value in sorted(training["inputs"].items())
        ),
        ("Digest of the store", code(store.digest)),
    ]
    return [Table(rows), Fold("Digests", [Table(digests)])]


def _runs(training: FileFigures, version: FileFigures) -> dict[str, tracking.RunFacts]:
    """Return what MLflow knows of the runs that trained the model, by stage."""
    facts = {
        "pretrain": tracking.facts(
            "pretrain", training["inputs"].get("parent", version["model_digest"])
        ),
        "finetune": tracking.facts("finetune", version["model_digest"]),
    }
    return {stage: known for stage, known in facts.items() if known is not None}


def _described(facts: tracking.RunFacts) -> str:
    """Tell when, how long, how fast, where and by which commit, in words."""
    parts = [f"{_day(facts)} UTC", f"{facts.minutes:,.1f} minutes"]
    if rate := facts.metrics.get("train.tokens_per_second"):
        parts.append(f"{rate:,.0f} tokens per second")
    if facts.machine:
        parts.append(facts.machine)
    if facts.commit:
        parts.append(f"commit {facts.commit[:12]}" + " and changes" * facts.changed)
    return ", ".join(parts)


def _settings(settings: Params | None) -> list[Block]:
    if settings is None:
        return []
    rows = [(code(name), code(value)) for name, value in _flat(plain(settings)) if value != ""]
    return [Fold("Settings", [Table(rows)])]


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Settings by their whole names, as on the command line."""
    if not isinstance(value, dict) or not value:
        return [(name, str(value))]
    rows = ((f"{name}.{key}" if name else str(key), one) for key, one in value.items())
    return [row for key, one in rows for row in _flat(one, key)]


def _before(runs: Mapping[str, tracking.RunFacts]) -> list[Block]:
    """The run of finetune before this one, beside it; nothing where there is none."""
    now = runs.get("finetune")
    then = now and tracking.facts_before("finetune", now)
    if now is None or then is None:
        return []
    names = {
        f"{when}.{text}.average": f"{TEXTS[text].capitalize()}, {title}"
        for text in ("domain", "general")
        for when, title in (("before", "pretrained"), ("after", "fine-tuned"))
    }
    names["train.tokens_per_second"] = "Tokens per second"
    rows = [
        (title, f"{then.metrics[name]:,.1f}", f"{now.metrics[name]:,.1f}")
        for name, title in names.items()
        if name in then.metrics and name in now.metrics
    ]
    rows.append(("Minutes", f"{then.minutes:,.1f}", f"{now.minutes:,.1f}"))
    changed = [
        (code(name), then.params.get(name, "–"), now.params.get(name, "–"))
        for name in sorted(then.params.keys() | now.params.keys())
        if then.params.get(name) != now.params.get(name)
    ]
    head = ("", _day(then), "this run")
    blocks: list[Block] = [
        Paragraph("Held-out perplexities compare where the text and the words are the same."),
        Table(rows, head=head),
    ]
    return blocks + ([Table(changed, head=("changed setting", *head[1:]))] if changed else [])


def _day(facts: tracking.RunFacts) -> str:
    return datetime.fromtimestamp(facts.began, UTC).strftime("%Y-%m-%d %H:%M")


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


def _tuned_on(figures: FileFigures) -> str:
    if "steps" not in figures:
        return "nothing: the domain text is the general text"
    return f"{figures['tokens_seen']:,} tokens of domain text, read in {figures['steps']:,} steps"


def _bars(scores: FileFigures) -> dict[str, dict[str, float]]:
    after = scores.under("after")
    if "before" not in scores:
        one = after.under("general")
        return {TEXTS["general"]: {"unigram model": one["unigram"], "pretrained": one["average"]}}
    before = scores.under("before")
    return {
        title: {
            "unigram model": after.under(text)["unigram"],
            "pretrained": before.under(text)["average"],
            "fine-tuned": after.under(text)["average"],
        }
        for text, title in TEXTS.items()
    }


def _perplexities(figures: dict[str, FileFigures], scores: FileFigures) -> list[Block]:
    if "before" not in scores:
        return [_perplexity_of_one(scores.under("after").under("general"))]
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
    blocks: list[Block] = [Table(rows, head=head), Paragraph(note)]
    rate = max(scores.under("after").under(text)["unk_rate"] for text in TEXTS)
    if rate >= UNKNOWN:
        blocks.append(
            Paragraph(
                f"Up to {rate:.0%} of the tokens are unknown words, which all count as one and are "
                "easily guessed: this flatters a perplexity. Bits per byte tell more."
            )
        )
    return blocks


def _perplexity_of_one(figures: FileFigures) -> Table:
    """The table of a project of one text, whose model was pretrained alone."""
    row = (
        TEXTS["general"].capitalize(),
        f"{figures['unigram']:.1f}",
        f"{figures['average']:.1f}",
        f"{figures['unigram'] / figures['average']:.2f} ×",
        f"{figures['bits_per_byte']:.3f}",
        f"{figures['tokens']:,}",
        f"{figures['unk_rate']:.1%}",
    )
    head = ("Held-out", "unigram", "pretrained", "below unigram", "bits per byte", "tokens")
    return Table([row], head=(*head, "unknown"))


def _training() -> Paragraph:
    return Paragraph(
        "Held-out perplexity is the mean of both directions under the full softmax. Training "
        "perplexity is that of the loss: with dropout, and under the softmax of the settings."
    )


def _files(corpus: Path | None) -> list[Block]:
    """The names of the files that were read, and what of them was left out, by its reason."""
    if corpus is None:
        return []
    blocks: list[Block] = []
    texts = _read(corpus / "manifest.json").under("texts")
    for text, title in TEXTS.items():
        files = [(one["name"], f"{one['bytes']:,}") for one in texts.under(text)["inputs"]]
        blocks.append(Table(files[:FILES], head=(f"Files of the {title}", "bytes")))
        if more := files[FILES:]:
            blocks.append(Fold(f"{len(more)} more", [Table(more, numbers=True)]))
        if rows := _left_out(texts.under(text)):
            head = ("Reason", "paragraphs", "such as")
            title = f"Paragraphs left out of the {title}"
            blocks.append(Fold(title, [Table(rows, head=head, words=(0, 2))]))
    return blocks


def _left_out(text: FileFigures) -> list[tuple[str, str, str]]:
    """Return why paragraphs were left out, of how many that is so, and a few of them."""
    counts, samples = text.get("dropped_paragraphs", {}), text.get("dropped_samples", {})
    return [
        (reason, f"{count:,}", Markup("<br>").join(samples.get(reason, ())))
        for reason, count in counts.items()
        if count
    ]


def _samples(store: "FeatureStore") -> list[Block]:
    """Sentences of the domain text as they were cut, and such as are hardly text."""
    spread = range(0, len(store), max(1, len(store) // SENTENCES))
    texts = [tokens for k in spread if (tokens := store.tokens(k))]
    odd = [tokens for tokens in texts if _hardly_text(tokens)]
    usual = [tokens for tokens in texts if not _hardly_text(tokens)]
    titles = {"Domain text as it was cut": usual, "Sentences that hardly look like text": odd}
    return [
        Fold(title, [Table([(" ".join(one)[:300],) for one in some[:: len(some) // SAMPLES + 1]])])
        for title, some in titles.items()
        if some
    ]


def _hardly_text(tokens: Sequence[str]) -> bool:
    """Tell whether most tokens have no letter, as the quality of a text is counted."""
    return 2 * sum(not any(map(str.isalpha, token)) for token in tokens) > len(tokens)


def _corpus(figures: dict[str, FileFigures]) -> list[Block]:
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
    rows: list[tuple[str, ...]] = []
    zeros: list[tuple[str, ...]] = []
    for name, title in (names | others).items():
        row = (title, *(f"{text.get(name, 0):,}" for text in both))
        (rows if any(text.get(name) for text in both) else zeros).append(row)
    rows.append(("Duplicates among sentences", *(f"{f['duplicate_share']:.1%}" for f in both)))
    head = ("", *TEXTS.values())
    blocks: list[Block] = [Table(rows, head=head)]
    return blocks + ([Fold("What did not occur", [Table(zeros, head=head)])] if zeros else [])


def _reason(name: str) -> str:
    reason, unit = name.removeprefix("dropped_").rsplit("_", 1)
    return f"{reason.replace('_', ' ')} ({unit})"


def _vocabulary(figures: dict[str, FileFigures]) -> Table:
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
    return Table(rows, numbers=True)


def _tasks(by_task: dict[str, FileFigures], pictures: Path) -> list[Block]:
    """Return what each task scored on its test file with ELMo and without."""
    from .tasks import ARMS, SIMPLE, rank

    titles = ARMS | SIMPLE

    blocks: list[Block] = []
    for name, figures in by_task.items():
        arms = {arm: figures.under(arm) for arm in titles if arm in figures}
        names = [key for key in next(iter(arms.values())) if not key.endswith("_sd")]
        scores = sorted(names, key=rank)
        rows = [(titles[arm], *(_score(row, key) for key in scores)) for arm, row in arms.items()]
        blocks += [Heading(name), Table(rows, head=("", *scores))]
        examples = figures.under("examples")
        blocks.append(
            Paragraph(
                f"{_seeds(figures)}; {examples['test']:,} test examples, "
                f"{examples['train']:,} to learn from.{_gain(figures)}"
            )
        )
        blocks.append(Picture(name, (pictures / f"{name}.png").read_bytes()))
    return blocks


def _seeds(figures: FileFigures) -> str:
    seeds = figures["seeds"]
    return "One seed" if seeds == 1 else f"Mean of {seeds} seeds ± the standard deviation"


def _gain(figures: FileFigures) -> str:
    """Return what ELMo gains, with both intervals; nothing where one arm was trained alone."""
    from .tasks import between

    if "gain" not in figures:
        return ""
    seeds = ""
    if figures["gain_low"] is not None:
        interval = between(figures["gain_low"], figures["gain_high"])
        seeds = f"over seeds is {interval} (Student's t), "
    units = between(figures["gain_test_low"], figures["gain_test_high"])
    return (
        f" With ELMo {figures['gain']:+.3f}: the 95 % interval {seeds}over the test examples "
        f"{'' if seeds else 'is '}{units} (paired bootstrap)."
    )


def _score(figures: FileFigures, name: str) -> str:
    deviation = f" ± {figures[name + '_sd']:.3f}" if name + "_sd" in figures else ""
    return f"{figures[name]:.3f}{deviation}"


def _layers(by_layer: dict[str, dict[str, float]]) -> list[Block]:
    rows = [
        (name.replace("_", " "), f"{row['norm']:.2f}", f"{row['cosine']:.3f}")
        for name, row in by_layer.items()
    ]
    note = (
        f"Over up to {SENTENCES} sentences spread evenly through the store. Layer 0 sees the "
        "characters of a token alone, the others its sentence; the cosine is that of two "
        "different tokens of one sentence."
    )
    return [Paragraph(note), Table(rows, head=("Layer", "mean norm", "mean cosine"))]


def _neighbors(params: Report, store: Location, model: Path) -> list[Block]:
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore
    from elmo.store.neighbors import clearest_layer, neighbors, parse_query, random_cosine

    opened, embedder = FeatureStore(store, checked=True), Embedder.load(model, device="cpu")
    layer = clearest_layer(opened)
    compared = "Vectors" if layer is None else f"Those of layer {layer}, which differ most,"
    intro = (
        f"Which tokens of the store are used most like the marked one? {compared} are compared by "
        f"cosine; two random tokens have {random_cosine(opened, layer):.3f}."
    )
    blocks: list[Block] = [Paragraph(intro, small=False)]
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
        query = Markup(re.sub(r"\[(\S+)\]", r"<b>\1</b>", str(escape(text))))
        blocks.append(Heading(query))
        blocks.append(Table(rows, head=("cosine", "sentence", "used there"), words=(2,)))
    return blocks


def _uses(params: Report, store: "FeatureStore", model: Path) -> list[Block]:
    """Each marked token's occurrences on a plane."""
    from elmo.model.embedder import Embedder
    from elmo.store.neighbors import parse_query

    tokenize = Embedder.load(model, device="cpu").tokenize
    words: dict[str, None] = {}
    for text in params.neighbors_of:
        tokens, index = parse_query(text, tokenize=tokenize)
        words[tokens[index]] = None
    blocks: list[Block] = [
        Paragraph(
            "Each point is an occurrence in the store: the mean of its layers on the two principal "
            "directions. Its colour is the nearest of at most three uses (k-means of the vectors); "
            "a list shows the most typical occurrence of each. A point tells its sentence."
        )
    ]
    for word in words:
        of_word = occurrences(store, word)
        few = Paragraph(f"Occurs {len(of_word)} times, too rarely for a picture.")
        blocks.append(Heading(word))
        blocks.append(Drawing(Markup(picture(of_word))) if len(of_word) >= FEWEST else few)
    return blocks


def _marked(tokens: list[str], index: int) -> Markup:
    """The tokens around `index`, that one in bold."""
    return Markup(Occurrence(np.empty(0, np.float32), index, tokens).marked())


def _store(store: "FeatureStore") -> Table:
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
    return Table(rows, numbers=True)
