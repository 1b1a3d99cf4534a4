"""Inspect a text before the pipeline runs, with the same passes as the tokenize stage."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from elmo.data.arrays import Int64s
from elmo.data.manifest import DroppedText
from elmo.data.tokenizer import installed_tokenization
from elmo.errors import ElmoError
from elmo.io.location import Location

from ..settings.cluster import Cluster
from ..settings.params import TokenizeSettings
from ..text.accounting import Accounting, sum_accounts
from ..text.characters import SCRIPTS
from ..text.copies import (
    PiecePassages,
    collect_passages,
    count_lines,
    find_originals,
    find_repeated_lines,
    in_ranges,
    split_ranges,
)
from ..text.documents import DocumentBlock
from ..text.filters import FILTERS, DocumentCounts, find_filtered, join_counts
from ..text.input_files import InputFile, check_inputs
from ..text.near_duplicates import find_near_duplicates
from ..text.pieces import Piece
from ..text.quality import QualityCounts, summarize_quality
from ..text.shard_builder import keep_lines
from ..text.text_hashes import Hashes, hash_strings
from .tokenize import plan_text, run_tasks

_MAX_SAMPLES = 20  # samples of the text that a filter drops
_MAX_SAMPLE_CHARACTERS = 200
_FAULTS = {  # patterns of words that show a fault, which no filter leaves out
    # UTF-8 that was read as Latin-1 or Windows-1252, and replacement characters.
    "mojibake": "[ÂÃâ][\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|\ufffd",
    # Tags and entities of HTML, links and fences of Markdown.
    "markup": r"</?(a|b|br|div|em|h\d|i|img|li|p|span|td|tr|ul)\b[^<]*/?>|<(a|div|img|p|span)$"
    r"|</\w+>|&(amp|gt|lt|nbsp|quot|#\d+);|\]\(\w+:|^```",
}
_DOCUMENT_SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)  # of documents, by size
_TEXT_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0)  # of the text
_MAX_LISTED_FILES = 20
_FILTERS: dict[str, tuple[str, Any, Any]] = {  # as in `FILTERS`
    "near_copy": ("near_duplicates", 0.0, 0.3),
    "repeated_line": ("repeated_lines", 0, 10),
    **FILTERS,
}

LineRange = tuple[int, int]  # lines of a piece: the first, and the one after the last
Sample = dict[str, Any]  # the file and the beginning of a text
PassagePlace = tuple[int, LineRange]  # the index of a piece, and a range of its lines


class PieceContents(NamedTuple):
    """The contents of a piece of a text; `faults` has, for each fault, the ranges of lines with it.

    `quality` counts lines as sentences, and words between spaces as tokens. `words` has the hashes
    of the distinct words, and `places` the position of each one's first occurrence among the
    `word_count` words.
    """

    passages: PiecePassages
    documents: DocumentCounts
    quality: QualityCounts
    faults: dict[str, Int64s]
    words: Hashes
    places: Int64s
    word_count: int


def inspect_text(
    inputs: Sequence[InputFile], params: TokenizeSettings, *, column: str, cluster: Cluster
) -> dict[str, Any]:
    """Read a text twice, as the tokenize stage does, and return a description of it.

    `findings` describes, for each reason, the text that its filter alone would leave out: the
    setting, whether it `is_on` in `params`, the numbers of lines and bytes, and samples, each with
    the earlier text that it repeats, if any. Filters that are off are tried with usual values, and
    `scripts` with the script of most documents. Copies are always left out, mojibake and markup
    never.
    """
    is_on = {name: getattr(params, name) != off_value for name, off_value, _ in _FILTERS.values()}
    values = {name: value for name, _, value in _FILTERS.values() if not is_on[name]}
    new_params = replace(params, **values)
    plan = partial(
        plan_text,
        check_inputs(inputs),
        column,
        out=Location("."),
        tokenizer=installed_tokenization(params.tokenizer, params.sentences),
        is_independent=True,
    )
    try:
        pieces = plan(params=new_params)
    except ElmoError:  # a single document cannot be held out; other errors are raised again below
        pieces = plan(params=replace(new_params, heldout=0.0))
    contents = run_tasks(examine_piece, pieces, cluster, "inspect")
    documents = [content.documents for content in contents]
    whole_documents = _join_files(documents, pieces)
    scripts = Counter(SCRIPTS[script] for script in whole_documents.scripts if script >= 0)
    if not new_params.scripts:
        new_params = replace(new_params, scripts=tuple(name for name, _ in scripts.most_common(1)))

    choices = _choose_by_reason(contents, pieces, new_params)
    passages = [content.passages for content in contents]
    hashes, counts = count_lines(passages)
    order = np.argsort(-counts, kind="stable")[:_MAX_SAMPLES]
    repeated_hashes = hashes[order[counts[order] >= new_params.repeated_lines]]
    repeated_lines = find_repeated_lines(passages, document_count=new_params.repeated_lines)
    places = {place for _, samples in choices.values() for pair in samples for place in pair}
    jobs = [
        (
            replace(piece, repeated_lines=repeated_lines[piece_index]),
            {reason: ranges[piece_index] for reason, (ranges, _) in choices.items()},
            [lines for index, lines in places if index == piece_index],
            repeated_hashes,
        )
        for piece_index, piece in enumerate(pieces)
    ]
    results = run_tasks(sample_piece, jobs, cluster, "samples")
    texts = [text_by_range for _, text_by_range, _ in results]
    text_by_hash = {key: text for *_, part in reversed(results) for key, text in part.items()}
    samples_by_reason = {
        reason: [[texts[index][lines] for index, lines in pair] for pair in samples]
        for reason, (_, samples) in choices.items()
    } | {"repeated_line": [[text_by_hash[key]] for key in repeated_hashes.tolist()]}
    drops = sum_accounts(accounting for accounting, *_ in results).left_out
    sizes = whole_documents.sizes
    return {
        "formats": Counter(input_.format for input_ in inputs),
        "largest_files": [
            {"name": input_.name, "format": input_.format, "bytes": input_.bytes}
            for input_ in sorted(inputs, key=lambda input_: -input_.bytes)[:_MAX_LISTED_FILES]
        ],
        "bytes": sum(input_.bytes for input_ in inputs),
        "text_bytes": int(sizes.sum()),
        "documents": int((sizes > 0).sum()),
        "document_bytes": {
            f"{share:.0%}": int(np.quantile(sizes[sizes > 0], share)) if sizes.any() else 0
            for share in _DOCUMENT_SHARES
        },
        "words": _count_words(contents),
        "heldout": _count_held_out_copies(passages, new_params.near_duplicates),
        "scripts": dict(scripts.most_common()),
        "quality": summarize_quality([content.quality for content in contents]),
        "findings": [
            _make_finding(reason, samples, drops.get(reason, DroppedText(0, 0)), new_params, is_on)
            for reason, samples in samples_by_reason.items()
        ],
    }


def _choose_by_reason(
    contents: Sequence[PieceContents], pieces: Sequence[Piece], new_params: TokenizeSettings
) -> dict[str, tuple[list[Int64s], list[tuple[PassagePlace, ...]]]]:
    """Return, for each reason, the lines to leave out of each piece and the places of samples."""
    passages = [content.passages.exact for content in contents]
    near_documents = [content.passages.near_documents for content in contents]
    near_originals = find_originals(near_documents, similarity=new_params.near_duplicates)
    filtered_lines = [
        find_filtered(content.documents, new_params, piece.divided_bytes)
        for content, piece in zip(contents, pieces, strict=True)
    ]
    copies, copy_samples = _choose_samples(
        [part.line_ranges for part in passages], find_originals(passages)
    )
    is_copy = [
        in_ranges(part.line_ranges[:, 0], ranges) & in_ranges(part.line_ranges[:, 1] - 1, ranges)
        for part, ranges in zip(near_documents, copies, strict=True)
    ]
    near_originals[np.concatenate(is_copy)] = -1
    return {
        "copy": (copies, copy_samples),
        "near_copy": _choose_samples([part.line_ranges for part in near_documents], near_originals),
        **{name: _choose_samples([lines[name] for lines in filtered_lines]) for name in FILTERS},
        **{name: _choose_samples([piece.faults[name] for piece in contents]) for name in _FAULTS},
    }


def _make_finding(
    reason: str,
    samples: Sequence[Sequence[Sample]],
    count: DroppedText,
    new_params: TokenizeSettings,
    is_on: Mapping[str, bool],
) -> dict[str, Any]:
    """Return the finding of `inspect_text` for one reason."""
    name = _FILTERS.get(reason, ("",))[0]
    return {
        "reason": reason,
        "setting": name,
        "value": getattr(new_params, name, None),
        "is_on": is_on.get(name, reason == "copy"),
        "lines": count.lines,
        "bytes": count.bytes,
        "samples": [
            pair[0] if len(pair) == 1 else pair[0] | {"repeats": pair[1]} for pair in samples
        ],
    }


def examine_piece(piece: Piece) -> PieceContents | ElmoError:
    """Return the contents of a piece, or the error of a file that cannot be read."""
    quality, faults = QualityCounts(), {name: [np.zeros((0, 2), np.int64)] for name in _FAULTS}
    words, places, word_count = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0

    def examine(block: DocumentBlock, first_line: int) -> None:
        nonlocal word_count
        rows = block.rows
        if block.records is None:
            quality.add_lines(block.text)
        if len(rows.ids):
            quality.add(rows.distinct_stretches, rows.ids, rows.counts, rows.hashes)
            line_by_token = np.repeat(np.arange(len(rows.counts)), rows.counts)
            for name, pattern in _FAULTS.items():
                has_fault = pc.match_substring_regex(rows.distinct_stretches, pattern).to_numpy(
                    False
                )
                lines = first_line + np.unique(line_by_token[has_fault[rows.ids]])
                faults[name].append(np.stack([lines, lines + 1], 1))
            ids, first_places = np.unique(rows.ids, return_index=True)
            words.append(hash_strings(rows.distinct_stretches)[ids])
            places.append(word_count + first_places)
            word_count += len(rows.ids)

    try:
        passages, documents = collect_passages(piece, needs_documents=True, on_block=examine)
    except ElmoError as error:
        return error
    lines_by_fault = {name: np.concatenate(lines) for name, lines in faults.items()}
    first_words = _find_first(np.concatenate(words), np.concatenate(places))
    return PieceContents(passages, documents, quality, lines_by_fault, *first_words, word_count)


def _find_first(words: Hashes, places: Int64s) -> tuple[Hashes, Int64s]:
    """Return the distinct words and the first position of each."""
    order = np.argsort(places, kind="stable")
    distinct_words, indices = np.unique(words[order], return_index=True)
    return distinct_words, places[order][indices]


def _count_words(contents: Sequence[PieceContents]) -> dict[str, tuple[int, int]]:
    """Return, for each share of the text from its start, the counts of words and distinct words."""
    ends = np.cumsum([content.word_count for content in contents])
    places = [p.places + end - p.word_count for p, end in zip(contents, ends.tolist(), strict=True)]
    words = np.concatenate([content.words for content in contents])
    _, first_places = _find_first(words, np.concatenate(places))
    counts = {f"{share:.0%}": math.ceil(share * int(ends[-1])) for share in _TEXT_SHARES}
    return {share: (count, int((first_places < count).sum())) for share, count in counts.items()}


def _count_held_out_copies(passages: Sequence[PiecePassages], similarity: float) -> dict[str, int]:
    """Count the held-out documents that have a sketch, and those with a near copy in training."""
    documents = [piece.near_documents for piece in passages]
    keys = np.concatenate([piece.keys for piece in documents])
    heldout = np.concatenate([piece.heldout for piece in documents])
    keys = np.concatenate([keys[~heldout], keys[heldout]])
    count = int((~heldout).sum())
    pairs = find_near_duplicates(keys, similarity=similarity, reference_count=count)
    twin_count = int((pairs >= 0).sum()) if count else 0
    return {"documents": int(heldout.sum()), "in_training": twin_count}


def _join_files(documents: Sequence[DocumentCounts], pieces: Sequence[Piece]) -> DocumentCounts:
    """Return the documents of all pieces; a document that is divided among pieces counts once."""
    ids, end = [], 0
    for counts, piece in zip(documents, pieces, strict=True):
        end -= bool(piece.divided_bytes and piece.spans[0].start)
        ids.append(np.arange(end, end + len(counts.sizes)))
        end += len(counts.sizes)
    return join_counts(documents, ids)


def _choose_samples(
    ranges: Sequence[Int64s], originals: Int64s | None = None
) -> tuple[list[Int64s], list[tuple[PassagePlace, ...]]]:
    """Return the merged ranges to leave out of each piece, and the places of samples.

    `originals` has the index of the earlier range that each range repeats (-1: none). With it, only
    repeats are left out, and each sample is followed by the place of its original.
    """
    pieces = np.repeat(np.arange(len(ranges)), [len(piece_ranges) for piece_ranges in ranges])
    lines = np.concatenate(ranges)
    is_left_out = np.ones(len(lines), bool) if originals is None else originals >= 0
    indices = np.flatnonzero(is_left_out)
    indices = indices[:: max(1, -(-len(indices) // _MAX_SAMPLES))]  # spread over the text
    pairs = np.stack([indices] if originals is None else [indices, originals[indices]], 1)
    samples = [
        tuple((int(pieces[index]), (int(lines[index, 0]), int(lines[index, 1]))) for index in pair)
        for pair in pairs.tolist()
    ]
    return split_ranges(is_left_out, ranges), samples


def sample_piece(
    job: tuple[Piece, Mapping[str, Int64s], Sequence[LineRange], Hashes],
) -> tuple[Accounting, dict[LineRange, Sample], dict[int, Sample]] | ElmoError:
    """Count the text to leave out of a piece for each reason, and read the beginnings of samples.

    The job has the piece, the merged ranges of lines by reason, the ranges of samples, and the
    hashes of the repeated lines that are read as samples.
    """
    piece, excluded_lines, ranges, hashes = job
    accounting, after_copies, first_line = Accounting(), Accounting(), 0
    copies = {"copy": excluded_lines["copy"]}
    text_by_range: dict[LineRange, Sample] = {}
    text_by_hash: dict[int, Sample] = {}
    repeated_lines = np.array(piece.repeated_lines, np.uint64)
    try:
        for block, _ in piece.read_documents(Accounting()):
            end_line = first_line + len(block.document_numbers)
            line_numbers = np.arange(first_line, end_line)
            for reason, lines in excluded_lines.items():
                is_near = reason == "near_copy"
                ranges_by_reason = (copies if is_near else {}) | {reason: lines}
                counts = after_copies if is_near else accounting
                keep_lines(block, line_numbers, ranges_by_reason, repeated_lines[:0], counts)
            keep_lines(block, line_numbers, copies, repeated_lines, after_copies)
            for start, stop in ranges:
                if first_line <= start < end_line:
                    text_by_range[start, stop] = _read_sample(
                        block, start - first_line, min(stop, end_line) - first_line
                    )
            for line in np.flatnonzero(np.isin(block.rows.hashes, hashes)).tolist():
                sample = _read_sample(block, line, line + 1)
                text_by_hash.setdefault(int(block.rows.hashes[line]), sample)
            first_line = end_line
    except ElmoError as error:
        return error
    accounting.left_out = after_copies.left_out | accounting.left_out
    return accounting, text_by_range, text_by_hash


def _read_sample(block: DocumentBlock, first_line: int, end_line: int) -> Sample:
    """Return the file of a block, and the beginning of its lines `first_line` to `end_line`."""
    byte_start = int(block.lines[0][first_line])
    byte_stop = min(int(block.lines[1][end_line - 1]), byte_start + 8 * _MAX_SAMPLE_CHARACTERS)
    text = " ".join(block.text[byte_start:byte_stop].decode("utf-8", "ignore").split())
    return {"file": block.file, "text": text[:_MAX_SAMPLE_CHARACTERS]}
