"""The command line, without logic: each command calls one function and prints one line."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from elmo.errors import ElmoError
from pipeline import params as settings

FOLDER = click.Path(path_type=Path)
PARAMS = click.option(
    "--params", "params_file", default="params.yaml", show_default=True, type=FOLDER,
    help="The settings.",
)  # fmt: skip
METRICS = click.option("--metrics", type=FOLDER, help="Where to write the stage's figures as JSON.")


def run() -> None:
    """Run a command; anything wrong is one line on stderr and exit code 1."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with cli.make_context("elmo", sys.argv[1:]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit("error: interrupted; run the same command again to go on")
    except ElmoError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or exiting flushes again
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"error: {where}{error.strerror or error}")


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elmo-pipeline")
def cli() -> None:
    """ELMo on your own text: train it, tune it to a domain, store its vectors as Parquet.

    The first eight commands are the stages of dvc.yaml, in order; `dvc repro` runs them.
    """


def _stage(
    name: str, work: Callable[[settings.Params], dict[str, Any]], params_file: Path,
    metrics: Path | None, said: Callable[[dict[str, Any]], str],
) -> None:  # fmt: skip
    """Run a stage, write its figures, and print what it did and how long it took."""
    began = time.monotonic()
    params = settings.load(params_file)
    figures = work(params)
    if metrics is not None:
        from elmo.files import write_json

        rounded = {key: _rounded(value) for key, value in figures.items()}
        write_json(metrics, rounded)
    seconds = time.monotonic() - began
    click.echo(f"{name}: {said(figures)} ({_duration(seconds)})")


@cli.command()
@click.argument("out", type=FOLDER)
@PARAMS
@METRICS
def corpus(out: Path, params_file: Path, metrics: Path | None) -> None:
    """Collect the text: your files, or prose that every machine has."""
    from pipeline import corpus as stage

    _stage(
        "corpus", lambda p: stage.run(out, p.corpus), params_file, metrics,
        lambda f: f"{_bytes(f['general_bytes'])} of general, "
        f"{_bytes(f['task_bytes'])} of task text",
    )  # fmt: skip


@cli.command()
@click.argument("corpus", type=FOLDER)
@click.argument("text", type=click.Choice(["general", "task"]))
@click.argument("out", type=FOLDER)
@PARAMS
@METRICS
def tokenize(corpus: Path, text: str, out: Path, params_file: Path, metrics: Path | None) -> None:
    """Cut TEXT into sentences of tokens, as Arrow shards."""
    from pipeline import tokenize as stage

    _stage(
        f"tokenize {text}",
        lambda p: stage.run(corpus, out, p.tokenize, text=text, cluster=p.cluster),
        params_file, metrics,
        lambda f: f"{f['tokens']:,} tokens in {f['sentences']:,} sentences, {f['shards']} shards",
    )  # fmt: skip


@cli.command()
@click.argument("shards", type=FOLDER)
@click.argument("out", type=FOLDER)
@PARAMS
@METRICS
def vocab(shards: Path, out: Path, params_file: Path, metrics: Path | None) -> None:
    """Count the words of SHARDS."""
    from pipeline import vocab as stage

    _stage(
        "vocab", lambda p: stage.run(shards, out, p.vocab, cluster=p.cluster), params_file, metrics,
        lambda f: f"{f['words']:,} words, {f['heldout_coverage']:.1%} of held-out tokens covered",
    )  # fmt: skip


@cli.command()
@click.argument("shards", type=FOLDER)
@click.argument("vocab", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--curves", type=FOLDER, required=True, help="Where the curves go.")
@click.option("--runs", type=FOLDER, required=True, help="Where the work in progress is kept.")
@PARAMS
@METRICS
def pretrain(
    shards: Path, vocab: Path, out: Path, curves: Path, runs: Path, params_file: Path,
    metrics: Path | None,
) -> None:  # fmt: skip
    """Train a bidirectional language model on SHARDS."""
    from pipeline import pretrain as stage

    _stage(
        "pretrain",
        lambda p: stage.run(
            shards, vocab, out, p.pretrain, curves=curves, runs=runs, cluster=p.cluster
        ),
        params_file, metrics,
        lambda f: f"held-out perplexity {f['heldout_perplexity']:.1f}, "
        f"{f['times_below_unigram']:.1f} × below the unigram model's {f['unigram_perplexity']:.1f}",
    )  # fmt: skip


@cli.command()
@click.argument("model", type=FOLDER)
@click.argument("task", type=FOLDER)
@click.argument("general", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--curves", type=FOLDER, required=True, help="Where the curves go.")
@click.option("--runs", type=FOLDER, required=True, help="Where the work in progress is kept.")
@PARAMS
@METRICS
def finetune(
    model: Path, task: Path, general: Path, out: Path, curves: Path, runs: Path,
    params_file: Path, metrics: Path | None,
) -> None:  # fmt: skip
    """Go on training MODEL on the shards TASK; GENERAL shows what was forgotten."""
    from pipeline import finetune as stage

    _stage(
        "finetune",
        lambda p: stage.run(
            model, task, general, out, p.finetune, curves=curves, runs=runs, cluster=p.cluster
        ),
        params_file, metrics,
        lambda f: f"task perplexity {f['task_perplexity_before']:.1f} → "
        f"{f['task_perplexity_after']:.1f} ({-f['task_gain']:+.1%}), general "
        f"{f['general_perplexity_before']:.1f} → {f['general_perplexity_after']:.1f}",
    )  # fmt: skip


@cli.command()
@click.argument("shards", type=FOLDER)
@click.argument("model", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--runs", type=FOLDER, required=True, help="Where the work in progress is kept.")
@PARAMS
@METRICS
def features(
    shards: Path, model: Path, out: Path, runs: Path, params_file: Path, metrics: Path | None
) -> None:
    """Store MODEL's vectors of every token of SHARDS."""
    from pipeline import features as stage

    _stage(
        "features",
        lambda p: stage.run(shards, model, out, p.features, runs=runs, cluster=p.cluster),
        params_file, metrics,
        lambda f: f"{f['tokens']:,} tokens in {f['parts']} parts, {_bytes(f['bytes'])}, "
        f"{f['bytes_per_token']:,.0f} bytes a token",
    )  # fmt: skip


@cli.command()
@click.argument("model", type=FOLDER)
@click.argument("store", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--general", type=FOLDER, required=True, help="Shards the model was pretrained on.")
@click.option("--task", type=FOLDER, required=True, help="Shards it was fine-tuned on.")
@PARAMS
@METRICS
def register(
    model: Path, store: Path, out: Path, general: Path, task: Path, params_file: Path,
    metrics: Path | None,
) -> None:  # fmt: skip
    """Register MODEL in MLflow, with its lineage."""
    from pipeline import register as stage

    _stage(
        "register",
        lambda p: stage.run(model, store, out, p.register, general=general, task=task),
        params_file, metrics, lambda f: f"version {f['version']}, {f['uri']}",
    )  # fmt: skip


@cli.command()
@click.argument("out", type=FOLDER)
@click.option("--metrics-in", type=FOLDER, required=True, help="The folder of the stages' figures.")
@click.option("--curves", type=FOLDER, required=True, help="The folder of the curves.")
@click.option("--vocab", type=FOLDER, required=True, help="The vocabulary.")
@click.option("--model", type=FOLDER, required=True, help="The model.")
@click.option("--store", type=FOLDER, required=True, help="The store.")
@click.option("--registered", type=FOLDER, required=True, help="What register wrote.")
@PARAMS
@METRICS
def report(
    out: Path, metrics_in: Path, curves: Path, vocab: Path, model: Path, store: Path,
    registered: Path, params_file: Path, metrics: Path | None,
) -> None:  # fmt: skip
    """Make the pictures and one HTML page of all figures."""
    from pipeline import report as stage

    _stage(
        "report",
        lambda p: stage.run(
            out, p.report, metrics=metrics_in, curves=curves, vocab=vocab, model=model,
            store=store, registered=registered,
        ),
        params_file, metrics, lambda f: f"open {out / 'index.html'} ({f['pictures']} pictures)",
    )  # fmt: skip


@cli.command()
@click.argument("model", type=FOLDER)
@click.option("--input", "source", type=click.File("rb"), required=True, help="Text; - is stdin.")
@click.option("--output", type=FOLDER, required=True, help="An .npz file: key k is line k, from 0.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@click.option("--batch-size", default=256, show_default=True, help="Sentences read at a time.")
@click.option("--state", type=click.Choice(["reset", "carry"]), default="reset", show_default=True)
@click.option("--layers", default="all", show_default=True, help="all, or numbers such as 0,2.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32")
def embed(
    model: Path, source: Any, output: Path, pretokenized: bool, batch_size: int, state: str,
    layers: str, dtype: str,
) -> None:  # fmt: skip
    """Embed a sentence a line: each an array (layers, tokens, dim).

    \b
    Example: elmo embed models/finetune --input text.txt --output vectors.npz
    """
    from pipeline import text_commands

    count = text_commands.embed(
        model, source, output, pretokenized=pretokenized, batch_size=batch_size, state=state,
        layers=layers, dtype=dtype,
    )  # fmt: skip
    click.echo(f"embed: {count} sentences in {output}")


@cli.command()
@click.argument("model", type=FOLDER)
@click.option("--input", "source", type=click.File("rb"), required=True, help="Text; - is stdin.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--sentences", is_flag=True, help="Print the scores of each line instead.")
def perplexity(
    model: Path, source: Any, pretokenized: bool, as_json: bool, sentences: bool
) -> None:
    """The perplexity of a text, a sentence a line, each read alone, under the full softmax."""
    from pipeline import text_commands

    for line in text_commands.perplexity(
        model, source, pretokenized=pretokenized, as_json=as_json, sentences=sentences
    ):
        click.echo(line)


@cli.command()
@click.argument("store", type=FOLDER)
@click.argument("text")
@click.option("--model", type=FOLDER, help="The store's model; default: looked for in models/.")
@click.option("-k", "count", default=10, show_default=True, help="How many.")
@click.option("--layer", help="A layer of the store; default: the mean of all.")
def neighbors(store: Path, text: str, model: Path | None, count: int, layer: str | None) -> None:
    """Which tokens of STORE are used most like the one in brackets.

    \b
    Example: elmo neighbors data/features "He has a [gift] for music"
    """
    from pipeline import text_commands

    for line in text_commands.neighbors(store, text, model=model, count=count, layer=layer):
        click.echo(line)


@cli.command("import")
@click.argument("options", type=FOLDER)
@click.argument("weights", type=FOLDER)
@click.argument("model", type=FOLDER)
@click.option("--vocabulary", type=FOLDER, help="The words of its softmax or word table.")
@click.option("--embedding", type=FOLDER, help="Its word table, where a file of its own has it.")
def import_(
    options: Path, weights: Path, model: Path, vocabulary: Path | None, embedding: Path | None
) -> None:
    """Make a model folder of a 2018 OPTIONS.json and WEIGHTS.hdf5."""
    from elmo.legacy import import_2018

    digest = import_2018(options, weights, model, vocabulary=vocabulary, embedding=embedding)
    click.echo(f"import: {model} (digest {digest[:12]}); it has no softmax: 2018 files have none")


@cli.command()
@click.argument("model", type=FOLDER)
@click.argument("options", type=FOLDER)
@click.argument("weights", type=FOLDER)
def export(model: Path, options: Path, weights: Path) -> None:
    """Write a model as the 2018 pair OPTIONS.json and WEIGHTS.hdf5."""
    from elmo.legacy import export_2018

    export_2018(model, options, weights)
    click.echo(
        f"export: {options} and {weights}; the softmax and the optimizer stay behind: "
        "they travel in our own format only"
    )


@cli.command()
@click.argument("model", type=FOLDER)
@click.argument("out", type=FOLDER)
def export_serving(model: Path, out: Path) -> None:
    """Write MODEL as one file that serves without this package: OUT.pt2 (torch.export) or OUT.onnx.

    It takes ids (sentences, tokens, characters) and gives layers (sentences, layers, tokens, dim).
    """
    from elmo.serving import export_serving as write

    write(model, out)
    click.echo(f"export-serving: {out} ({_bytes(out.stat().st_size)})")


@cli.command()
@click.argument("store", type=FOLDER)
def verify(store: Path) -> None:
    """Check every checksum and count of STORE, and name what is wrong."""
    from elmo.store_upkeep import verify as check

    manifest = check(store)
    counts = manifest["counts"]
    click.echo(
        f"verify: {store} is whole: {len(manifest['parts'])} parts, {counts['tokens']:,} tokens"
    )


@cli.command()
@click.argument("store", type=FOLDER)
@click.argument("shards", type=FOLDER)
@click.argument("model", type=FOLDER)
@PARAMS
def append(store: Path, shards: Path, model: Path, params_file: Path) -> None:
    """Add the sentences of SHARDS to STORE, as a new version."""
    from pipeline import features as stage

    figures = stage.append(store, shards, model, cluster=settings.load(params_file).cluster)
    click.echo(f"append: {store} has {figures['tokens']:,} tokens now")


@cli.command()
@click.argument("store", type=FOLDER)
@click.option("--part-tokens", default=1_000_000, show_default=True, help="Tokens of a part.")
def compact(store: Path, part_tokens: int) -> None:
    """Join small neighbouring parts of STORE, as a new version."""
    from elmo.store_upkeep import compact as join

    manifest = join(store, part_tokens=part_tokens)
    click.echo(f"compact: {store} has {len(manifest['parts'])} parts now")


@cli.command()
@click.argument("store", type=FOLDER)
@click.option("--keep", default=1, show_default=True, help="Versions to keep.")
def prune(store: Path, keep: int) -> None:
    """Delete old versions of STORE and the files that only they name."""
    from elmo.store_upkeep import prune as delete

    click.echo(f"prune: {len(delete(store, keep=keep))} files deleted from {store}")


@cli.command()
@click.argument("store", type=FOLDER)
def lineage(store: Path) -> None:
    """Which model, run, corpus and settings made STORE, as JSON."""
    import json

    from elmo.store_upkeep import lineage as told

    click.echo(json.dumps(told(store), indent=1, ensure_ascii=False, sort_keys=True))


@cli.command()
@click.argument("store", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--layout", default="all", show_default=True, help="One of those above.")
def dump(store: Path, out: Path, layout: str) -> None:
    """Write STORE for other tools: HDF5 as in 2018, list columns, Hugging Face datasets.

    Layouts: all, top, average (HDF5 of AllenNLP), bilm-tf (HDF5), lists (Parquet), datasets.
    """
    from elmo import store_export
    from elmo.features import FeatureStore

    opened = FeatureStore(store, checked=True)
    if layout == "lists":
        store_export.export_lists(opened, out)
    elif layout == "datasets":
        store_export.to_datasets(opened).save_to_disk(str(out))
    else:
        store_export.export_hdf5(opened, out, layout=layout)
    click.echo(f"dump: {out} holds {len(opened):,} sentences")


@cli.command()
@click.argument("model", type=FOLDER)
@click.argument("vocabulary", type=FOLDER)
@click.argument("out", type=FOLDER)
def dump_tokens(model: Path, vocabulary: Path, out: Path) -> None:
    """Write MODEL's context-free vectors of a word list, a line each, to OUT.hdf5 as in 2018."""
    from elmo.legacy import dump_token_embeddings

    count = dump_token_embeddings(model, vocabulary, out)
    click.echo(f"dump-tokens: {out} holds {count:,} words")


@cli.command()
@click.argument("name")
@click.argument("version", type=int, required=False)
def stores(name: str, version: int | None) -> None:
    """Which stores were made from a registered model NAME, or one VERSION of it."""
    from pipeline import tracking

    found = tracking.versions(name)
    for row in found:
        if version in (None, row["version"]):
            made = [key[6:] + " " + value for key, value in row.items() if key.startswith("store.")]
            click.echo(f"{name} version {row['version']}: {', '.join(made) or 'no store'}")
    if not any(version in (None, row["version"]) for row in found):
        raise ElmoError(f"the registry has no {name} version {version or ''}".rstrip())


def _rounded(value: Any) -> Any:
    """Six digits: figures are read and compared by people."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
