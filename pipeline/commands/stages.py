"""The stages: one command each, under the name that it has in dvc.yaml."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    CURVES,
    FOLDER,
    PATH,
    RUNS,
    Folder,
    with_cluster,
)
from .run_stage import RunStage, stage_options

if TYPE_CHECKING:
    from ..settings.cluster import Cluster
    from ..settings.params import Params


@click.command()
@click.argument("out", type=FOLDER)
@click.option("--packages", type=PATH, help="Write the versions of the packages that are read.")
@RUNS
@stage_options
def corpus(run: RunStage, out: Folder, packages: Path | None, runs: Folder) -> None:
    """Collect the text: your own files, or English prose that comes with Python."""
    from ..stages import corpus as stage

    def work(params: "Params") -> dict[str, float]:
        figures = stage.run(out, params.corpus, runs=runs)
        if packages is not None:
            own = params.corpus.task_package if not params.corpus.task else ""
            stage.write_packages(packages, own, params.labels.package)
        return figures

    run("corpus", work, lambda figures: stage.summary(figures, out))


@click.command()
@click.argument("corpus", type=FOLDER)
@click.argument("text", type=click.Choice(["general", "task"]))
@click.argument("out", type=FOLDER)
@RUNS
@stage_options
@with_cluster
def tokenize(
    run: RunStage,
    corpus: Folder,
    text: str,
    out: Folder,
    runs: Folder,
    cluster: "Cluster",
) -> None:
    """Cut TEXT into sentences of tokens, as Arrow shards."""
    from ..stages import tokenize as stage

    run(
        f"tokenize {text}",
        lambda p: stage.run(
            corpus,
            out,
            p.tokenize,
            text=text,
            runs=runs,
            cluster=cluster,
            given=(*p.corpus.general, *p.corpus.task),
        ),
        stage.summary,
    )


@click.command()
@click.argument("shards", type=FOLDER)
@click.argument("out", type=FOLDER)
@RUNS
@stage_options
@with_cluster
def vocab(
    run: RunStage,
    shards: Folder,
    out: Folder,
    runs: Folder,
    cluster: "Cluster",
) -> None:
    """Count the words of SHARDS."""
    from ..stages import vocab as stage

    run(
        "vocab",
        lambda p: stage.run(shards, out, p.vocab, runs=runs, cluster=cluster),
        stage.summary,
    )


@click.command()
@click.argument("shards", type=FOLDER)
@click.argument("vocab", type=FOLDER)
@click.argument("out", type=FOLDER)
@CURVES
@RUNS
@stage_options
@with_cluster
def pretrain(
    run: RunStage,
    shards: Folder,
    vocab: Folder,
    out: Folder,
    curves: Path,
    runs: Folder,
    cluster: "Cluster",
) -> None:
    """Train a bidirectional language model on SHARDS."""
    from ..stages import pretrain as stage

    run(
        "pretrain",
        lambda p: stage.run(
            shards, vocab, out, p.pretrain, curves=curves, runs=runs, cluster=cluster
        ),
        stage.summary,
        cluster=cluster,
    )


@click.command()
@click.argument("model", type=FOLDER)
@click.argument("task", type=FOLDER)
@click.argument("general", type=FOLDER)
@click.argument("out", type=FOLDER)
@CURVES
@RUNS
@stage_options
@with_cluster
def finetune(
    run: RunStage,
    model: Folder,
    task: Folder,
    general: Folder,
    out: Folder,
    curves: Path,
    runs: Folder,
    cluster: "Cluster",
) -> None:
    """Continue training MODEL on the shards TASK; GENERAL measures the forgetting."""
    from ..stages import finetune as stage

    run(
        "finetune",
        lambda p: stage.run(
            model, task, general, out, p.finetune, curves=curves, runs=runs, cluster=cluster
        ),
        stage.summary,
        cluster=cluster,
    )


@click.command()
@click.argument("shards", type=FOLDER)
@click.argument("model", type=FOLDER)
@click.argument("out", type=FOLDER)
@RUNS
@stage_options
@with_cluster
def features(
    run: RunStage,
    shards: Folder,
    model: Folder,
    out: Folder,
    runs: Folder,
    cluster: "Cluster",
) -> None:
    """Store MODEL's vectors of every token of SHARDS."""
    from ..stages import features as stage

    run(
        "features",
        lambda p: stage.run(shards, model, out, p.features, runs=runs, cluster=cluster),
        stage.summary,
        cluster=cluster,
    )


@click.command()
@click.argument("model", type=FOLDER)
@click.argument("store", type=FOLDER)
@click.argument("out", type=PATH)
@click.option("--general", type=FOLDER, required=True, help="Shards the model was pretrained on.")
@click.option("--task", type=FOLDER, required=True, help="Shards it was fine-tuned on.")
@stage_options
def register(
    run: RunStage,
    model: Folder,
    store: Folder,
    out: Path,
    general: Folder,
    task: Folder,
) -> None:
    """Register MODEL in MLflow, with its lineage."""
    from ..stages import register as stage

    run(
        "register",
        lambda p: stage.run(model, store, out, p.register, general=general, task=task),
        stage.summary,
        figures_kind=stage.RegisterFigures,
    )


@click.command()
@click.argument("out", type=PATH)
@stage_options
def labels(run: RunStage, out: Path) -> None:
    """Label which words of a package's docstrings are code, by their markup: a task to try."""
    from ..stages import labels as stage

    run(
        "labels",
        lambda p: stage.run(out, p.labels),
        stage.summary,
    )


@click.command()
@click.argument("name")
@click.argument("model", type=FOLDER)
@click.argument("out", type=PATH)
@click.option("--curve", type=PATH, required=True, help="Where the table of scores by epoch goes.")
@click.option("--picture", type=PATH, required=True, help="Where its picture goes.")
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@stage_options
@with_cluster
def tasks(
    run: RunStage,
    name: str,
    model: Folder,
    out: Path,
    curve: Path,
    picture: Path,
    runs: Path,
    cluster: "Cluster",
) -> None:
    """Train the task NAME of the params on MODEL's vectors, and without them; score both."""
    from elmo.io.folders import local_folder

    from ..stages import tasks as stage

    def work(params: "Params") -> dict[str, Any]:
        params_file = click.get_current_context().params["params_file"]
        task = stage.chosen(params, name, params_file)
        device = "cuda" if cluster.gpu else "cpu"
        with local_folder(model) as local_model:
            return stage.run(
                name, local_model, out, task, curve=curve, picture=picture, runs=runs, device=device
            )

    run(
        f"tasks {name}",
        work,
        stage.summary,
    )


@click.command()
@click.argument("out", type=PATH)
@click.option("--figures-in", type=PATH, required=True, help="The folder of the stages' figures.")
@click.option("--curves", type=PATH, required=True, help="The folder of the curves.")
@click.option("--vocab", type=FOLDER, required=True, help="The vocabulary.")
@click.option("--model", type=FOLDER, required=True, help="The model.")
@click.option("--store", type=FOLDER, required=True, help="The store.")
@click.option("--registered", type=PATH, required=True, help="What register wrote.")
@stage_options
def report(
    run: RunStage,
    out: Path,
    figures_in: Path,
    curves: Path,
    vocab: Folder,
    model: Folder,
    store: Folder,
    registered: Path,
) -> None:
    """Write one HTML page with the figures and plots of all stages."""
    from ..stages import report as stage

    run(
        "report",
        lambda p: stage.run(
            out,
            p.report,
            figures_in=figures_in,
            curves=curves,
            vocab=vocab,
            model=model,
            store=store,
            registered=registered,
            tasks=tuple(p.tasks),
        ),
        lambda figures: stage.summary(figures, out),
    )
