"""Measure what each layer encodes, without training the biLM (Tables 5 and 6 of the paper)."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.errors import ElmoError
from elmo.io.text_files import numbered_lines
from elmo.model.embedder import Embedder
from elmo.store import model_digest
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Tagged
from elmo.tasks.inputs import read_word_vectors
from pipeline.stages.task_training import source_digest
from research import layer_probe, senses
from research.finding import Finding, Row, bootstrap_row, command_line

HELD_OUT = 0.2  # the share of documents to test on if there is no test file


def probe_senses(
    model: Path,
    train: Path,
    *,
    train_gold: Path | None,
    test: Path | None,
    test_gold: Path | None,
    first_senses: Path | None,
    device: str,
    static: Mapping[str, Path] | None = None,
) -> Finding:
    """Measure how well each layer distinguishes word senses, by nearest neighbour.

    Without `test`, a fifth of the documents of `train`, chosen by a hash of their names, is the
    test part. `static` maps names to files of word vectors, which are measured too.
    """
    static = static or {}
    sources = {
        name: path
        for name, path in (
            ("train", train),
            ("train_gold", train_gold),
            ("test", test),
            ("test_gold", test_gold),
            ("first_senses", first_senses),
        )
        if path is not None
    } | {f"static {name}": path for name, path in static.items()}
    train_part = _read_sense_tagged(train, train_gold)
    if test is not None:
        test_part = _read_sense_tagged(test, test_gold)
    else:
        test_part = [sentence for sentence in train_part if _is_held_out(sentence.document)]
        train_part = [sentence for sentence in train_part if not _is_held_out(sentence.document)]
        if not test_part or not train_part:
            raise ElmoError(f"{train}: too few documents to hold some out; pass --test")
    sense_by_word = None if first_senses is None else senses.read_first_senses(first_senses)
    lengths = [len(sentence.occurrences) for sentence in test_part if sentence.occurrences]
    static_rows = []
    for name, path in static.items():
        vectors = static_vectors(path, [sentence.tokens for sentence in (*train_part, *test_part)])
        is_right_1N = _score_static_vectors(vectors, train_part, test_part, sense_by_word).is_right
        static_rows.append(bootstrap_row(name, is_right_1N[0], lengths))
    embed = Embedder.load(model, device=device).embed
    scores = senses.score_word_senses(embed, train_part, test_part, first_senses=sense_by_word)
    rows = [Row("first sense", scores.first_sense), Row("most frequent", scores.most_frequent)]
    layer_rows = _layer_rows(scores.is_right, lengths)
    for row, score in zip(layer_rows, scores.ambiguous_layers, strict=True):
        if not np.isnan(score):
            row.extra["ambiguous_words"] = score
    rows += [*static_rows, *layer_rows]
    extra = {"fallback": scores.fallback, "ambiguous": scores.ambiguous}
    rows[0].extra |= extra
    examples = {"train": len(train_part), "test": len(test_part), "answers": scores.occurrences}
    return _make_finding("senses", model, sources, examples, rows, {})


def probe_tags(
    model: Path,
    train: Path,
    test: Path,
    *,
    l2: float,
    device: str,
    static: Mapping[str, Path] | None = None,
    **reading_options: Any,
) -> Finding:
    """Measure how well a linear probe predicts the tags of tokens from each layer.

    `reading_options` are passed to `read_examples`. `static` maps names to files of word vectors,
    which are probed too.
    """
    train_part, test_part = (_read_tagged(path, **reading_options) for path in (train, test))
    scores = layer_probe.probe_layers(
        Embedder.load(model, device=device), train_part, test_part, l2=l2
    )
    rows = [Row("most frequent tag of the type", scores.most_frequent)]
    lengths = [len(tokens) for tokens, _ in test_part]
    for name, path in (static or {}).items():
        vectors = static_vectors(path, [tokens for tokens, _ in (*train_part, *test_part)])
        is_right_N = layer_probe.probe_vectors(
            partial(_stack_vectors, vectors), train_part, test_part, l2=l2
        )
        rows.append(bootstrap_row(name, is_right_N, lengths))
    rows += _layer_rows(scores.is_right, lengths)
    examples = {"train": len(train_part), "test": len(test_part), "answers": scores.tokens}
    sources = {"train": train, "test": test} | {f"static {k}": v for k, v in (static or {}).items()}
    return _make_finding("probe", model, sources, examples, rows, {"l2": l2})


Vectors = Callable[[Sequence[str]], npt.NDArray[np.float32]]  # tokens to their vectors (T, D)


def static_vectors(path: Path, sentences: Iterable[Sequence[str]]) -> Vectors:
    """Return a function that looks up the vectors of tokens of `sentences`: the vector of a token,
    else that of its lower case, else zeros."""
    types = {token for tokens in sentences for token in tokens}
    header = next(iter(numbered_lines(path)))[1].split()
    if len(header) != 2 or not header[1].isdecimal():
        raise ElmoError(f"{path}:1: must be the number of words and the dim, as word2vec writes")
    words_to_read = types | {word.lower() for word in types}
    words, table_WD = read_word_vectors(path, words_to_read, dim=int(header[1]))
    id_by_word = {word: k for k, word in enumerate(words)}
    zero_1D = np.zeros((1, table_WD.shape[1]), np.float32)
    padded_WD = np.concatenate([table_WD, zero_1D])

    def vectors(tokens: Sequence[str]) -> npt.NDArray[np.float32]:
        ids = [id_by_word.get(token, id_by_word.get(token.lower(), len(words))) for token in tokens]
        return padded_WD[ids]

    return vectors


def _stack_vectors(vectors: Vectors, sentences: Sequence[layer_probe.TaggedTokens]) -> Tensor:
    return torch.from_numpy(vectors([token for tokens, _ in sentences for token in tokens]))


def _score_static_vectors(
    vectors: Vectors,
    train: Sequence[senses.SenseSentence],
    test: Sequence[senses.SenseSentence],
    sense_by_word: Mapping[senses.Word, str] | None,
) -> senses.SenseScores:
    def embed(batch: list[list[str]]) -> list[npt.NDArray[np.float32]]:
        return [vectors(tokens)[None] for tokens in batch]

    return senses.score_word_senses(embed, train, test, first_senses=sense_by_word)


def _layer_rows(is_right_LN: Any, lengths: Sequence[int]) -> list[Row]:
    """Return a row for each layer, with its gain over the layer below on the same answers."""
    rows = [
        bootstrap_row(f"layer {number}", is_right_N, lengths)
        for number, is_right_N in enumerate(is_right_LN)
    ]
    for number, row in enumerate(rows[1:], 1):
        gain_N = is_right_LN[number].astype(int) - is_right_LN[number - 1].astype(int)
        gain = bootstrap_row("", gain_N, lengths)
        assert gain.low is not None and gain.high is not None
        row.extra |= {"above": gain.mean, "above_low": gain.low, "above_high": gain.high}
    return rows


def _read_sense_tagged(path: Path, gold: Path | None) -> list[senses.SenseSentence]:
    """Read SemCor's columns or, with `gold`, XML of the unified evaluation framework."""
    if gold is not None:
        return senses.read_wsd_evaluation(path, gold)
    if ".xml" in path.suffixes:
        raise ElmoError(f"{path}: sense keys are missing; pass --train-gold or --test-gold too")
    return senses.read_semcor(path)


def _is_held_out(document: str) -> bool:
    document_hash = hashlib.sha256(document.encode("utf-8")).digest()
    return int.from_bytes(document_hash[:8], "big") / 2**64 < HELD_OUT


def _read_tagged(path: Path, **reading_options: Any) -> list[tuple[Sequence[str], Sequence[str]]]:
    return [
        (example.tokens, example.tags)
        for example in read_examples("tagging", path, **reading_options).examples
        if isinstance(example, Tagged) and example.tags is not None
    ]


def _make_finding(
    kind: Any,
    model: Path,
    sources: dict[str, Path],
    examples: dict[str, int],
    rows: list[Row],
    settings: dict[str, Any],
) -> Finding:
    return Finding(
        format=1,
        kind=kind,
        task=kind,
        metric="accuracy",
        command=command_line(),
        model=model_digest(model),
        data={name: source_digest(name, path) for name, path in sources.items()},
        examples=examples,
        seeds=[],
        settings=settings,
        rows=rows,
    )
