"""The commands `elmo task train|evaluate|predict`: the six tasks of the paper on labelled files."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from elmo.data.tokenizer import TOKENIZERS
from elmo.errors import ElmoError
from elmo.tasks import TASK_FILE
from elmo.tasks.kinds import KINDS, KINDS_WITH_FEATURES

from .options import DEVICE, JSON, OVERWRITE, PATH, check_stdout, print_done
from .run_stage import check_outside

if TYPE_CHECKING:
    from elmo.data.tokenizer import Tokenization
    from elmo.tasks.settings import TaskSettings


def _add_reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how to read a labelled file."""
    for option in (
        click.option(
            "--format",
            "format_",
            help="conll, conllu, csv, tsv, jsonl, json or text. Default: from the extension.",
        ),
        click.option(
            "--columns", help="The column of each field, such as word=2,tag=4 or label=stars."
        ),
        click.option(
            "--scheme", help="The tag scheme: bio, iob1, bioes or plain. Default: detected."
        ),
        DEVICE,
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def task() -> None:
    """Train and use models for the paper's six tasks; docs/tasks.md lists kinds and file formats.

    \b
    Example: elmo task train tagging --train train.conll --dev dev.conll --model english --out ner
             elmo task predict ner --input text.txt
    """


@task.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--train", type=PATH, required=True, help="The labelled file or folder to train on.")
@click.option(
    "--dev", type=PATH, required=True, help="The labelled file that selects the best epoch."
)
@click.option("--model", type=PATH, help="The model folder whose vectors the task reads.")
@click.option("--out", type=PATH, required=True, help="The folder for the trained task.")
@click.option("--without-elmo", is_flag=True, help="Train the same model without ELMo.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="The number of training runs, with seeds 0, 1, and so on.",
)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting, such as epochs=20."
)
@click.option(
    "--curve",
    is_flag=True,
    help="Also train on a half and a quarter of the examples, and print the scores.",
)
@click.option("--store", type=PATH, help="A store of exactly these sentences. Default: a new one.")
@click.option(
    "--tokenizer",
    type=click.Choice([*TOKENIZERS]),
    help="The tokenizer for text. Default: the model's own, or unicode.",
)
@click.option(
    "--work",
    type=PATH,
    default="work/tasks",
    show_default=True,
    help="The folder for unfinished work and vectors.",
)
@OVERWRITE
@_add_reading_options
def train(
    kind: str,
    train: Path,
    dev: Path,
    model: Path | None,
    out: Path,
    without_elmo: bool,
    seeds: int,
    changes: tuple[str, ...],
    curve: bool,
    store: Path | None,
    tokenizer: str | None,
    work: Path,
    overwrite: bool,
    format_: str | None,
    columns: str | None,
    scheme: str | None,
    device: str,
) -> None:
    """Train a task model of KIND and keep the best epoch on the dev file.

    \b
    Example: elmo task train tagging --train train.conll --dev dev.conll \\
        --model models/finetune --out models/ner
    """
    from elmo.io.atomic import check_output_folder_absent

    if not without_elmo and model is None:
        raise ElmoError("--model is missing; pass a model folder, or pass --without-elmo")
    if without_elmo and store is not None:
        raise ElmoError("--without-elmo reads no vectors; leave out --without-elmo or --store")
    check_outside(work, filter(None, (out, model, train, dev, store)))
    if not overwrite:
        check_output_folder_absent(out, marker=TASK_FILE)
    from elmo.model.embedder import Embedder
    from elmo.tasks.baselines import score_baselines
    from elmo.tasks.comparison import mean_over_seeds
    from elmo.tasks.example_files import read_examples
    from elmo.tasks.task import check_same_tags, train_task

    from ..stages import task_training, tasks
    from ..terminal.progress import Progress

    settings = _parse_settings(kind, changes, without_elmo=without_elmo)
    tokenization = _choose_tokenization(tokenizer, model)
    options: dict[str, Any] = {"format": format_, "columns": task_training.parse_columns(columns)}
    options |= {"scheme": scheme, "tokenizer": tokenization}
    data = [read_examples(kind, path, **options) for path in (train, dev)]
    for path, example_set in zip((train, dev), data, strict=True):
        print_done(f"{path}: {_format_counts(example_set.counts)}")
        task_training.say_remark(example_set, path=path)
    check_same_tags(data[1], data[0].scheme)
    task_training.warn_unknown_labels(kind, data[1], path=dev, train=data[0])
    subsets = task_training.learning_curve_parts(data[0]) if curve else []
    train_examples = partial(
        train_task,
        kind,
        settings=settings,
        model=None if without_elmo else model,
        seeds=range(seeds),
        work=work,
        tokenizer=tokenization,
        device=device,
    )
    record = train_examples(*data, out=out, store=store, report=task_training.TrainProgress())
    task_training.say_training_remarks(out)
    figures = mean_over_seeds(list(record.scores.values()))
    print_done(f"task train: {out}: {task_training.format_scores(figures)} on dev")
    if kind in KINDS_WITH_FEATURES:
        with Progress("simple baselines", None, unit=""):
            encode = Embedder.load(model, device="cpu").encode_types if model else None
            tallies = score_baselines(kind, data[0], data[1], encode)
        scores_by_name = {name: tally.scores() for name, tally in tallies.items()}
        scores_by_name["baseline" if settings.elmo == "none" else "elmo"] = figures
        print_done(f"on dev: {tasks.score_text(scores_by_name)}")
    for subset in subsets:
        share = f"{len(subset.examples):,} of {len(data[0].examples):,} examples"
        report = task_training.TrainProgress(name=f"{share}: ")
        with TemporaryDirectory() as folder:
            record = train_examples(subset, data[1], out=Path(folder) / "task", report=report)
        scores = task_training.format_scores(mean_over_seeds(list(record.scores.values())))
        print_done(f"with {share}: {scores}")


def _parse_settings(kind: str, changes: tuple[str, ...], *, without_elmo: bool) -> "TaskSettings":
    """Return the settings of a task: the defaults of its kind, with the values of `--set`."""
    from elmo.tasks.kinds import task_settings

    from ..settings.strict_yaml import parse_text
    from ..stages import task_training

    texts = task_training.parse_pairs("--set", changes)
    values = {name: parse_text(text) for name, text in texts.items()}
    if without_elmo and values.setdefault("elmo", "none") != "none":
        raise ElmoError(f"--without-elmo and --set elmo={texts['elmo']}: leave out one of them")
    return task_settings(kind, values)


def _choose_tokenization(tokenizer: str | None, model: Path | None) -> "Tokenization":
    """Return the tokenization for text: the requested one, else the model's."""
    from elmo.data.tokenizer import installed_tokenization
    from elmo.model.config import read_config

    if model is not None:
        model_tokenization = read_config(model).tokenizer
        if tokenizer in (None, model_tokenization.name):
            return model_tokenization
    return installed_tokenization(tokenizer or "unicode")


@task.command()
@click.argument("folder", type=PATH)
@click.option("--data", type=PATH, required=True, help="The labelled file.")
@JSON
@_add_reading_options
def evaluate(
    folder: Path,
    data: Path,
    as_json: bool,
    format_: str | None,
    columns: str | None,
    scheme: str | None,
    device: str,
) -> None:
    """Print the scores of the task in FOLDER on labelled data.

    Scores are means over the seeds. Scores by label count the answers of all seeds together.

    \b
    Example: elmo task evaluate models/ner --data test.conll --json
    """
    import json

    check_stdout()
    from elmo.tasks.comparison import evaluate_seeds, mean_over_seeds
    from elmo.tasks.example_files import read_examples
    from elmo.tasks.record import read_task_record

    from ..stages import task_training

    record = read_task_record(folder)
    example_set = read_examples(
        record.kind,
        data,
        format=format_,
        columns=task_training.parse_columns(columns) or record.columns,
        scheme=scheme,
        tokenizer=record.tokenizer,
    )
    if (example_set.scheme == "plain") == (record.scheme == "plain"):  # else it is refused
        task_training.warn_unknown_labels(
            record.kind, example_set, path=data, seen_labels=record.labels
        )
    tallies, scores_by_label = evaluate_seeds(folder, example_set, device=device)
    scores = [tally.scores() for tally in tallies]
    figures = mean_over_seeds(scores)
    if as_json:
        scores_by_seed = {str(seed): row for seed, row in zip(record.seeds, scores, strict=True)}
        figures_by_name: dict[str, Any] = {
            **figures,
            "examples": len(example_set.examples),
            "seeds": scores_by_seed,
        }
        click.echo(json.dumps(figures_by_name | {"counts": example_set.counts, **scores_by_label}))
    else:
        for line in _format_labels(scores_by_label):
            click.echo(line)
        print_done(f"{data}: {_format_counts(example_set.counts)}")
        print_done(f"task evaluate: {task_training.format_scores(figures)}")


@task.command()
@click.argument("folder", type=PATH)
@click.option(
    "--input", "source", type=PATH, required=True, help="Text, or examples without labels."
)
@click.option("--seed", type=int, help="The seed to use. Default: the best on dev.")
@click.option(
    "--as",
    "as_",
    type=click.Choice(["conll", "props", "squad"]),
    help="Print the input of a scorer: conlleval (needs gold tags), srl-eval.pl or SQuAD's script.",
)
@_add_reading_options
def predict(
    folder: Path,
    source: Path,
    seed: int | None,
    as_: str | None,
    format_: str | None,
    columns: str | None,
    scheme: str | None,
    device: str,
) -> None:
    """Predict with the task in FOLDER and print one line of JSON per example.

    `source` in the output is the file and line of the example. The number of skipped examples is
    printed on stderr.

    \b
    Example: elmo task predict models/ner --input text.txt
    """
    import json

    check_stdout()
    from elmo.io.text_files import open_decompressed
    from elmo.tasks.example_files import detect_format, read_examples
    from elmo.tasks.scorer_files import SCORER_FILES
    from elmo.tasks.task import Task

    from ..stages import task_training
    from ..text.other_formats import check_plain_text

    if format_ is None and source.is_file() and detect_format(source) == "text":
        with open_decompressed(source) as file:
            check_plain_text(source, file.read(1 << 16), "--columns text=NAME")

    task_ = Task.load(folder, seed=seed, device=device)
    kind, fields = task_.record.kind, task_training.parse_columns(columns) or task_.record.columns
    scorer = SCORER_FILES[as_] if as_ else None
    if scorer is not None and scorer.kind != kind:
        raise ElmoError(f"--as {as_}: only for {scorer.kind} ({folder}: {kind}); leave it out")
    example_set = read_examples(
        kind,
        source,
        format=format_,
        columns=fields,
        scheme=scheme,
        tokenizer=task_.record.tokenizer,
        labelled=scorer is not None and scorer.needs_labels,
    )
    dropped_counts = {k: v for k, v in example_set.counts.items() if k.startswith("dropped") and v}
    if dropped_counts:
        click.echo(f"{source}: {_format_counts(dropped_counts)}", err=True)
    answers = task_.answer(example_set.examples)
    described_answers = ((example, task_.describe(example, *answer)) for example, answer in answers)
    if scorer is not None:
        for line in scorer.lines(described_answers, source, fields):
            click.echo(line)
        return
    for example, answer in described_answers:
        click.echo(json.dumps({"source": example.source, **answer}, ensure_ascii=False))


def _format_labels(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of scores by label, of confusions and of calibration."""
    if not report:
        return
    names = ("precision", "recall", "f1", "support")
    rows = report["labels"] | {name: report[name] for name in ("macro", "micro")}
    width = max(map(len, rows))
    yield "  ".join([" " * width, *(f"{name:>9}" for name in names)])
    for label, scores in rows.items():
        cells = [f"{scores[name]:9.4f}" for name in names[:3]] + [f"{scores.get('support', ''):>9}"]
        yield "  ".join([f"{label:<{width}}", *cells])
    if confusion := report.get("confusion"):
        columns = {label: max(6, len(label)) for label in confusion}
        yield "\nconfusion (one row per label, one column per prediction):"
        yield "  ".join([" " * width, *(f"{label:>{n}}" for label, n in columns.items())])
        for label, row in confusion.items():
            cells = [f"{row.get(guess, 0):>{n}}" for guess, n in columns.items()]
            yield "  ".join([f"{label:<{width}}", *cells])
    if calibration := report.get("calibration"):
        yield (
            f"\nmean score {calibration['mean_score']:.4f}, "
            f"accuracy {calibration['accuracy']:.4f}, calibration error {calibration['error']:.4f}"
        )


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
