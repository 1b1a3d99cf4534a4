"""Using a model on a file of text: embed, perplexity.

What loads torch is imported in the command that needs it: `elmo --help` does without.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import click

from elmo.errors import ElmoError, not_utf8_error
from elmo.settings import MAX_LINE_BYTES, MAX_TOKENS

from ..report.phrases import unknown_words_remark
from ..terminal.progress import Progress
from .options import (
    DEVICE,
    JSON,
    NEW_FILE,
    NPZ,
    OVERWRITE,
    PATH,
    PRETOKENIZED,
    TEXT,
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
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="The number type of the file.",
)
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
    from elmo.io.atomic import check_absent
    from elmo.model.embedder import Embedder

    from ..settings.precision import choose_precision

    if output.suffix != ".npz":
        raise ElmoError(f"{output}: embed writes .npz; use {output.stem}.npz")
    with output_file(
        output, overwrite, kind=NPZ, inputs=[model, getattr(source, "name", "-")]
    ) as out:
        check_absent(out)
        compute_precision = choose_precision(
            precision, setting="--precision", device=device, say=partial(click.echo, err=True)
        )
        embedder = Embedder.load(model, device=device, precision=compute_precision)
        layer_numbers = _parse_layers(layers, embedder)
        tokenize = None if pretokenized else embedder.model.text_tokenizer()
        progress = Progress("embed", _kilobytes(getattr(source, "name", "-")), unit="kB")
        lines = _read_lines(
            source, tokenize, column=column, max_tokens=MAX_TOKENS, progress=progress
        )
        with progress:
            count = _write_vectors(
                out, embedder, lines, batch_size, layers=layer_numbers, state=state, dtype=dtype
            )
    print_done(f"embed: {count:,} lines in {output}")


def _write_vectors(
    out: Path,
    embedder: "Embedder",
    lines: Iterator[LineSentences],
    batch_size: int,
    *,
    layers: list[int],
    state: str,
    dtype: str,
) -> int:
    """Write an array for each line; return how many.

    Where the model's tokenizer cuts a line into sentences each is read alone, and their tokens
    stand end to end.
    """
    import zipfile

    import numpy as np

    from elmo.io.atomic import new_file_if_absent
    from elmo.model.batches import Carry

    carry: Carry | Literal["reset"] = "reset"
    if state == "carry":
        carry = Carry()
        lines = ([[token for tokens in line for token in tokens]] for line in lines)
    count = 0
    with new_file_if_absent(out) as path, zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for vectors in embedder.embed_stream(lines, batch_size, layers=layers, state=carry):
            with archive.open(zipfile.ZipInfo(f"{count}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(cast(BinaryIO, entry), vectors.astype(dtype))
            count += 1
    return count


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
@click.option("--sentences", is_flag=True, help="Print one line of scores per input line instead.")
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
    from elmo.model.folder import load_model
    from elmo.train import perplexity as evaluation

    loaded_model = load_model(model, device=device)
    tokenize = None if pretokenized else loaded_model.text_tokenizer()
    # Scored piece by piece, so the tokens of a line have no bound of their own.
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
        finite_result = {name: value if value == value else None for name, value in result.items()}
        click.echo(json.dumps(finite_result))
        return
    remark = unknown_words_remark(result["unk_rate"]) or f", {result['unk_rate']:.2%} unknown"
    sentence_ends = f"{result['sentences']:,.0f} sentence end{'s' * (result['sentences'] != 1)}"
    click.echo(
        f"perplexity {result['average']:.2f} (forward {result['forward']:.2f}, "
        f"backward {result['backward']:.2f}) over {result['tokens']:,.0f} tokens and "
        f"{sentence_ends}{remark}"
    )


def _kilobytes(name: str) -> float | None:
    """Return the size of a file of plain text; None for a pipe, records and what is compressed."""
    from elmo.io.text_files import COMPRESSIONS

    from ..text.formats import BY_ENDING

    ending = Path(name).suffix.lower()
    if ending in COMPRESSIONS or BY_ENDING.get(ending, "text") != "text":
        return None
    return os.path.getsize(name) / 1000 if os.path.isfile(name) else None


def _read_lines(
    source: BinaryIO,
    tokenize: "TextTokenizer | None",
    *,
    column: str,
    max_tokens: int,
    progress: Progress | None = None,
) -> Iterator[LineSentences]:
    """The sentences of each line or record, those of tokens between spaces without `tokenize`.

    `ElmoError` names a line that is not UTF-8 or too long, or a text without any token.
    """
    name = getattr(source, "name", "-")
    token_count = 0
    for number, text in _read_texts(source, name, column):
        if progress is not None:
            progress.advance((len(text.encode()) + 1) / 1000)  # and the end of the line
        if tokenize is None:
            lines = (line.removesuffix("\r") for line in text.split("\n"))
            sentences = [[t for t in line.split(" ") if t] for line in lines]
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
    """Yield the lines or records of a file, or the lines of a pipe."""
    if os.path.isfile(name):
        from ..text.text_blocks import read_texts

        try:
            yield from read_texts(Path(name), column)
        except ElmoError as error:
            message = str(error).replace("set corpus.column", "pass --column")
            raise ElmoError(message.replace("corpus.column", "--column")) from None
        return
    from ..text.other_formats import check_plain_text

    number = 0
    while line := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise ElmoError(
                f"{name}:{number}: the line has more than {MAX_LINE_BYTES:,} bytes; write one "
                "sentence per line"
            )
        if number == 1:
            check_plain_text(name, line, "--column")
        if b"\0" in line:
            raise ElmoError(f"{name}:{number}: contains a zero byte; save it as UTF-8 text")
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise not_utf8_error(name, number, line, error.start) from None
        yield number, text.removeprefix("\ufeff") if number == 1 else text
