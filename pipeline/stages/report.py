"""report: the results of a run as one self-contained HTML page.

In `pipeline/report`, `results.py` reads the results, `pictures.py` draws the plots, and `page.py`
fills in the template `page.html`.
"""

from collections.abc import Sequence
from pathlib import Path

from elmo.io.folders import local_folder, new_folder
from elmo.io.location import Location

from ..report.page import render
from ..report.results import read_results
from ..settings.params import ReportSettings
from ..tracking.runs import start_run
from .stage import Argument, Stage

STAGE = Stage(
    name="report",
    version=16,
    help="Write one HTML page: the model, its perplexities, curves, neighbours and tasks.",
    inputs=(
        Argument("numbers_in", "path", "The folder of the stages' figures."),
        Argument("curves", "path", "The folder of the curves."),
        Argument("model", help="The model."),
        Argument("store", help="The store."),
        Argument("registered", "path", "The output of register."),
    ),
    outputs=(Argument("out", "path"),),
    run=lambda params, **arguments: run(
        params=params.report,
        tasks=tuple(params.tasks),
        model_name=params.pretrain.model,
        **arguments,
    ),
    summary=lambda figures, arguments: summary(figures, arguments["out"]),
    product="report {out}/index.html",
    work=None,
)


def run(
    out: Path,
    params: ReportSettings,
    *,
    numbers_in: Path,
    curves: Path,
    model: Location,
    store: Location,
    registered: Path,
    tasks: Sequence[str] = (),
    model_name: str = "",
) -> dict[str, int]:
    """Write `index.html` and `curves.png` to `out`, and log the page to MLflow.

    `numbers_in` is the folder of the stages' figures, `curves` that of their tables of losses, and
    `registered` the file that register wrote. `tasks` names the tasks to show, and `model_name` the
    model that the project starts from, if any. Raises `ElmoError` if a figure is missing or `store`
    was not made from `model`. Equal inputs give equal bytes.
    """
    from elmo.model.embedder import Embedder

    from ..report.pictures import draw_curves

    with local_folder(model) as local_model:
        results = read_results(
            figures_folder=numbers_in,
            curves=curves,
            model=local_model,
            store=store,
            registration_file=registered,
            tasks=tasks,
            model_name=model_name,
        )
        digests = {"model": results.registered.model_digest, "store": results.store.digest}
        sources = {"model": model, "store": store}
        with start_run("report", params, inputs=digests, sources=sources) as mlflow_run:
            required = ("index.html", "curves.png")
            with new_folder(Location(out), required=required, pattern=r"\w+\.png") as folder:
                picture = folder / "curves.png"
                draw_curves(results, picture)
                embedder = Embedder.load(local_model, device="cpu")
                page = render(
                    params, results, embedder, curves_file=picture, pictures=curves / "tasks"
                )
                (folder / "index.html").write_text(page, encoding="utf-8")
            mlflow_run.log_artifact(out / "index.html")
    return {"tasks": len(tasks)}


def summary(figures: dict[str, int], out: Path) -> str:
    """Return the line that the stage prints: where the page is."""
    return f"open {out / 'index.html'}"
