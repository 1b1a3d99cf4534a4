"""A project and its settings: init, run, preset."""

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from .options import JSON, PARAMS, PATH, add_cluster_settings, print_done

if TYPE_CHECKING:
    from ..settings.cluster import Cluster


class _SeveralFiles(click.Command):
    """A command whose options `--text` and `--domain` take all the words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--text a b` as `--text a --text b`."""
        arguments: list[str] = []
        option = None
        for word in args:
            if word.startswith("-"):
                option = word if word in ("--text", "--domain") else None
            elif option and arguments[-1] != option:
                arguments.append(option)
            arguments.append(word)
        return super().parse_args(ctx, arguments)


@click.command(cls=_SeveralFiles)
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
    help="A trained model to fine-tune, by name or folder, instead of pretraining one.",
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
        folder,
        text=text,
        domain=domain_text,
        column=column,
        preset_name=preset_name,
        model=model,
    )
    print_done(f"init: {folder}: {lines[0]}")
    for line in lines[1:]:
        print_done(f"  {line}")
    print_done(f"  next: {'' if folder == Path('.') else f'cd {quote(str(folder))}; '}elmo run")


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--column", help="The column of CSV, TSV, JSON lines or Parquet. Default: text.")
@PARAMS
@JSON
@add_cluster_settings
def inspect(
    files: tuple[str, ...],
    column: str | None,
    params_file: Path,
    as_json: bool,
    cluster: "Cluster",
) -> None:
    """Describe the text in FILES, and show what each filter would leave out, with samples.

    Filters that are off in the settings are tried with common values, one at a time. Outside a
    project, the command uses the settings of a new one. It writes no files.

    \b
    Example: elmo inspect reviews.jsonl wiki/*.txt.gz --column body
    """
    from elmo.errors import ElmoError

    from ..project.init import TEMPLATE
    from ..settings.params import load
    from ..stages.inspection import inspect_text
    from ..terminal.progress import human_size
    from ..text.input_files import find_inputs
    from ..text.text_blocks import check_texts

    in_project = params_file.exists() or params_file != Path("params.yaml")
    params = load(params_file if in_project else TEMPLATE / "params.yaml")
    column = column or params.corpus.column
    inputs = find_inputs(files, "as FILES")
    try:
        check_texts(inputs, column, "as FILES")
        text = inspect_text(inputs, params.tokenize, column=column, cluster=cluster)
    except ElmoError as error:
        raise ElmoError(str(error).replace("corpus.column", "--column")) from None
    if as_json:
        click.echo(json.dumps(text, ensure_ascii=False))
        return
    formats = ", ".join(f"{count:,} {name}" for name, count in text["formats"].items())
    print_done(f"inspect: {human_size(text['bytes'])} in {len(inputs):,} files: {formats}")
    sizes = ", ".join(
        f"{share} up to {human_size(size)}" for share, size in text["document_bytes"].items()
    )
    print_done(f"  {text['documents']:,} documents: {sizes}")
    words = ", ".join(f"{distinct:,} in {count:,}" for count, distinct in text["words"])
    print_done(f"  distinct words: {words}")
    print_done(
        "  held out: {documents:,} documents of 256 bytes or more, {in_training:,} of them with a "
        "near copy in the training text".format(**text["heldout"])
    )
    scripts = ", ".join(f"{count:,} {name}" for name, count in text["scripts"].items())
    print_done(f"  documents by script: {scripts or 'no letters'}")
    for name in ("duplicate_share", "not_text_sentences", "wrapped_lines", "decomposed_tokens"):
        label = name.replace("_", " ").replace("sentences", "lines")
        print_done(f"  {label}: {text['quality'][name]:,}")
    for finding in text["findings"]:
        setting = "always left out" if finding["is_on"] else "never left out"
        if finding["setting"]:
            setting = f"tokenize.{finding['setting']}: {json.dumps(finding['value'])}"
            setting += "" if finding["is_on"] else ", which is off"
        size = human_size(finding["bytes"])
        print_done(f"  {finding['reason']}: {finding['lines']:,} lines, {size} ({setting})")
        for sample in finding["samples"]:
            print_done(f"    {sample['file']}: {sample['text'][:100]}")
            if original := sample.get("repeats"):
                print_done(f"      repeats {original['file']}: {original['text'][:100]}")


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
