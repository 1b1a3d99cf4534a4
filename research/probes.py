"""Probes of what each layer encodes, without training the biLM: the paper's Tables 5 and 6."""

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
from pipeline.tracking.task_runs import source_digest
from research import layer_probe, senses
from research.finding import (
    Finding,
    Row,
    command_line,
    over_sentences,
)

HELD_OUT = 0.2  # of the documents, where no test file is named


def word_senses(
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
    """Measure how well each layer tells word senses apart, by nearest neighbour.

    Without `test`, a fifth of the documents of `train`, chosen by a hash of their names, is the
    test part. `static` maps names to files of word vectors, each measured likewise.
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
    learned = _senses_of(train, train_gold)
    if test is not None:
        tested = _senses_of(test, test_gold)
    else:
        tested = [s for s in learned if _is_held(s.document)]
        learned = [s for s in learned if not _is_held(s.document)]
        if not tested or not learned:
            raise ElmoError(f"{train}: too few documents to hold some out; pass --test")
    firsts = None if first_senses is None else senses.read_first_senses(first_senses)
    lengths = [len(s.occurrences) for s in tested if s.occurrences]
    of_static = []
    for name, path in static.items():
        vectors = static_vectors(path, [s.tokens for s in (*learned, *tested)])
        right_1N = _senses_by(vectors, learned, tested, firsts).right
        of_static.append(over_sentences(name, right_1N[0], lengths))
    embed = Embedder.load(model, device=device).embed
    scores = senses.score_word_senses(embed, learned, tested, first_senses=firsts)
    rows = [Row("first sense", scores.first_sense), Row("most frequent", scores.most_frequent)]
    of_layers = _layer_rows(scores.right, lengths)
    for row, score in zip(of_layers, scores.ambiguous_layers, strict=True):
        if not np.isnan(score):
            row.extra["ambiguous_words"] = score
    rows += [*of_static, *of_layers]
    extra = {"fallback": scores.fallback, "ambiguous": scores.ambiguous}
    rows[0].extra |= extra
    examples = {"train": len(learned), "test": len(tested), "answers": scores.occurrences}
    return _finding("senses", model, sources, examples, rows, {})


def tags(
    model: Path,
    train: Path,
    test: Path,
    *,
    l2: float,
    device: str,
    static: Mapping[str, Path] | None = None,
    **reading: Any,
) -> Finding:
    """Measure how well a linear probe predicts the tags of tokens from each layer.

    `how` are options for reading the files. `static` maps names to files of word vectors, each
    probed likewise.
    """
    learned, tested = (_tagged(path, **reading) for path in (train, test))
    scores = layer_probe.probe_layers(Embedder.load(model, device=device), learned, tested, l2=l2)
    rows = [Row("most frequent tag of the type", scores.most_frequent)]
    lengths = [len(tokens) for tokens, _ in tested]
    for name, path in (static or {}).items():
        vectors = static_vectors(path, [tokens for tokens, _ in (*learned, *tested)])
        right_N = layer_probe.probe_vectors(partial(_of_tokens, vectors), learned, tested, l2=l2)
        rows.append(over_sentences(name, right_N, lengths))
    rows += _layer_rows(scores.right, lengths)
    examples = {"train": len(learned), "test": len(tested), "answers": scores.tokens}
    sources = {"train": train, "test": test} | {f"static {k}": v for k, v in (static or {}).items()}
    return _finding("probe", model, sources, examples, rows, {"l2": l2})


Vectors = Callable[[Sequence[str]], npt.NDArray[np.float32]]  # of tokens, (T, D)


def static_vectors(path: Path, sentences: Iterable[Sequence[str]]) -> Vectors:
    """Return a function that gives the vector of each token of `sentences`, or of its lower case;
    what the file lacks is zero."""
    types = {token for tokens in sentences for token in tokens}
    header = next(iter(numbered_lines(path)))[1].split()
    if len(header) != 2 or not header[1].isdecimal():
        raise ElmoError(f"{path}:1: must be the number of words and of numbers, as word2vec's text")
    wanted_words = types | {word.lower() for word in types}
    words, table_WD = read_word_vectors(path, wanted_words, dim=int(header[1]))
    number = {word: k for k, word in enumerate(words)}
    zero_1D = np.zeros((1, table_WD.shape[1]), np.float32)
    padded_WD = np.concatenate([table_WD, zero_1D])

    def vectors(tokens: Sequence[str]) -> npt.NDArray[np.float32]:
        ids = [number.get(token, number.get(token.lower(), len(words))) for token in tokens]
        return padded_WD[ids]

    return vectors


def _of_tokens(vectors: Vectors, texts: Sequence[layer_probe.TaggedTokens]) -> Tensor:
    return torch.from_numpy(vectors([token for tokens, _ in texts for token in tokens]))


def _senses_by(
    vectors: Vectors,
    train: Sequence[senses.SenseSentence],
    test: Sequence[senses.SenseSentence],
    firsts: Mapping[senses.Word, str] | None,
) -> senses.SenseScores:
    def embed(batch: list[list[str]]) -> list[npt.NDArray[np.float32]]:
        return [vectors(tokens)[None] for tokens in batch]

    return senses.score_word_senses(embed, train, test, first_senses=firsts)


def _layer_rows(right_LN: Any, lengths: Sequence[int]) -> list[Row]:
    """Rows of the layers, each with its gain over the layer below on the same answers."""
    rows = [
        over_sentences(f"layer {number}", right_N, lengths)
        for number, right_N in enumerate(right_LN)
    ]
    for number, row in enumerate(rows[1:], 1):
        gained_N = right_LN[number].astype(int) - right_LN[number - 1].astype(int)
        gain = over_sentences("", gained_N, lengths)
        assert gain.low is not None and gain.high is not None
        row.extra |= {"above": gain.mean, "above_low": gain.low, "above_high": gain.high}
    return rows


def _senses_of(path: Path, gold: Path | None) -> list[senses.SenseSentence]:
    """SemCor's columns, or with `gold` the XML of the unified evaluation framework."""
    if gold is not None:
        return senses.read_wsd_evaluation(path, gold)
    if ".xml" in path.suffixes:
        raise ElmoError(f"{path}: the XML needs its file of keys; pass it too (--…-gold)")
    return senses.read_semcor(path)


def _is_held(document: str) -> bool:
    hashed = hashlib.sha256(document.encode("utf-8")).digest()
    return int.from_bytes(hashed[:8], "big") / 2**64 < HELD_OUT


def _tagged(path: Path, **reading: Any) -> list[tuple[Sequence[str], Sequence[str]]]:
    return [
        (example.tokens, example.tags)
        for example in read_examples("tagging", path, **reading).examples
        if isinstance(example, Tagged) and example.tags is not None
    ]


def _finding(
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
