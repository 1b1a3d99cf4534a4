"""The commands for a project and its settings: init, inspect, run, preset."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from .options import JSON, PARAMS, PATH, add_cluster_settings, check_stdout, print_done

if TYPE_CHECKING:
    from ..settings.cluster import Cluster


class _FilesCommand(click.Command):
    """A command whose options `--text` and `--domain` take all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `--text a b` as `--text a --text b`."""
        arguments: list[str] = []
        option = None
        for word in args:
            if word.startswith("-"):
                option = word if word in ("--text", "--domain") else None
            elif option and arguments[-1] != option:
                arguments.append(option)
            arguments.append(word)
        return super().parse_args(ctx, arguments)


@click.command(cls=_FilesCommand)
@click.argument("folder", type=PATH)
@click.option(
    "--text",
    multiple=True,
    metavar="FILES...",
    help="The text to train the language model on: files, folders, globs, URLs.",
)
@click.option(
    "--domain",
    "domain_text",
    multiple=True,
    metavar="FILES...",
    help="The text of your domain, whose vectors are stored. Default: the general text.",
)
@click.option("--column", help="The column of CSV, TSV, JSON lines or Parquet. Default: text.")
@click.option(
    "--preset",
    "preset_name",
    help="The preset for the size or language: small, original, korean, …",
)
@click.option(
    "--from",
    "model",
    metavar="MODEL",
    help="The name or folder of a trained model to fine-tune instead of pretraining one.",
)
def init(
    folder: Path,
    text: tuple[str, ...],
    domain_text: tuple[str, ...],
    column: str | None,
    preset_name: str | None,
    model: str | None,
) -> None:
    """Start a project in FOLDER with stages, settings, git and DVC.

    \b
    Example: elmo init my-project --text wiki/*.txt.gz --domain reviews.jsonl
             cd my-project; elmo run
             elmo init my-reviews --from english --domain reviews.jsonl
    """
    from ..project import init as projects

    lines = projects.create_project(
        folder, text=text, domain=domain_text, column=column, preset_name=preset_name, model=model
    )
    print_done(f"init: {folder}: {lines[0]}")
    for line in lines[1:]:
        print_done(f"  {line}")
    print_done(f"  next: {'' if folder == Path('.') else f'cd {quote(str(folder))}; '}elmo run")


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--column", help="The column of CSV, TSV, JSON lines or Parquet. Default: text.")
@click.option("--out", type=PATH, help="Write an HTML page with pictures and samples to this file.")
@PARAMS
@JSON
@add_cluster_settings
def inspect(
    files: tuple[str, ...],
    column: str | None,
    out: Path | None,
    params_file: Path,
    as_json: bool,
    cluster: "Cluster",
) -> None:
    """Describe the text in FILES, and show what each filter would leave out, with samples.

    Filters that are off in the settings are tried with common values, one at a time. Outside a
    project, the command uses the settings of a new one. It writes no files except `--out`.

    \b
    Example: elmo inspect reviews.jsonl wiki/*.txt.gz --column body
    """
    from elmo.errors import ElmoError

    check_stdout(is_needed=out is None)
    from ..project.init import TEMPLATE_FOLDER
    from ..settings.params import load
    from ..stages.inspection import inspect_text
    from ..text.input_files import find_inputs
    from ..text.text_blocks import check_texts

    if out is not None:
        from ..report.text_page import check_page, write_page

        check_page(out)
    is_in_project = params_file.exists() or params_file != Path("params.yaml")
    params = load(params_file if is_in_project else TEMPLATE_FOLDER / "params.yaml")
    column = column or params.corpus.column
    inputs = find_inputs(files, "as FILES")
    try:
        check_texts(inputs, column, "as FILES")
        inspection = inspect_text(inputs, params.tokenize, column=column, cluster=cluster)
    except ElmoError as error:
        raise ElmoError(str(error).replace("corpus.column", "--column")) from None
    if out is not None:
        write_page(out, inspection)
    if as_json:
        click.echo(json.dumps(inspection, ensure_ascii=False))
        return
    for line in _describe_text(inspection):
        print_done(line)
    if out is not None:
        print_done(f"  open {out}")


def _describe_text(inspection: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that `inspect` prints for a result of `inspect_text`."""
    from ..report.phrases import describe_rule
    from ..terminal.progress import human_size

    def join_counts(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in counts.items())

    size_by_share, words = inspection["document_bytes"], inspection["words"]
    sizes = [f"{s} up to {human_size(size_by_share[s])}" for s in ("10%", "50%", "90%", "100%")]
    word_count, distinct_count = words["100%"]
    growth = ", ".join("{1:,} in the first {0:,}".format(*words[s]) for s in ("1%", "10%", "50%"))
    heldout, quality = inspection["heldout"], inspection["quality"]
    yield f"inspect: {human_size(inspection['bytes'])}; files: {join_counts(inspection['formats'])}"
    for name, description in {
        "documents": f"{inspection['documents']:,}; sizes: {', '.join(sizes)}",
        "by script": join_counts(inspection["scripts"]) or "no letters",
        "words": f"{distinct_count:,} distinct in {word_count:,} ({growth})",
        "held out": f"{heldout['documents']:,} documents of 256 bytes or more; the training text "
        f"has near copies of {heldout['in_training']:,}",
        "repeated": f"{quality['duplicate_share']:.1%} of the lines",
        "not text": f"{quality['not_text_sentences']:,} lines are mostly symbols or digits",
        "wrapped": f"{quality['wrapped_lines']:,} lines end within a sentence",
        "not NFC": f"{quality['decomposed_tokens']:,} words have decomposed characters",
    }.items():
        yield f"  {name:<14} {description}"
    yield f"  {'left out as':<14} {'lines':>9}  {'bytes':>9}  by"
    for finding in inspection["findings"]:
        size, rule = human_size(finding["bytes"]), describe_rule(finding)
        yield f"  {finding['reason']:<14} {finding['lines']:>9,}  {size:>9}  {rule}"
        for sample in finding["samples"]:
            yield f"    {sample['file']}: {sample['text'][:100]}"
            if original := sample.get("repeats"):
                yield f"      repeats {original['file']}: {original['text'][:100]}"


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("stages", nargs=-1, type=click.UNPROCESSED)
def run_stages(stages: tuple[str, ...]) -> None:
    """Run STAGES (default: all) and the stages they need, unless they are up to date.

    Stages: corpus, tokenize (tokenize@general, tokenize@domain), vocab, pretrain, finetune,
    features, register, labels, tasks (tasks@NAME), report.

    This is `dvc repro` and takes its options: --force, --dry, --single-item.

    \b
    Example: elmo run pretrain
    """
    from ..project.repro import repro

    sys.exit(1 if repro(stages) else 0)


@click.command()
@click.argument("name")
@PARAMS
def preset(name: str, params_file: Path) -> None:
    """Write the values of presets/NAME.yaml into params.yaml and keep all other lines.

    \b
    Example: elmo preset small; git diff params.yaml; git checkout params.yaml
    """
    from ..settings import preset as presets

    presets.apply_preset(name, params_file)
    print_done(f"preset: {params_file} has the values of {name}; see them: git diff {params_file}")
