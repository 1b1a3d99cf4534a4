"""The commands `python -m research …`, which repeat the paper's experiments on your model."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmo.errors import ElmoError
from elmo.settings import NonNegativeFloat, check_value
from elmo.tasks.kinds import KINDS
from pipeline.commands.options import DEVICE, PATH
from pipeline.commands.run_stage import check_outside

if TYPE_CHECKING:
    from research.compare import ComparedTask
    from research.finding import Finding

OUT = click.option("--out", type=PATH, required=True, help="Output NAME.json; also plots NAME.png.")
MODEL = click.option("--model", type=PATH, required=True, help="Model folder.")
WORK = click.option(
    "--work",
    type=PATH,
    default="work/findings",
    show_default=True,
    help="Folder for unfinished work and vectors.",
)
STATIC = click.option(
    "--static", multiple=True, metavar="NAME=FILE", help="Static word vectors to measure as well."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def findings() -> None:
    """Repeat the paper's experiments on your model. Results: research/README.md."""


def _add_task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a task to the command, which gets them as one argument, `task`."""

    @wraps(command)
    def run_with_task(**arguments: Any) -> None:
        from pipeline.stages import task_training
        from research.compare import ComparedTask

        names = ("kind", "model", "seeds", "columns", "scheme", "device")
        values: dict[str, Any] = {name: arguments.pop(name) or "" for name in names}
        sources = {split: arguments.pop(split) for split in ("train", "dev", "test")}
        check_outside(
            arguments["work"],
            [*sources.values(), values["model"], *arguments.get("other_models", ())],
        )
        task = ComparedTask(
            sources=sources,
            settings=task_training.parse_pairs("--set", arguments.pop("changes")),
            format=arguments.pop("format_") or "",
            **values,
        )
        command(task=task, **arguments)

    files = {"train": "to train on", "dev": "for early stopping", "test": "to score"}
    options = [
        click.argument("kind", type=click.Choice(KINDS)),
        *(
            click.option(
                f"--{name}", type=PATH, required=True, help=f"Labelled file {description}."
            )
            for name, description in files.items()
        ),
        MODEL,
        click.option(
            "--seeds",
            type=click.IntRange(1, 100),
            default=3,
            show_default=True,
            help="Number of seeds, starting at 0.",
        ),
        click.option(
            "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a task setting."
        ),
        click.option(
            "--format", "format_", help="Format of the files; default: from their extensions."
        ),
        click.option("--columns", help="Column of each field, such as word=2,tag=4."),
        click.option("--scheme", help="Tag scheme: bio, iob1, bioes or plain."),
        WORK,
        OUT,
        DEVICE,
    ]
    for option in reversed(options):
        run_with_task = option(run_with_task)
    return run_with_task


@findings.command()
@click.option(
    "--ways",
    type=click.Choice(["elmo", "layers", "positions", "context"]),
    default="elmo",
    show_default=True,
    help="What to vary: ELMo or none, its layers, its position in the network, or its context.",
)
@_add_task_options
def compare(task: "ComparedTask", ways: Any, work: Path, out: Path) -> None:
    """Train a task of KIND in several ways that differ in one thing (Tables 1 to 3, Figure 2).

    \b
    Example: python -m research compare tagging --ways layers --train train.conll --dev dev.conll \\
        --test test.conll --model models/finetune --seeds 5 --out results/layers-ner.json
    """
    from research.compare import compare_ways

    _save_finding(out, lambda: compare_ways(task, ways, work=work))


@findings.command()
@click.option(
    "--other",
    "other_models",
    type=PATH,
    multiple=True,
    required=True,
    help="Another model folder; repeat for several.",
)
@_add_task_options
def models(task: "ComparedTask", other_models: tuple[Path, ...], work: Path, out: Path) -> None:
    """Train a task of KIND without ELMo and with each model, to choose the best model.

    \b
    Example: python -m research models tagging --train train.conll --dev dev.conll \\
        --test test.conll --model models/pretrain --other models/finetune --out models-ner.json
    """
    from research.compare import compare_models

    _save_finding(out, lambda: compare_models(task, other_models, work=work))


@findings.command()
@click.option(
    "--shares", default="1,3,10,30,100", show_default=True, help="Percentages of the examples."
)
@_add_task_options
def labels(task: "ComparedTask", shares: str, work: Path, out: Path) -> None:
    """Train a task of KIND on increasing shares of the labels, with and without ELMo (Figure 1).

    \b
    Example: python -m research labels tagging --train train.conll --dev dev.conll \\
        --test test.conll --model models/finetune --out results/labels-ner.json
    """
    from research.compare import compare_label_shares

    try:
        label_shares = [float(part) / 100 for part in shares.split(",")]
    except ValueError:
        label_shares = [0.0]
    if not all(0 < share <= 1 for share in label_shares):
        raise ElmoError(f"--shares must be percentages such as 1,10,100; found {shares!r}")
    _save_finding(out, lambda: compare_label_shares(task, label_shares, work=work))


@findings.command()
@click.argument("kind", type=click.Choice(["tagging", "classification"]))
@click.option("--train", type=PATH, required=True, help="Labelled file to draw examples from.")
@click.option("--test", type=PATH, required=True, help="Labelled file to score.")
@click.option(
    "--model",
    "models",
    type=PATH,
    multiple=True,
    required=True,
    help="Model folder; repeat for models of several seeds, which the draws use in turn.",
)
@click.option("--counts", default="100,300,1000", show_default=True, help="Numbers of examples.")
@click.option("--draws", default="3", show_default=True, help="Draws per count: 3 or 5,5,1.")
@click.option("--columns", help="Column of each field, such as word=2,tag=4.")
@STATIC
@click.option("--peer", help="Python of an environment with all-MiniLM-L6-v2, to compare with.")
@click.option(
    "--masked",
    type=PATH,
    help="Folder that benchmarks/masked_lm.py wrote with the Python of --peer.",
)
@WORK
@OUT
def few(
    kind: str, models: tuple[Path, ...], columns: str | None, out: Path, **options: Any
) -> None:
    """Compare `elmo task train` with other simple models that learn from a few labels.

    \b
    Example: python -m research few tagging --train train.conll --test test.conll \\
        --model models/finetune --counts 100,300,1000 --draws 5,5,1 --out results/few-ner.json
    """
    from pipeline.stages import task_training
    from research.few import compare_few_labels

    sources = {split: options.pop(split) for split in ("train", "test")}
    check_outside(options["work"], [*sources.values(), *models])
    counts, draws = (
        [int(part) for part in options[name].split(",") if part.isdecimal()]
        for name in ("counts", "draws")
    )
    if not counts or min(counts) < 10:
        raise ElmoError(
            f"--counts must be 10 or more, such as 100,300; found {options['counts']!r}"
        )
    draws = draws * len(counts) if len(draws) == 1 else draws
    if len(draws) != len(counts) or min(draws) < 1:
        raise ElmoError(
            f"--draws must be 1 or more, as one number or one for each of --counts; found "
            f"{options['draws']!r}"
        )
    if options["masked"] and not options["peer"]:
        raise ElmoError("--masked requires --peer, the Python that reads the model; pass it too")
    options |= {"counts": counts, "draws": draws, "static": _parse_static(options["static"])}
    options["columns"] = task_training.parse_pairs(
        "--columns", columns.split(",") if columns else []
    )
    _save_finding(out, lambda: compare_few_labels(kind, sources, models, **options))


@findings.command()
@MODEL
@click.option("--train", type=PATH, required=True, help="Sense-tagged text: SemCor or XML.")
@click.option("--train-gold", type=PATH, help="Sense keys of an XML file, one id per line.")
@click.option(
    "--test", type=PATH, help="Sense-tagged text to test on; default: a fifth of TRAIN's documents."
)
@click.option("--test-gold", type=PATH, help="Sense keys of an XML test file.")
@click.option("--first-senses", type=PATH, help="WordNet's index.sense, for lemmas not in TRAIN.")
@STATIC
@OUT
@DEVICE
def senses(
    model: Path,
    train: Path,
    train_gold: Path | None,
    test: Path | None,
    test_gold: Path | None,
    first_senses: Path | None,
    static: tuple[str, ...],
    out: Path,
    device: str,
) -> None:
    """Disambiguate word senses by nearest neighbour in each layer, without training (Table 5).

    Files have the columns of SemCor, or are XML of the unified evaluation framework.
    """
    from research.probes import probe_senses

    files = _parse_static(static)
    _save_finding(
        out,
        lambda: probe_senses(
            model,
            train,
            train_gold=train_gold,
            test=test,
            test_gold=test_gold,
            first_senses=first_senses,
            device=device,
            static=files,
        ),
    )


@findings.command()
@MODEL
@click.option("--train", type=PATH, required=True, help="Tagged text to train the probes on.")
@click.option("--test", type=PATH, required=True, help="Tagged text to score the probes on.")
@click.option("--l2", default=1e-5, show_default=True, help="Strength of L2 regularization.")
@click.option("--format", "format_", help="Format of the files; default: from their extensions.")
@click.option("--columns", help="Column of each field, such as word=2,tag=4 or tag=XPOS.")
@STATIC
@OUT
@DEVICE
def probe(
    model: Path,
    train: Path,
    test: Path,
    l2: float,
    format_: str | None,
    columns: str | None,
    static: tuple[str, ...],
    out: Path,
    device: str,
) -> None:
    """Train a linear classifier of tags (a probe) on each layer (Table 6)."""
    from pipeline.stages import task_training
    from research.probes import probe_tags

    check_value("--l2", l2, NonNegativeFloat)
    fields = task_training.parse_pairs("--columns", columns.split(",") if columns else [])
    options: dict[str, Any] = {"format": format_, "columns": fields, "scheme": "plain"}
    options |= {"device": device, "static": _parse_static(static)}
    _save_finding(out, lambda: probe_tags(model, train, test, l2=l2, **options))


@findings.command()
@click.argument("store", type=PATH)
@click.argument("queries", type=PATH)
@MODEL
@click.option("--vectors", type=PATH, required=True, help="Static word vectors, word2vec or GloVe.")
@click.option("-k", "count", default=5, show_default=True, help="Number of neighbours.")
@click.option("--layer", type=int, help="Layer to compare; default: the mean of all layers.")
@click.option("--same-word", is_flag=True, help="Show only other occurrences of the same word.")
@OUT
@DEVICE
def neighbors(
    store: Path,
    queries: Path,
    model: Path,
    vectors: Path,
    count: int,
    layer: int | None,
    same_word: bool,
    out: Path,
    device: str,
) -> None:
    """List neighbours in context and by static vectors for each line of QUERIES (Table 4).

    Each line is a sentence with one token in brackets: He has a [gift] for music.
    """
    from research.neighbors import find_neighbors

    _save_finding(
        out,
        lambda: find_neighbors(
            model,
            store,
            queries,
            vectors=vectors,
            count=count,
            layer=layer,
            same_word=same_word,
            device=device,
        ),
    )


@findings.command()
@click.argument("folder", type=PATH)
@click.option("--out", type=PATH, required=True, help="Page whose tables are updated.")
def page(folder: Path, out: Path) -> None:
    """Update the tables of a page from the JSON files in FOLDER.

    \b
    Example: python -m research page research/results --out research/README.md
    """
    from research.page import redraw_tables

    count, missing_count = redraw_tables(folder, out)
    click.echo(f"{out}: {count} tables updated, {missing_count} not measured yet")


def _save_finding(out: Path, measure: Callable[[], "Finding"]) -> None:
    """Measure, write the finding and its plot, and print its rows."""
    from pipeline.report import plots
    from research.finding import check_replaceable, write_finding
    from research.page import few_table_lines
    from research.picture import draw_plot

    if out.suffix != ".json":
        raise ElmoError(f"--out {out}: must end in .json")
    check_replaceable(out)
    plots.check_replaceable_plot(out.with_suffix(".png"))
    finding = measure()
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_plot(out.with_suffix(".png"), finding)
    write_finding(out, finding)
    for line in few_table_lines(finding) if finding.kind == "few" else ():
        click.echo(line)
    for row in finding.rows if finding.kind != "few" else ():
        interval = "" if row.low is None else f" ({row.low:.4f} to {row.high:.4f})"
        click.echo(f"{row.name}: {finding.metric} {row.mean:.4f}{interval}")
    click.echo(f"written: {out} and {out.with_suffix('.png')}")


def _parse_static(options: tuple[str, ...]) -> dict[str, Path]:
    from pipeline.stages import task_training

    return {
        name: Path(path) for name, path in task_training.parse_pairs("--static", options).items()
    }
