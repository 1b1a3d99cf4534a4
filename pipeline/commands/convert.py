"""The commands for other formats: import, export, package, dump."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmo.data.tokenizer import TOKENIZERS
from elmo.errors import ElmoError

from .options import (
    DTYPE,
    HDF5_START,
    INPUT_FOLDER,
    NEW_FILE,
    OPTIONS_JSON_START,
    OVERWRITE,
    PARQUET_START,
    PATH,
    TEXT,
    output_file,
    print_done,
)

if TYPE_CHECKING:
    from elmo.io.location import Location


@click.command("import")
@click.argument("options", type=PATH)
@click.argument("weights", type=PATH)
@click.argument("model", type=PATH)
@click.option(
    "--vocabulary", type=PATH, help="The words of the softmax or word embedding, one per line."
)
@click.option("--embedding", type=PATH, help="The word embedding, if it is in a separate file.")
@click.option(
    "--tokenizer",
    type=click.Choice([*TOKENIZERS]),
    default="whitespace",
    show_default=True,
    help="The tokenizer of the training text, which the files do not record.",
)
@OVERWRITE
def import_(
    options: Path,
    weights: Path,
    model: Path,
    vocabulary: Path | None,
    embedding: Path | None,
    tokenizer: str,
    overwrite: bool,
) -> None:
    """Convert the 2018 files OPTIONS.json and WEIGHTS.hdf5 to the model folder MODEL.

    \b
    Example: elmo import options.json weights.hdf5 models/original --vocabulary words.txt
    """
    from elmo.interop.files_of_2018 import import_2018
    from elmo.io.atomic import check_output_folder_absent
    from elmo.model.config import CONFIG_FILE

    if not overwrite:
        check_output_folder_absent(model, marker=CONFIG_FILE)
    digest = import_2018(
        options,
        weights,
        model,
        vocabulary=vocabulary,
        embedding=embedding,
        tokenizer=tokenizer,
        overwrite=overwrite,
    )
    print_done(f"import: {model} (digest {digest[:12]}), tokenizer {tokenizer}, without a softmax")


@click.command()
@click.argument("model", type=PATH)
@click.argument("options", type=NEW_FILE)
@click.argument("weights", type=NEW_FILE)
@OVERWRITE
def export(model: Path, options: Path, weights: Path, overwrite: bool) -> None:
    """Convert MODEL to the 2018 files OPTIONS.json and WEIGHTS.hdf5.

    \b
    Example: elmo export models/finetune options.json weights.hdf5
    """
    from elmo.interop.files_of_2018 import export_2018

    if os.path.realpath(options) == os.path.realpath(weights):  # Path.resolve fails on a loop
        raise ElmoError(f"{weights}: is OPTIONS too; name two files")
    with (
        output_file(options, overwrite, start=OPTIONS_JSON_START, inputs=[model]) as new_options,
        output_file(weights, overwrite, start=HDF5_START, inputs=[model]) as new_weights,
    ):
        export_2018(model, new_options, new_weights)
    print_done(f"export: {options} and {weights}, without the softmax and the optimizer's state")


@click.command()
@click.argument("model", type=PATH)
@click.argument("out", type=PATH)
@click.option("--name", required=True, help="The name to load the model by, such as english.")
@click.option("--version", default="1.0", show_default=True, help="The version of the package.")
@click.option(
    "--licence",
    default="unknown",
    show_default=True,
    help="The licence of the model, such as CC-BY-4.0.",
)
@click.option("--language", help="The language code for the model card, such as en.")
@click.option("--about", type=TEXT, help="Markdown for the model card: data, use, limits.")
@OVERWRITE
def package(
    model: Path,
    out: Path,
    name: str,
    version: str,
    licence: str,
    language: str | None,
    about: Any,
    overwrite: bool,
) -> None:
    """Make a Python package of MODEL that others can install and load by name.

    \b
    Example: elmo package models/pretrain pretrained/english --name english --language en
             pip install ./pretrained/english; elmo embed english --input text.txt --output out.npz
    """
    from elmo.io.atomic import check_output_folder_absent
    from elmo.model.pretrained import PROJECT_FILE, write_package

    if not overwrite:
        check_output_folder_absent(out, marker=PROJECT_FILE)
    try:
        text = about.read().decode("utf-8") if about else ""
    except UnicodeDecodeError:
        raise ElmoError(f"--about {about.name}: is not UTF-8; save it as UTF-8") from None
    digest = write_package(
        model, out, name=name, version=version, licence=licence, language=language, about=text
    )
    folder = str(out) if out.is_absolute() else f"./{out}"  # else pip asks a registry for it
    print_done(f"package: {out} (digest {digest[:12]}); run: pip install {folder}")


@click.command()
@click.argument("store", type=INPUT_FOLDER)
@click.argument("out", type=NEW_FILE)
@DTYPE
@OVERWRITE
def dump(store: "Location", out: Path, dtype: Any, overwrite: bool) -> None:
    """Export STORE for other tools, as the Parquet table OUT with one row per token.

    \b
    Example: elmo dump data/features vectors.parquet
    """
    from elmo.store import FeatureStore
    from elmo.store.dump import export_token_table

    if out.suffix != ".parquet":
        raise ElmoError(f"{out}: dump writes .parquet; use {out.stem}.parquet")
    features = FeatureStore(store, checked=True)
    with output_file(out, overwrite, start=PARQUET_START, inputs=[store]) as file:
        count = export_token_table(features, file, dtype=dtype)
    print_done(f"dump: {out} has {count:,} rows, one per token")
