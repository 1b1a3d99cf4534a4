"""report: all figures of a run as pictures and one self-contained HTML page.

In `pipeline/report`, `results.py` reads them, `pictures.py` draws, `runs.py`, `sections.py` and
`word_sections.py` are what the page says, section by section, and `page.py` renders it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.io.folders import local_folder, new_folder
from elmo.io.location import Location

from .. import tracking
from ..report import runs, sections, word_sections
from ..report.page import Block, Picture, render
from ..report.results import Results, read_results, training_runs
from ..settings.params import Params, ReportSettings
from .stage import Argument, Stage

if TYPE_CHECKING:
    from elmo.model.embedder import Embedder

STAGE = Stage(
    name="report",
    version=12,
    help="Write one HTML page with the figures and plots of all stages.",
    inputs=(
        Argument("numbers_in", "path", "The folder of the stages' figures."),
        Argument("curves", "path", "The folder of the curves."),
        Argument("vocab", help="The vocabulary."),
        Argument("model", help="The model."),
        Argument("store", help="The store."),
        Argument("registered", "path", "What register wrote."),
        Argument("corpus", "path", "The corpus, whose files are named.", required=False),
        Argument("general", help="Shards of the general text, for samples.", required=False),
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
    params: ReportSettings,
    *,
    numbers_in: Path,
    curves: Path,
    vocab: Location,
    model: Location,
    store: Location,
    registered: Path,
    corpus: Path | None = None,
    general: Location | None = None,
    tasks: Sequence[str] = (),
    settings: Params | None = None,
) -> dict[str, int]:
    """Write `index.html` and its PNGs to `out`, and log the page to MLflow; return their number.

    `numbers_in` is the folder of the stages' figures, `curves` that of their tables of losses,
    `registered` the file that register wrote. `tasks` are the names of tasks that have figures and
    pictures. Of the shards `general`, if given, samples are shown, as of the store. `settings`, if
    given, are listed on the page, and what MLflow knows of the training runs is added.
    Raises `ElmoError` where a figure is missing, or `store` was not made from `model`.
    Equal inputs, and equal runs in MLflow, give equal bytes.
    """
    from elmo.data.shards import Shards
    from elmo.model.embedder import Embedder

    from ..report.pictures import pictures

    with local_folder(vocab) as local_vocab, local_folder(model) as local_model:
        results = read_results(
            numbers=numbers_in,
            curves=curves,
            vocab=local_vocab,
            model=local_model,
            store=store,
            registered=registered,
            corpus=corpus,
            tasks=tasks,
            named="" if settings is None else settings.pretrain.model,
        )
        digests = {"model": results.registered["model_digest"], "store": results.store.digest}
        sources = {"model": model, "store": store}
        with tracking.run("report", params, inputs=digests, sources=sources) as log:
            facts = training_runs(results)
            marks = ("index.html", "curves.png")
            with new_folder(Location(out), ours=marks, also=r"\w+\.png") as folder:
                drawn = pictures(results, folder)
                about_runs = {"What was run": runs.what_was_run(results, facts, settings)}
                embedder = Embedder.load(local_model, device="cpu")
                shards = None if general is None else Shards(general)
                samples = sections.samples(results.store, shards)
                figures = _figures(results, drawn, curves / "tasks", params, embedder, samples)
                page = render(params.title, sections.summary(results), about_runs | figures)
                (folder / "index.html").write_text(page, encoding="utf-8")
            log.log_artifact(out / "index.html")
    return {"pictures": len(drawn)}


def _figures(
    results: Results,
    drawn: Mapping[str, Picture],
    task_pictures: Path,
    params: ReportSettings,
    embedder: "Embedder",
    samples: list[Block],
) -> dict[str, list[Block]]:
    """The sections on figures, in order.

    A model that was trained elsewhere has a vocabulary of its own: that of the general text goes
    unread.
    """
    figures, store = results.figures, results.store
    words: list[Block] = [sections.vocabulary(figures["vocab"]), drawn["vocabulary"]]
    return {
        "Perplexity": [*sections.perplexities(results), drawn["perplexity"]],
        "Training": [sections.training(), drawn["curves"], drawn["steps"]],
        "Text": [
            *sections.files(results.texts),
            *sections.text_figures(figures),
            *samples,
        ],
        "Vocabulary": [] if results.started_from else words,
        "Layers": [*sections.layers(results.layers), drawn["layers"]],
        "Neighbours": word_sections.neighbors(params, store, embedder),
        "Store": [sections.store(store)],
        "Tasks": sections.tasks(results.tasks, task_pictures),
    }


def summary(figures: dict[str, int], out: Path) -> str:
    """Return the line that the stage prints: where the page is, and how many pictures it has."""
    return f"open {out / 'index.html'} ({figures['pictures']} pictures)"
