"""The commands that use a model on a text: embed, perplexity.

Modules that load torch are imported inside the commands, so `elmo --help` does not load it.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import click

from elmo.errors import ElmoError
from elmo.settings import MAX_LINE_BYTES, MAX_SENTENCE_TOKENS

from ..report.phrases import unknown_words_remark
from ..terminal.progress import Progress
from .options import (
    DEVICE,
    DTYPE,
    JSON,
    NEW_FILE,
    NPZ_START,
    OVERWRITE,
    PATH,
    PRETOKENIZED,
    TEXT,
    check_stdout,
    output_file,
    print_done,
)

if TYPE_CHECKING:
    from elmo.data.tokenizer import TextTokenizer
    from elmo.model.embedder import Embedder
    from elmo.settings import PrecisionChoice

LineSentences = list[list[str]]  # the sentences of a line, each a list of tokens

INPUT = click.option(
    "--input", "source", type=TEXT, required=True, help="The text file; - is stdin."
)
COLUMN = click.option(
    "--column", default="text", show_default=True, help="The column or field that holds the text."
)


@click.command()
@click.argument("model", type=PATH)
@INPUT
@click.option(
    "--output",
    type=NEW_FILE,
    required=True,
    help="The .npz file to write; key k is line k, from 0.",
)
@PRETOKENIZED
@click.option("--batch-size", default=256, show_default=True, help="Sentences per batch.")
@click.option(
    "--state",
    type=click.Choice(["reset", "carry"]),
    default="reset",
    show_default=True,
    help="reset: embed each sentence alone; carry: keep the state between sentences, as in 2018.",
)
@click.option(
    "--layers",
    default="all",
    show_default=True,
    help="The layers to write: all, or numbers such as 0,2.",
)
@DTYPE
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="The precision of matrix products; auto: float32 or bfloat16, whichever is faster.",
)
@OVERWRITE
@DEVICE
@COLUMN
def embed(
    model: Path,
    source: BinaryIO,
    output: Path,
    pretokenized: bool,
    batch_size: int,
    state: str,
    layers: str,
    dtype: str,
    precision: "PrecisionChoice",
    overwrite: bool,
    device: str,
    column: str,
) -> None:
    """Tokenize and embed each line, and write one array (layers, tokens, dim) per line.

    The input can be any corpus format, also compressed. Each record counts as a line.

    \b
    Example: elmo embed models/finetune --input text.txt --output vectors.npz
    """
    import zipfile

    import numpy as np

    from elmo.io.atomic import check_output_absent, new_file_if_absent
    from elmo.model.batches import Carry
    from elmo.model.embedder import Embedder

    from ..settings.precision import choose_precision

    if output.suffix != ".npz":
        raise ElmoError(f"{output}: embed writes .npz; use {output.stem}.npz")
    with output_file(
        output, overwrite, start=NPZ_START, inputs=[model, getattr(source, "name", "-")]
    ) as out:
        check_output_absent(out)
        compute_precision = choose_precision(
            precision, setting="--precision", device=device, say=partial(click.echo, err=True)
        )
        embedder = Embedder.load(model, device=device, precision=compute_precision)
        layer_numbers = _parse_layers(layers, embedder)
        tokenize = None if pretokenized else embedder.model.text_tokenizer()
        lines = _read_lines(source, tokenize, column=column, max_tokens=MAX_SENTENCE_TOKENS)
        carry: Carry | Literal["reset"] = "reset"
        if state == "carry":
            carry = Carry()
            lines = ([[token for tokens in line for token in tokens]] for line in lines)
        arrays = embedder.embed_stream(lines, batch_size, layers=layer_numbers, state=carry)
        count = 0
        with (
            Progress("embed", None, unit="lines") as progress,
            new_file_if_absent(out) as path,
            zipfile.ZipFile(path, "w", allowZip64=True) as archive,
        ):
            for count, vectors in enumerate(arrays, 1):
                name = zipfile.ZipInfo(f"{count - 1}.npy")
                with archive.open(name, "w", force_zip64=True) as entry:
                    np.lib.format.write_array(cast(BinaryIO, entry), vectors.astype(dtype))
                progress.advance()
    print_done(f"embed: {count:,} lines in {output}")


def _parse_layers(layers: str, embedder: "Embedder") -> list[int]:
    if layers == "all":
        return list(range(embedder.layers))
    try:
        return [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise ElmoError(f"--layers must be all or numbers such as 0,2; found {layers!r}") from None


@click.command()
@click.argument("model", type=PATH)
@INPUT
@PRETOKENIZED
@JSON
@click.option("--sentences", is_flag=True, help="Print the −log p of each line in both directions.")
@DEVICE
@COLUMN
def perplexity(
    model: Path,
    source: BinaryIO,
    pretokenized: bool,
    as_json: bool,
    sentences: bool,
    device: str,
    column: str,
) -> None:
    """Print the perplexity of a text; the model reads each sentence alone.

    The model's tokenizer splits each line. Every token and sentence end counts (full softmax).

    \b
    Example: elmo perplexity models/finetune --input text.txt
    """
    check_stdout()
    from elmo.model.folder import load_model
    from elmo.train import perplexity as evaluation

    loaded_model = load_model(model, device=device)
    tokenize = None if pretokenized else loaded_model.text_tokenizer()
    # Text is scored in blocks, so a line may have any number of tokens.
    lines = _read_lines(source, tokenize, column=column, max_tokens=MAX_LINE_BYTES)
    if sentences:
        evaluator = evaluation.make_evaluator(loaded_model)
        for block in evaluation.token_blocks(lines, lambda line: sum(map(len, line))):
            token_lists = [tokens for line in block for tokens in line]
            scores = iter(
                evaluation.sentence_scores(loaded_model, token_lists, evaluator=evaluator)
            )
            for line in block:
                line_scores = [next(scores) for _ in line]
                forward, backward = (sum(score[k] for score in line_scores) for k in (0, 1))
                if as_json:
                    record = {"forward": forward, "backward": backward, "tokens": [*chain(*line)]}
                    click.echo(json.dumps(record, ensure_ascii=False))
                    continue
                click.echo(f"{forward:.4f}\t{backward:.4f}\t{' '.join(chain(*line))}")
        return
    result = evaluation.perplexity(loaded_model, chain.from_iterable(lines)).to_dict()
    if as_json:
        finite_result = {name: score if score == score else None for name, score in result.items()}
        click.echo(json.dumps(finite_result))
        return
    remark = unknown_words_remark(result["unk_rate"]) or f", {result['unk_rate']:.2%} unknown"
    sentence_ends = f"{result['sentences']:,.0f} sentence end{'s' * (result['sentences'] != 1)}"
    click.echo(
        f"perplexity {result['average']:.2f} (forward {result['forward']:.2f}, "
        f"backward {result['backward']:.2f}) over {result['tokens']:,.0f} tokens and "
        f"{sentence_ends}{remark}"
    )


def _read_lines(
    source: BinaryIO, tokenize: "TextTokenizer | None", *, column: str, max_tokens: int
) -> Iterator[LineSentences]:
    """Yield the sentences of each line or record; without `tokenize`, spaces separate tokens.

    Raises `ElmoError` for a line that is not UTF-8 or too long, or a text without tokens.
    """
    name = getattr(source, "name", "-")
    token_count = 0
    for number, text in _read_texts(source, name, column):
        if tokenize is None:
            lines = (line.removesuffix("\r") for line in text.split("\n"))
            sentences = [[token for token in line.split(" ") if token] for line in lines]
        else:
            sentences = tokenize(text)
        if (count := sum(map(len, sentences))) > max_tokens:
            raise ElmoError(
                f"{name}:{number}: the line has {count:,} tokens, more than {max_tokens:,}; write "
                "one sentence per line"
            )
        token_count += count
        yield sentences
    if not token_count:
        raise ElmoError(f"{name}: no sentences; the text is empty or blank")


def _read_texts(source: BinaryIO, name: str, column: str) -> Iterator[tuple[int, str]]:
    """Yield the lines or records of a file or a pipe; a pipe is copied to a file first."""
    from ..text.text_blocks import read_texts

    path = Path(name)
    with nullcontext() if path.is_file() else NamedTemporaryFile() as copy:
        if copy is not None:
            shutil.copyfileobj(source, copy)
            copy.flush()
            path = Path(copy.name)
        try:
            yield from read_texts(path, column)
        except ElmoError as error:
            message = str(error).replace(str(path), name)
            message = message.replace("set corpus.column", "pass --column")
            raise ElmoError(message.replace("corpus.column", "--column")) from None
