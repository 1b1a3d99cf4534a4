"""The command line, without logic: each command calls one function and prints one line."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click

from elmo.errors import ElmoError
from elmo.files import check_file, write_json

from . import cluster as execution
from . import params as settings
from . import results
from .cluster import Cluster
from .task_commands import task

PATH = click.Path(path_type=Path)


class _Store(click.ParamType):  # type: ignore[type-arg]
    """The folder of a store, or its URL, which a path would spoil."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> str | Path:
        return str(value) if "://" in str(value) else Path(value)


STORE = _Store()


class _Text(click.File):
    """A file, or standard input for `-`."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Open it; one line where standard input is closed."""
        if value == "-" and sys.stdin is None:
            self.fail("standard input is closed; name a file", param, ctx)
        return super().convert(value, param, ctx)


TEXT = _Text("rb")
PARAMS = click.option(
    "--params",
    "params_file",
    default="params.yaml",
    show_default=True,
    type=PATH,
    help="The file of settings.",
)


def _remember(context: click.Context, _: Any, changes: tuple[str, ...]) -> None:
    context.meta[__name__] = changes


SET = click.option(
    "-S",
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    expose_value=False,
    callback=_remember,
    help="Another value for this run alone, as -S pretrain.training.epochs=3; DVC does not see it.",
)
METRICS = click.option("--metrics", type=PATH, help="Write the stage's metrics to this JSON file.")

DEVICE = click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="cpu, or cuda for a GPU.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def with_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of how its work is run, and hand them to it as `cluster`."""

    @wraps(command)
    def with_options(cluster_file: Path, **given: Any) -> None:
        flags = {field.name: given.pop(field.name, None) for field in fields(Cluster)}
        cluster, in_force = execution.load(cluster_file, flags)
        execution.use_addresses(cluster)
        click.echo(f"  {in_force}", err=True)
        if not os.environ.get("RAY_ADDRESS"):
            return command(cluster=cluster, **given)
        from . import workers

        driver_only = ("params_file", "metrics")
        paths = [v for k, v in given.items() if isinstance(v, Path) and k not in driver_only]
        with workers.checked_nodes(paths):
            command(cluster=cluster, **given)

    shown: dict[str, Any] = {"default": None, "show_default": False}
    options = [
        click.option("--workers", type=int, help="Processes that train; 0: this one.", **shown),
        click.option("--max-workers", type=int, help="Up to so many, as nodes come.", **shown),
        click.option("--cpus", type=int, help="Cores for each worker.", **shown),
        click.option("--gpu/--no-gpu", help="One GPU for each worker and actor.", **shown),
        click.option("--actors", type=int, help="Actors that tokenize, count, embed.", **shown),
        click.option(
            "--cluster",
            "cluster_file",
            type=PATH,
            default="cluster.yaml",
            show_default=True,
            help="A file with more of these settings; it is optional.",
        ),
    ]
    for option in reversed(options):
        with_options = option(with_options)
    return with_options


SECTIONS = {
    "Stages, in order": "corpus tokenize vocab pretrain finetune features register report",
    "A project": "init run",
    "Use a model": "embed perplexity neighbors task",
    "Care for a store": "verify append compact prune lineage",
    "Runs and registered models": "runs stores promote",
    "Other formats": "import export export-serving dump dump-tokens",
    "On a cluster": "submit jobs attach stop",
    "Settings": "preset schema",
}


class Sections(click.Group):
    """A group whose help lists its commands by what they are for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the sections; those of no section last."""
        listed = " ".join(SECTIONS.values()).split()
        known = [name for name in listed if name in self.commands]
        return known + [name for name in self.commands if name not in listed]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One block per section."""
        names = self.list_commands(ctx)
        listed = {name: title for title, names in SECTIONS.items() for name in names.split()}
        width = formatter.width - 6 - max(map(len, names))
        for title in [*SECTIONS, "More"]:
            rows = [
                (name, self.commands[name].get_short_help_str(width))
                for name in names
                if listed.get(name, "More") == title
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def run() -> None:
    """Run a command: wrong usage is one line and exit code 2, anything else wrong one line and 1.

    A bug keeps its traceback; with --verbose, so does everything.
    """
    signal.signal(signal.SIGTERM, _terminated)
    if instruction := os.environ.get("_ELMO_COMPLETE"):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "elmo", "_ELMO_COMPLETE", instruction))
    if sys.stdout is None:
        sys.exit("error: standard output is closed; open it, or send it to /dev/null")
    try:
        with cli.make_context("elmo", sys.argv[1:]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "elmo")
        message = " ".join(error.format_message().split())
        click.echo(f"error: {message} See {command} --help", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit("error: interrupted; run the same command again to go on")
    except Exception as error:
        _end(error)


def _end(error: Exception) -> None:
    """End with one line where the error is the user's or the world's; a bug keeps its traceback."""
    from .failures import one_line

    if isinstance(error, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or exiting flushes again
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
    message = str(error) if isinstance(error, ElmoError) else one_line(error)
    if message is None or os.environ.get("ELMO_VERBOSE"):
        raise error
    sys.exit(f"error: {_printable(message)}")


def _printable(message: str) -> str:
    """A message on one line, whatever the names in it hold."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elmo-pipeline")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
def cli(verbose: bool) -> None:
    """ELMo on your own text: train it, tune it to a domain, store its vectors as Parquet.

    `elmo init FOLDER` starts a project; `elmo run` there runs the stages of dvc.yaml, in order.
    """
    if verbose:
        os.environ["ELMO_VERBOSE"] = "1"


def _warn_of_emulation(precision: str, setting: str, cluster: Cluster) -> None:
    """Say before work starts that this machine would only imitate a precision."""
    if precision != "bfloat16" or cluster.gpu or os.environ.get("RAY_ADDRESS"):
        return
    from elmo.train.machine_speed import emulates_bfloat16

    if emulates_bfloat16():
        click.echo(
            "warning: this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX) and "
            f"imitates it, tens of times slower than float32; set {setting} to float32",
            err=True,
        )


def _stage(
    name: str,
    work: Callable[[settings.Params], dict[str, Any]],
    params_file: Path,
    metrics: Path | None,
    describe: Callable[[dict[str, Any]], str],
    *,
    cluster: Cluster | None = None,
) -> None:
    """Run a stage, write its figures, and print what it did and how long it took."""
    began = time.monotonic()
    if metrics is not None:
        check_file(metrics, ours=b"{")
    params = settings.load(params_file, click.get_current_context().meta.get(__name__, ()))
    results.check(name.split()[0], params.results, params_file)
    if cluster is not None:
        section = getattr(params, name)
        _warn_of_emulation(
            getattr(section, "training", section).precision,
            f"{name}.training.precision" if hasattr(section, "training") else f"{name}.precision",
            cluster,
        )
    figures = work(params)
    if metrics is not None:
        rounded = {key: _rounded(value) for key, value in figures.items()}
        write_json(metrics, rounded)
    seconds = time.monotonic() - began
    click.echo(f"{name}: {describe(figures)} ({_duration(seconds)})")


class _SeveralFiles(click.Command):
    """A command whose options `--text` and `--task` take all the words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--text a b` as `--text a --text b`."""
        spread: list[str] = []
        option = None
        for word in args:
            if word.startswith("-"):
                option = word if word in ("--text", "--task") else None
            elif option and spread[-1] != option:
                spread.append(option)
            spread.append(word)
        return super().parse_args(ctx, spread)


@cli.command(cls=_SeveralFiles)
@click.argument("folder", type=PATH)
@click.option(
    "--text",
    multiple=True,
    metavar="FILES...",
    help="What the language model learns from: files, folders, globs, URLs.",
)
@click.option(
    "--task",
    "task_text",
    multiple=True,
    metavar="FILES...",
    help="The text of your domain, whose vectors are stored; default: TEXT again.",
)
@click.option("--column", help="The column of JSON lines and Parquet; default: text.")
@click.option("--preset", "preset_name", help="The size or language: small, original, korean, …")
def init(
    folder: Path,
    text: tuple[str, ...],
    task_text: tuple[str, ...],
    column: str | None,
    preset_name: str | None,
) -> None:
    """Start a project in FOLDER: its stages, its settings, git and DVC.

    \b
    Example: elmo init my-project --text wiki/*.txt.gz --task reviews.jsonl
             cd my-project; elmo run
    """
    from . import init as projects

    lines = projects.run(folder, text=text, task=task_text, column=column, preset_name=preset_name)
    click.echo(f"init: {folder}: {lines[0]}")
    for line in lines[1:]:
        click.echo(f"  {line}")
    click.echo(f"  next: {'' if folder == Path('.') else f'cd {folder}; '}elmo run")


@cli.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("stages", nargs=-1, type=click.UNPROCESSED)
def run_stages(stages: tuple[str, ...]) -> None:
    """Run STAGES and what they need (default: all) where they are not up to date.

    It is `dvc repro`, and takes its options: --force, --dry, --single-item.

    \b
    Example: elmo run pretrain
    """
    from . import init as projects

    projects.repro(stages)


@cli.command()
@click.argument("out", type=PATH)
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@PARAMS
@SET
@METRICS
def corpus(out: Path, runs: Path, params_file: Path, metrics: Path | None) -> None:
    """Collect the text: your own files, or English prose that comes with Python."""
    from . import corpus as stage

    _stage(
        "corpus",
        lambda p: stage.run(out, p.corpus, runs=runs),
        params_file,
        metrics,
        lambda f: (
            f"{_bytes(f['general_bytes'])} general ({stage.listing(out, 'general')}), "
            f"{_bytes(f['task_bytes'])} task ({stage.listing(out, 'task')})"
        ),
    )


@cli.command()
@click.argument("corpus", type=PATH)
@click.argument("text", type=click.Choice(["general", "task"]))
@click.argument("out", type=PATH)
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@PARAMS
@SET
@METRICS
@with_cluster
def tokenize(
    corpus: Path,
    text: str,
    out: Path,
    runs: Path,
    params_file: Path,
    metrics: Path | None,
    cluster: Cluster,
) -> None:
    """Cut TEXT into sentences of tokens, as Arrow shards."""
    from . import tokenize as stage

    _stage(
        f"tokenize {text}",
        lambda p: stage.run(corpus, out, p.tokenize, text=text, runs=runs, cluster=cluster),
        params_file,
        metrics,
        lambda f: f"{f['tokens']:,} tokens in {f['sentences']:,} sentences, {f['shards']} shards",
    )


@cli.command()
@click.argument("shards", type=PATH)
@click.argument("out", type=PATH)
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@PARAMS
@SET
@METRICS
@with_cluster
def vocab(
    shards: Path, out: Path, runs: Path, params_file: Path, metrics: Path | None, cluster: Cluster
) -> None:
    """Count the words of SHARDS."""
    from . import vocab as stage

    _stage(
        "vocab",
        lambda p: stage.run(shards, out, p.vocab, runs=runs, cluster=cluster),
        params_file,
        metrics,
        lambda f: f"{f['words']:,} words, {f['heldout_coverage']:.1%} of held-out tokens covered",
    )


@cli.command()
@click.argument("shards", type=PATH)
@click.argument("vocab", type=PATH)
@click.argument("out", type=PATH)
@click.option("--curves", type=PATH, required=True, help="Where the curves go.")
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@PARAMS
@SET
@METRICS
@with_cluster
def pretrain(
    shards: Path,
    vocab: Path,
    out: Path,
    curves: Path,
    runs: Path,
    params_file: Path,
    metrics: Path | None,
    cluster: Cluster,
) -> None:
    """Train a bidirectional language model on SHARDS."""
    from . import pretrain as stage

    _stage(
        "pretrain",
        lambda p: stage.run(
            shards, vocab, out, p.pretrain, curves=curves, runs=runs, cluster=cluster
        ),
        params_file,
        metrics,
        lambda f: (
            f"held-out perplexity {f['heldout_perplexity']:.1f}, "
            f"{f['times_below_unigram']:.1f} × below the unigram model's "
            f"{f['unigram_perplexity']:.1f}"
        ),
        cluster=cluster,
    )


@cli.command()
@click.argument("model", type=PATH)
@click.argument("task", type=PATH)
@click.argument("general", type=PATH)
@click.argument("out", type=PATH)
@click.option("--curves", type=PATH, required=True, help="Where the curves go.")
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@PARAMS
@SET
@METRICS
@with_cluster
def finetune(
    model: Path,
    task: Path,
    general: Path,
    out: Path,
    curves: Path,
    runs: Path,
    params_file: Path,
    metrics: Path | None,
    cluster: Cluster,
) -> None:
    """Continue training MODEL on the shards TASK; GENERAL measures the forgetting."""
    from . import finetune as stage

    _stage(
        "finetune",
        lambda p: stage.run(
            model, task, general, out, p.finetune, curves=curves, runs=runs, cluster=cluster
        ),
        params_file,
        metrics,
        lambda f: (
            f"task perplexity {f['task_perplexity_before']:.1f} → "
            f"{f['task_perplexity_after']:.1f} ({-f['task_gain']:+.1%}), general "
            f"{f['general_perplexity_before']:.1f} → {f['general_perplexity_after']:.1f}"
        ),
        cluster=cluster,
    )


@cli.command()
@click.argument("shards", type=PATH)
@click.argument("model", type=PATH)
@click.argument("out", type=STORE)
@click.option("--runs", type=PATH, required=True, help="Where the work in progress is kept.")
@PARAMS
@SET
@METRICS
@with_cluster
def features(
    shards: Path,
    model: Path,
    out: str | Path,
    runs: Path,
    params_file: Path,
    metrics: Path | None,
    cluster: Cluster,
) -> None:
    """Store MODEL's vectors of every token of SHARDS."""
    from . import features as stage

    _stage(
        "features",
        lambda p: stage.run(shards, model, out, p.features, runs=runs, cluster=cluster),
        params_file,
        metrics,
        lambda f: (
            f"{f['tokens']:,} tokens in {f['parts']} parts, {_bytes(f['bytes'])}, "
            f"{f['bytes_per_token']:,.0f} bytes per token"
        ),
        cluster=cluster,
    )


@cli.command()
@click.argument("model", type=PATH)
@click.argument("store", type=PATH)
@click.argument("out", type=PATH)
@click.option("--general", type=PATH, required=True, help="Shards the model was pretrained on.")
@click.option("--task", type=PATH, required=True, help="Shards it was fine-tuned on.")
@PARAMS
@SET
@METRICS
def register(
    model: Path,
    store: Path,
    out: Path,
    general: Path,
    task: Path,
    params_file: Path,
    metrics: Path | None,
) -> None:
    """Register MODEL in MLflow, with its lineage."""
    from . import register as stage

    _stage(
        "register",
        lambda p: stage.run(model, store, out, p.register, general=general, task=task),
        params_file,
        metrics,
        lambda f: f"version {f['version']}, {f['uri']}; {f['decision']}",
    )


@cli.command()
@click.argument("out", type=PATH)
@click.option("--metrics-in", type=PATH, required=True, help="The folder of the stages' figures.")
@click.option("--curves", type=PATH, required=True, help="The folder of the curves.")
@click.option("--vocab", type=PATH, required=True, help="The vocabulary.")
@click.option("--model", type=PATH, required=True, help="The model.")
@click.option("--store", type=PATH, required=True, help="The store.")
@click.option("--registered", type=PATH, required=True, help="What register wrote.")
@PARAMS
@SET
@METRICS
def report(
    out: Path,
    metrics_in: Path,
    curves: Path,
    vocab: Path,
    model: Path,
    store: Path,
    registered: Path,
    params_file: Path,
    metrics: Path | None,
) -> None:
    """Write one HTML page with the figures and plots of all stages."""
    from . import report as stage

    _stage(
        "report",
        lambda p: stage.run(
            out,
            p.report,
            metrics=metrics_in,
            curves=curves,
            vocab=vocab,
            model=model,
            store=store,
            registered=registered,
        ),
        params_file,
        metrics,
        lambda f: f"open {out / 'index.html'} ({f['pictures']} pictures)",
    )


@cli.command()
@click.argument("name")
@PARAMS
def preset(name: str, params_file: Path) -> None:
    """Write the values of presets/NAME.yaml into params.yaml; all other lines stay as they are.

    \b
    Example: elmo preset small; git diff params.yaml; git checkout params.yaml
    """
    from . import preset as presets

    changes = presets.run(name, params_file)
    for change in changes:
        click.echo(f"  {change}")
    click.echo(f"preset: {len(changes)} values of {params_file} changed to those of {name}")


@cli.command()
@click.argument("file", type=click.Choice(["params", "cluster"]), default="params")
def schema(file: str) -> None:
    """Print the JSON schema of params.yaml, or of cluster.yaml, for editors.

    \b
    Example: elmo schema > params.schema.json
    """
    from .schema import json_schema

    kind = settings.Params if file == "params" else Cluster
    click.echo(json.dumps(json_schema(kind), indent=1))


@cli.command()
@click.argument("model", type=PATH)
@click.option("--input", "source", type=TEXT, required=True, help="Text; - is stdin.")
@click.option("--output", type=PATH, required=True, help="An .npz file: key k is line k, from 0.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@click.option("--batch-size", default=256, show_default=True, help="Sentences read at a time.")
@click.option("--state", type=click.Choice(["reset", "carry"]), default="reset", show_default=True)
@click.option("--layers", default="all", show_default=True, help="all, or numbers such as 0,2.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
)
@DEVICE
def embed(
    model: Path,
    source: Any,
    output: Path,
    pretokenized: bool,
    batch_size: int,
    state: str,
    layers: str,
    dtype: str,
    precision: Literal["float32", "bfloat16"],
    device: str,
) -> None:
    """Embed each line: an array (layers, tokens, dim). The model's own tokenizer cuts the text.

    \b
    Example: elmo embed models/finetune --input text.txt --output vectors.npz
    """
    from . import text_commands

    count = text_commands.embed(
        model,
        source,
        output,
        pretokenized=pretokenized,
        batch_size=batch_size,
        state=state,
        layers=layers,
        dtype=dtype,
        precision=precision,
        device=device,
    )
    click.echo(f"embed: {count} sentences in {output}")


@cli.command()
@click.argument("model", type=PATH)
@click.option("--input", "source", type=TEXT, required=True, help="Text; - is stdin.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@JSON
@click.option("--sentences", is_flag=True, help="Print the scores of each line instead.")
@DEVICE
def perplexity(
    model: Path, source: Any, pretokenized: bool, as_json: bool, sentences: bool, device: str
) -> None:
    """The perplexity of a text, each sentence read alone, under the full softmax.

    The model's own tokenizer cuts each line.
    """
    from . import text_commands

    for line in text_commands.perplexity(
        model,
        source,
        pretokenized=pretokenized,
        as_json=as_json,
        sentences=sentences,
        device=device,
    ):
        click.echo(line)


@cli.command()
@click.argument("store", type=STORE)
@click.argument("text")
@click.option("--model", type=PATH, help="The store's model; default: looked for in models/.")
@click.option("-k", "count", default=10, show_default=True, help="How many neighbours to print.")
@click.option("--layer", help="A layer of the store; default: the mean of all.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@JSON
@DEVICE
def neighbors(
    store: str | Path,
    text: str,
    model: Path | None,
    count: int,
    layer: str | None,
    pretokenized: bool,
    as_json: bool,
    device: str,
) -> None:
    """Which tokens of STORE are used most like the one in brackets.

    \b
    Example: elmo neighbors data/features "He has a [gift] for music"
    """
    from . import text_commands

    for line in text_commands.neighbors(
        store,
        text,
        model=model,
        count=count,
        layer=layer,
        pretokenized=pretokenized,
        as_json=as_json,
        device=device,
    ):
        click.echo(line)


@cli.command("import")
@click.argument("options", type=PATH)
@click.argument("weights", type=PATH)
@click.argument("model", type=PATH)
@click.option(
    "--vocabulary", type=PATH, help="The words of its softmax or word embedding, one per line."
)
@click.option("--embedding", type=PATH, help="Its word embedding, where a separate file holds it.")
@click.option(
    "--tokenizer",
    default="whitespace",
    show_default=True,
    help="The tokenizer of its training text: the files do not record it.",
)
def import_(
    options: Path,
    weights: Path,
    model: Path,
    vocabulary: Path | None,
    embedding: Path | None,
    tokenizer: str,
) -> None:
    """Make a model folder of a 2018 OPTIONS.json and WEIGHTS.hdf5."""
    from elmo.interop.bilm_tf import import_2018

    digest = import_2018(
        options, weights, model, vocabulary=vocabulary, embedding=embedding, tokenizer=tokenizer
    )
    click.echo(
        f"import: {model} (digest {digest[:12]}), tokenizer {tokenizer}; it has no softmax: 2018 "
        "files have none"
    )


@cli.command()
@click.argument("model", type=PATH)
@click.argument("options", type=PATH)
@click.argument("weights", type=PATH)
def export(model: Path, options: Path, weights: Path) -> None:
    """Write a model as the 2018 pair OPTIONS.json and WEIGHTS.hdf5."""
    from elmo.interop.bilm_tf import export_2018

    export_2018(model, options, weights)
    click.echo(
        f"export: {options} and {weights}; the softmax and the optimizer stay behind: "
        "they travel in our own format only"
    )


@cli.command()
@click.argument("model", type=PATH)
@click.argument("out", type=PATH)
def export_serving(model: Path, out: Path) -> None:
    """Write MODEL as one file that serves without this package: OUT.pt2 (torch.export) or OUT.onnx.

    It takes ids (sentences, tokens, characters) and gives layers (sentences, layers, tokens, dim).
    """
    from elmo.interop.serving import export_serving as write

    write(model, out)
    click.echo(f"export-serving: {out} ({_bytes(out.stat().st_size)})")


@cli.command()
@click.argument("store", type=STORE)
@JSON
def verify(store: str | Path, as_json: bool) -> None:
    """Check every checksum and count of STORE, and name what is wrong."""
    from elmo.store.maintenance import verify as check

    counts = check(store).counts
    if as_json:
        import json

        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(counts)))
        return
    click.echo(f"verify: {store} is whole: {counts.parts} parts, {counts.tokens:,} tokens")


@cli.command()
@click.argument("store", type=STORE)
@click.argument("shards", type=PATH)
@click.argument("model", type=PATH)
@with_cluster
def append(store: str | Path, shards: Path, model: Path, cluster: Cluster) -> None:
    """Add the sentences of SHARDS to STORE, as a new version."""
    from . import features as stage

    figures = stage.append(store, shards, model, cluster=cluster)
    click.echo(f"append: {store} has {figures['tokens']:,} tokens now")


@cli.command()
@click.argument("store", type=STORE)
@click.option("--part-tokens", default=1_000_000, show_default=True, help="Tokens per part.")
def compact(store: str | Path, part_tokens: int) -> None:
    """Join small neighbouring parts of STORE, as a new version."""
    from elmo.store.maintenance import compact as join

    manifest = join(store, part_tokens=part_tokens)
    click.echo(f"compact: {store} has {manifest.counts.parts} parts now")


@cli.command()
@click.argument("store", type=STORE)
@click.option("--keep", default=1, show_default=True, help="Versions to keep.")
def prune(store: str | Path, keep: int) -> None:
    """Delete old versions of STORE and the files that only they name."""
    from elmo.store.maintenance import prune as delete

    click.echo(f"prune: {len(delete(store, keep=keep))} files deleted from {store}")


@cli.command()
@click.argument("store", type=STORE)
def lineage(store: str | Path) -> None:
    """Which model, run, corpus and settings made STORE, as JSON."""
    import json

    from elmo.store.maintenance import lineage as lineage_of

    click.echo(json.dumps(lineage_of(store), indent=1, ensure_ascii=False, sort_keys=True))


@cli.command()
@click.argument("store", type=STORE)
@click.argument("out", type=PATH)
@click.option("--layout", default="all", show_default=True, help="One of the layouts above.")
def dump(store: str | Path, out: Path, layout: str) -> None:
    """Write STORE for other tools: HDF5 as in 2018, list columns, Hugging Face datasets.

    Layouts: all, top, average (HDF5 of AllenNLP), bilm-tf (HDF5), lists (Parquet), datasets.
    """
    from elmo.store import FeatureStore
    from elmo.store import export as store_export

    opened = FeatureStore(store, checked=True)
    if layout == "lists":
        store_export.export_lists(opened, out)
    elif layout == "datasets":
        store_export.to_datasets(opened).save_to_disk(str(out))
    else:
        store_export.export_hdf5(opened, out, layout=layout)
    click.echo(f"dump: {out} holds {len(opened):,} sentences")


@cli.command()
@click.argument("model", type=PATH)
@click.argument("vocabulary", type=PATH)
@click.argument("out", type=PATH)
def dump_tokens(model: Path, vocabulary: Path, out: Path) -> None:
    """Write MODEL's context-free vectors of a word list, a line each, to OUT.hdf5 as in 2018."""
    from elmo.interop.bilm_tf import dump_token_embeddings

    count = dump_token_embeddings(model, vocabulary, out)
    click.echo(f"dump-tokens: {out} holds {count:,} words")


@cli.command()
@click.argument("name")
@click.argument("version", type=int, required=False)
def stores(name: str, version: int | None) -> None:
    """Which stores were made from a registered model NAME, or one VERSION of it."""
    from . import registry

    versions = registry.versions(name)
    for row in versions:
        if version in (None, row["version"]):
            named = [
                key[6:] + " " + value for key, value in row.items() if key.startswith("store.")
            ]
            click.echo(f"{name} version {row['version']}: {', '.join(named) or 'no store'}")
    if not any(version in (None, row["version"]) for row in versions):
        raise ElmoError(f"the registry has no {name} version {version or ''}".rstrip())


ADDRESS = click.option(
    "--address",
    help="The cluster's Jobs API, as http://HEAD:8265; else RAY_API_SERVER_ADDRESS.",
)


@cli.command()
@click.argument("stages", nargs=-1)
@ADDRESS
@click.option("--folder", help="The folder of the cluster's shared storage to work in.")
@click.option("--checkout", is_flag=True, help="It is a checkout: use its code and params.")
@click.option("--command", help="A command line to run instead of stages.")
@click.option("--env", "variables", multiple=True, help="NAME or NAME=VALUE to send too.")
@click.option("--no-wait", is_flag=True, help="Do not follow the job.")
@PARAMS
def submit(
    stages: tuple[str, ...],
    address: str | None,
    folder: str | None,
    checkout: bool,
    command: str | None,
    variables: tuple[str, ...],
    no_wait: bool,
    params_file: Path,
) -> None:
    """Run STAGES and what they need (default: all) on a Ray cluster, as `dvc repro` there.

    The code and params of this folder are sent, and variables of an allow-list (of S3, Azure,
    Google and MLflow). The exit code is the job's. Interrupting leaves the job running.

    \b
    Example: elmo submit pretrain --address http://head:8265 --folder /shared/elmo
    """
    from . import submit as cluster_jobs

    client, job = cluster_jobs.submit(
        list(stages),
        address=address,
        folder=folder,
        checkout=checkout,
        command=command,
        variables=variables,
        params=params_file,
        say=_say,
    )
    if not no_wait:
        _follow(client, job)


@cli.command()
@ADDRESS
def jobs(address: str | None) -> None:
    """The jobs of a Ray cluster: id, status, start, duration, what it runs."""
    from . import submit as cluster_jobs

    for line in cluster_jobs.jobs(address):
        click.echo(line)


@cli.command()
@click.argument("job")
@ADDRESS
def attach(job: str, address: str | None) -> None:
    """Show the log of JOB from its start until it ends; the exit code is the job's."""
    from . import submit as cluster_jobs

    _follow(cluster_jobs.connect(address), job)


@cli.command()
@click.argument("job")
@ADDRESS
def stop(job: str, address: str | None) -> None:
    """Ask JOB to save a checkpoint and end, and wait until it has."""
    from . import submit as cluster_jobs

    sys.exit(cluster_jobs.stop(address, job, say=_say))


def _follow(client: Any, job: str) -> None:
    from . import submit as cluster_jobs

    try:
        sys.exit(cluster_jobs.follow(client, job))
    except KeyboardInterrupt:
        _say(f"\n{job} continues: elmo attach {job} shows it again, elmo stop {job} ends it")
        sys.exit(130)


def _say(line: str) -> None:
    click.echo(line, err=True)


@cli.command()
@click.argument("version", type=click.IntRange(min=1))
@PARAMS
def promote(version: int, params_file: Path) -> None:
    """Make VERSION of the registered model the champion, whatever its perplexity."""
    from . import registry

    params = settings.load(params_file).register
    before = registry.promote(params.name, version, alias=params.alias)
    was = "there was none" if before is None else f"it was version {before}"
    click.echo(f"promote: {params.alias} of {params.name} is version {version} ({was})")


@cli.command()
@click.option(
    "--runs",
    "folder",
    default="runs",
    show_default=True,
    type=PATH,
    help="Work in progress.",
)
@click.option("-n", "count", default=20, show_default=True, help="How many MLflow runs to list.")
@click.option("--send", is_flag=True, help="Send metrics that could not reach MLflow earlier.")
@PARAMS
def runs(folder: Path, count: int, send: bool, params_file: Path) -> None:
    """List local work in progress, runs, versions of the model and stores."""
    from . import overview

    name = settings.load(params_file).register.name
    for line in overview.lines(folder, name=name, count=count, send=send):
        click.echo(line)


cli.add_command(task)


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
