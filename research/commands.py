"""The commands `python -m research …`, which repeat the paper's measurements on your model."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmo.errors import ElmoError
from elmo.settings import NonNegative, check_value
from elmo.tasks.kinds import KINDS
from pipeline.commands.options import DEVICE, PATH
from pipeline.commands.run_stage import check_outside

if TYPE_CHECKING:
    from research.compare import ComparedTask
    from research.finding import Finding

OUT = click.option("--out", type=PATH, required=True, help="Result NAME.json, with plot NAME.png.")
MODEL = click.option("--model", type=PATH, required=True, help="The model folder.")
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
    """Repeat the paper's measurements on your model; research/README.md has tables and commands."""


def _task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that describe a task; the command gets them as `task`."""

    @wraps(command)
    def with_task(**arguments: Any) -> None:
        from pipeline.stages import task_training
        from research.compare import ComparedTask

        names = ("kind", "model", "seeds", "columns", "scheme", "device")
        texts: dict[str, Any] = {name: arguments.pop(name) or "" for name in names}
        sources = {split: arguments.pop(split) for split in ("train", "dev", "test")}
        check_outside(
            arguments["work"],
            [*sources.values(), texts["model"], *arguments.get("other_models", ())],
        )
        task = ComparedTask(
            sources=sources,
            settings=task_training.parse_pairs("--set", arguments.pop("changes")),
            format=arguments.pop("format_") or "",
            **texts,
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
            help="Number of seeds; they count from 0.",
        ),
        click.option(
            "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a task setting."
        ),
        click.option(
            "--format", "format_", help="Format of the files; default: from their extensions."
        ),
        click.option("--columns", help="Columns of the fields, such as word=2,tag=4."),
        click.option("--scheme", help="Tag scheme: bio, iob1, bioes or plain."),
        WORK,
        OUT,
        DEVICE,
    ]
    for option in reversed(options):
        with_task = option(with_task)
    return with_task


@findings.command()
@click.option(
    "--ways",
    type=click.Choice(["elmo", "layers", "positions", "context"]),
    default="elmo",
    show_default=True,
    help="Compare with and without ELMo, layers, positions of ELMo in the network, or context.",
)
@_task_options
def compare(task: "ComparedTask", ways: Any, work: Path, out: Path) -> None:
    """Train a task of KIND in ways that differ in one thing (Tables 1, 2 and 3, Figure 2).

    \b
    Example: python -m research compare tagging --ways layers --train train.conll --dev dev.conll \\
        --test test.conll --model models/finetune --seeds 5 --out results/layers-ner.json
    """
    from research.compare import compare_ways as measure

    _write(out, lambda: measure(task, ways, work=work))


@findings.command()
@click.option(
    "--other",
    "other_models",
    type=PATH,
    multiple=True,
    required=True,
    help="Another model folder; repeat for several.",
)
@_task_options
def models(task: "ComparedTask", other_models: tuple[Path, ...], work: Path, out: Path) -> None:
    """Train a task of KIND without ELMo and with each of several models, to choose a model.

    \b
    Example: python -m research models tagging --train train.conll --dev dev.conll \\
        --test test.conll --model models/pretrain --other models/finetune --out models-ner.json
    """
    from research.compare import compare_models as measure

    _write(out, lambda: measure(task, other_models, work=work))


@findings.command()
@click.option(
    "--shares", default="1,3,10,30,100", show_default=True, help="Percentages of the examples."
)
@_task_options
def labels(task: "ComparedTask", shares: str, work: Path, out: Path) -> None:
    """Train a task of KIND on growing shares of its labels, with and without ELMo (Figure 1).

    \b
    Example: python -m research labels tagging --train train.conll --dev dev.conll \\
        --test test.conll --model models/finetune --out results/labels-ner.json
    """
    from research.compare import compare_label_shares as measure

    try:
        parts = [float(part) / 100 for part in shares.split(",")]
    except ValueError:
        parts = [0.0]
    if not all(0 < part <= 1 for part in parts):
        raise ElmoError(f"--shares must be percents such as 1,10,100; found {shares!r}")
    _write(out, lambda: measure(task, parts, work=work))


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
    help="Model folder; repeat for several seeds of pretraining, which the draws use in turn.",
)
@click.option("--counts", default="100,300,1000", show_default=True, help="Numbers of examples.")
@click.option("--draws", default="3", show_default=True, help="Draws per count: 3, or 5,5,1.")
@click.option("--columns", help="Columns of the fields, such as word=2,tag=4.")
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
    kind: str, models: tuple[Path, ...], columns: str | None, out: Path, **drawing: Any
) -> None:
    """Compare `elmo task train` on a few labels with models that you could build yourself.

    \b
    Example: python -m research few tagging --train train.conll --test test.conll \\
        --model models/finetune --counts 100,300,1000 --draws 5,5,1 --out results/few-ner.json
    """
    from pipeline.stages import task_training
    from research.few import few_labels

    sources = {split: drawing.pop(split) for split in ("train", "test")}
    check_outside(drawing["work"], [*sources.values(), *models])
    counts, draws = (
        [int(part) for part in drawing[name].split(",") if part.isdecimal()]
        for name in ("counts", "draws")
    )
    if not counts or min(counts) < 10:
        raise ElmoError(
            f"--counts must be 10 or more, such as 100,300; found {drawing['counts']!r}"
        )
    draws = draws * len(counts) if len(draws) == 1 else draws
    if len(draws) != len(counts) or min(draws) < 1:
        raise ElmoError(
            f"--draws must be a number of 1 or more, or one for each of --counts; found "
            f"{drawing['draws']!r}"
        )
    if drawing["masked"] and not drawing["peer"]:
        raise ElmoError("--masked needs --peer, the Python that reads the model")
    drawing |= {"counts": counts, "draws": draws, "static": _static(drawing["static"])}
    drawing["columns"] = task_training.parse_pairs(
        "--columns", columns.split(",") if columns else []
    )
    _write(out, lambda: few_labels(kind, sources, models, **drawing))


@findings.command()
@MODEL
@click.option("--train", type=PATH, required=True, help="Sense-tagged text: SemCor or XML.")
@click.option("--train-gold", type=PATH, help="Gold keys of an XML file, one id per line.")
@click.option(
    "--test", type=PATH, help="Sense-tagged text to test on; default: a fifth of TRAIN's documents."
)
@click.option("--test-gold", type=PATH, help="Gold keys of an XML file.")
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
    """Score word senses by nearest neighbour in each layer, without training (Table 5).

    Files have SemCor's columns, or are XML of the unified evaluation framework with gold keys.
    """
    from research.probes import word_senses

    files = _static(static)
    _write(
        out,
        lambda: word_senses(
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
@click.option("--test", type=PATH, required=True, help="Tagged text to score them on.")
@click.option("--l2", default=1e-5, show_default=True, help="Strength of L2 regularization.")
@click.option("--format", "format_", help="Format of the files; default: from their extensions.")
@click.option("--columns", help="Columns of the fields, such as word=2,tag=4 or tag=XPOS.")
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
    """Train a linear probe of tags, such as parts of speech, on each layer (Table 6)."""
    from pipeline.stages import task_training
    from research.probes import tags

    check_value("--l2", l2, NonNegative)
    fields = task_training.parse_pairs("--columns", columns.split(",") if columns else [])
    reading = {"format": format_, "columns": fields, "scheme": "plain"}
    files = _static(static)
    _write(out, lambda: tags(model, train, test, l2=l2, device=device, static=files, **reading))


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
    """For each line of QUERIES, list neighbours in context and by static vectors (Table 4).

    Each line is a sentence with one token in brackets: He has a [gift] for music.
    """
    from research.neighbors import in_context

    _write(
        out,
        lambda: in_context(
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
@click.option("--out", type=PATH, required=True, help="Page whose marked tables are redrawn.")
def page(folder: Path, out: Path) -> None:
    """Redraw the tables of a page from the JSON files in FOLDER.

    \b
    Example: python -m research page research/results --out research/README.md
    """
    from research.page import redraw_tables

    count, missing_count = redraw_tables(folder, out)
    click.echo(f"findings page: {out}: {count} tables drawn, {missing_count} not measured yet")


def _write(out: Path, measure: Callable[[], "Finding"]) -> None:
    """Measure, write the result and its plot, and print the rows."""
    from pipeline.report import plots
    from research import finding as files
    from research.page import few_lines
    from research.picture import draw

    if out.suffix != ".json":
        raise ElmoError(f"--out {out}: must end in .json")
    files.check_out(out)
    plots.check_replaceable_plot(out.with_suffix(".png"))
    finding = measure()
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(out.with_suffix(".png"), finding)
    files.write(out, finding)
    for line in few_lines(finding) if finding.kind == "few" else ():
        click.echo(line)
    for row in finding.rows if finding.kind != "few" else ():
        interval = "" if row.low is None else f" ({row.low:.4f} to {row.high:.4f})"
        click.echo(f"{row.name}: {finding.metric} {row.mean:.4f}{interval}")
    click.echo(f"findings: {out} and {out.with_suffix('.png')}")


def _static(options: tuple[str, ...]) -> dict[str, Path]:
    from pipeline.stages import task_training

    return {
        name: Path(path) for name, path in task_training.parse_pairs("--static", options).items()
    }
