"""Tokenize one piece of a text and write its shards, as one task.

A piece numbers its sentences and documents from 0. Each distinct stretch (text between white space)
is tokenized once; everything else is array operations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import DecodeError, Struct, json, to_builtins

from elmo.data.arrays import Int64s
from elmo.data.manifest import SPLITS, DroppedText, ShardEntry
from elmo.data.shards import describe_shard, shard_name, write_shard
from elmo.data.tokenizer import Tokenizer, load_recorded_tokenizer, load_sentence_splitter
from elmo.io.location import Location, in_parallel
from elmo.io.records import Sha256

from .accounting import Accounting
from .copies import in_ranges
from .documents import DocumentBlock
from .input_files import check_unchanged
from .pieces import Piece
from .quality import QualityCounts
from .text_hashes import Hashes
from .text_rows import TextRows, find_lines

PIECES_FILE = "pieces.jsonl"  # beside the shards: the results of all pieces, for the next run


class PieceResult(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of tokenizing a piece: its counts, and its shards, whose ids start at 0.

    `piece` is the piece's digest; the names of its shards begin with a part of it.
    """

    piece: Sha256
    shards: tuple[ShardEntry, ...]
    accounting: Accounting
    quality: QualityCounts


def encode_result(result: PieceResult) -> bytes:
    """Return a result as a line of the file `PIECES_FILE`."""
    return json.encode(result, order="sorted") + b"\n"


def decode_results(data: bytes) -> list[PieceResult]:
    """Return the results in a `PIECES_FILE`; [] if another version wrote it."""
    try:
        return [json.decode(line, type=PieceResult) for line in data.splitlines()]
    except DecodeError:
        return []


def read_finished(pieces: Sequence[Piece]) -> list[PieceResult]:
    """Return the results of the pieces that an earlier run finished."""
    if not pieces:
        return []
    folder, size_by_file = pieces[0].folder, pieces[0].folder.sizes()
    finished_names = [piece.result_name for piece in pieces if piece.result_name in size_by_file]
    results = in_parallel(lambda name: folder.read_record(name, PieceResult), finished_names)
    return find_whole_results(results, folder, size_by_file)


def find_whole_results(
    results: Iterable[PieceResult], folder: Location, size_by_file: Mapping[str, int]
) -> list[PieceResult]:
    """Return the results whose shards are in a folder, unaltered.

    `size_by_file` has the size of each file there. On a disk, the digest of each shard is checked.
    At a URL, where a file is complete or absent, only its size is checked; readers check its bytes.
    """

    def is_whole(result: PieceResult) -> bool:
        return all(
            size_by_file.get(entry.file) == entry.bytes
            and (folder.local is None or folder.sha256(entry.file) == entry.sha256)
            for entry in result.shards
        )

    results = list(results)
    return [
        result
        for result, has_all_shards in zip(results, in_parallel(is_whole, results), strict=True)
        if has_all_shards
    ]


def tokenize_piece(piece: Piece) -> PieceResult:
    """Tokenize one piece of the corpus, write its shards, and return its result."""
    split_line = load_sentence_splitter()[0] if piece.params.sentences == "split" else None
    accounting, quality = Accounting(), QualityCounts()
    builder = _ShardBuilder(piece, load_recorded_tokenizer(piece.tokenizer), accounting, quality)
    excluded_lines = {
        reason: np.array(ranges, np.int64).reshape(-1, 2) for reason, ranges in piece.excluded_lines
    }
    first_line, repeated_lines = 0, np.array(piece.repeated_lines, np.uint64)
    # Only the first piece of a file counts it as a document.
    continues_file = piece.rule.documents == "file" and piece.spans[0].start > 0
    for block, heldout in piece.read_documents(accounting, piece.keep):
        if builder.bytes >= piece.params.shard_bytes:
            builder.write()
        line_numbers = np.arange(first_line, first_line + len(block.document_numbers))
        first_line += len(line_numbers)
        is_kept = keep_lines(block, line_numbers, excluded_lines, repeated_lines, accounting)
        ids = block.document_numbers + (accounting.document_ids - 1)
        accounting.document_ids += len(block.hashes)
        if not continues_file:
            has_text = np.zeros(len(heldout), bool)
            has_text[block.document_numbers[is_kept & (block.rows.counts > 0)]] = True
            accounting.heldout_documents += int((has_text & heldout)[1:].sum())
            accounting.train_documents += int((has_text & ~heldout)[1:].sum())
        text, lines, rows = block.text, block.lines, block.rows
        if not is_kept.all():
            accounting.lines += int((~is_kept).sum())
            is_kept_byte = np.repeat(is_kept, lines[1] - lines[0] + 1)
            text = np.frombuffer(text, np.uint8)[is_kept_byte].tobytes()
            lines = find_lines(text) if text else lines
            rows = TextRows.find(text, lines) if text else rows
        if text:
            records = None
            if piece.keep:  # empty texts in a file without records
                no_records = pa.array([""] * len(line_numbers))
                records = block.records.columns_of_lines() if block.records else no_records
                records = records.filter(pa.array(is_kept))
            is_heldout = heldout[block.document_numbers[is_kept]]
            builder.add(text, lines, rows, ids[is_kept], is_heldout, split_line, records)
        if split_line is not None and block.records is None:
            quality.add_lines(text)
    for span in piece.spans:
        check_unchanged(span.input)
    builder.write()
    result = PieceResult(piece.digest, tuple(builder.shards), accounting, quality)
    piece.folder.write_json(piece.result_name, to_builtins(result))
    return result


def keep_lines(
    block: DocumentBlock,
    line_numbers: Int64s,
    excluded_lines: Mapping[str, Int64s],
    repeated_lines: Hashes,
    accounting: Accounting,
) -> npt.NDArray[np.bool_]:
    """Tell for each line of a block whether it is kept; count the lines that are left out."""
    reasons = {reason: in_ranges(line_numbers, ranges) for reason, ranges in excluded_lines.items()}
    if len(repeated_lines):
        reasons["repeated_line"] = np.isin(block.rows.hashes, repeated_lines)
    is_kept, sizes = np.ones(len(line_numbers), bool), block.lines[1] - block.lines[0]
    for reason, is_excluded in reasons.items():
        is_dropped = is_kept & is_excluded
        if is_dropped.any():
            count = DroppedText(int(is_dropped.sum()), int(sizes[is_dropped].sum()))
            accounting.leave_out(reason, count)
            is_kept &= ~is_dropped
    return is_kept


@dataclass(frozen=True)
class _LineGroup:
    """Lines of a shard as rows, one per sentence.

    `line_by_row` has the line that each row comes from. The others have an entry for each line:
    `line_bytes` its size, `documents` its document, `heldout` whether this is held out, and
    `records` the kept columns of its record, if any. `lost_bytes` counts bytes that are in no
    token, except white space.
    """

    rows: TextRows
    line_by_row: Int64s
    line_bytes: Int64s
    documents: Int64s
    heldout: npt.NDArray[np.bool_]
    lost_bytes: int
    records: pa.StringArray | None


class _ShardBuilder:
    """Writes the shards of a piece: gathers lines, and tokenizes them once they fill a shard.

    If lines are split into sentences, rows without tokens are not written. If each line is a
    sentence, they are written, so that sentences have the numbers of their lines.
    """

    def __init__(
        self, piece: Piece, tokenizer: Tokenizer, accounting: Accounting, quality: QualityCounts
    ) -> None:
        self.piece, self.tokenizer = piece, tokenizer
        self.accounting, self.quality = accounting, quality
        self.shards: list[ShardEntry] = []
        self.bytes = 0
        self._groups: list[_LineGroup] = []

    def add(
        self,
        text: bytes,
        lines: tuple[Int64s, Int64s],
        rows: TextRows,
        documents: Int64s,
        heldout: npt.NDArray[np.bool_],
        split_line: Callable[[str], list[str]] | None,
        records: pa.StringArray | None,
    ) -> None:
        """Gather whole lines, their documents and records; `split_line` splits a line into
        sentences."""
        self.bytes += len(text)
        line_by_row, lost_bytes = np.arange(len(documents)), 0
        if split_line is not None:
            text, line_by_row = _split_sentences(text, split_line)
            rows = TextRows.find(text, find_lines(text))
        if not self.tokenizer.kind.splits_at_spaces:
            rows, lost_bytes = _tokenize_rows(text, rows, self.tokenizer)
        sizes = lines[1] - lines[0]
        group = _LineGroup(rows, line_by_row, sizes, documents, heldout, lost_bytes, records)
        self._groups.append(group)

    def write(self) -> None:
        """Write the gathered lines as one shard for each split."""
        if not self._groups:
            return
        types, ids_and_lengths = self._tokenize_groups()
        ids = np.concatenate([ids for ids, _ in ids_and_lengths])
        lengths = np.concatenate([lengths for _, lengths in ids_and_lengths])
        hashes = np.concatenate([group.rows.hashes for group in self._groups])
        self.quality.add(types, ids, lengths, hashes)
        heldout = np.concatenate([group.heldout[group.line_by_row] for group in self._groups])
        documents = np.concatenate([group.documents[group.line_by_row] for group in self._groups])
        records = None
        if self.piece.keep:
            records = pa.concat_arrays(
                [
                    group.records.take(group.line_by_row)
                    for group in self._groups
                    if group.records is not None
                ]
            )
        if self.piece.params.sentences == "split":
            has_tokens = lengths > 0
            records = records if records is None else records.filter(pa.array(has_tokens))
            lengths, heldout = lengths[has_tokens], heldout[has_tokens]
            documents = documents[has_tokens]
        first_sentence = self.accounting.sentences
        sentence_ids = np.arange(first_sentence, first_sentence + len(lengths))
        self.accounting.sentences += len(lengths)
        for split, is_in_split in zip(SPLITS, (~heldout, heldout), strict=True):
            if not is_in_split.any():
                continue
            tokens = ids if is_in_split.all() else ids[np.repeat(is_in_split, lengths)]
            name = shard_name(split, f"{self.piece.digest[:16]}-{len(self.shards):03d}")
            with self.piece.folder.new_file(name) as path:
                write_shard(
                    path,
                    sentence_ids=sentence_ids[is_in_split],
                    document_ids=documents[is_in_split],
                    offsets=np.cumsum(np.append(0, lengths[is_in_split])).astype(np.int32),
                    tokens=_encode_tokens(tokens, types),
                    records=records if records is None else records.filter(pa.array(is_in_split)),
                )
                self.shards.append(describe_shard(path, split=split, name=name))
        self.bytes, self._groups = 0, []

    def _tokenize_groups(self) -> tuple[pa.StringArray, list[tuple[npt.NDArray[np.int32], Int64s]]]:
        """Return the distinct tokens, and for each group its token ids and the number of tokens per
        row; account for the bytes of the groups."""
        stretches = pa.concat_arrays([group.rows.distinct_stretches for group in self._groups])
        stretch_dictionary = stretches.dictionary_encode()
        types, token_ids, starts, counts, lost_bytes = _tokenize_stretches(
            stretch_dictionary.dictionary, self.tokenizer
        )
        sizes = pc.binary_length(types).to_numpy()
        ids_and_lengths, accounting = [], self.accounting
        first_stretch = 0
        for group in self._groups:
            dictionary_indices = stretch_dictionary.indices.to_numpy()[
                first_stretch : first_stretch + len(group.rows.distinct_stretches)
            ]
            first_stretch += len(dictionary_indices)
            stretch_ids = dictionary_indices[group.rows.ids]
            ids, lengths = _expand_rows(stretch_ids, group.rows.counts, token_ids, starts, counts)
            line_bytes = group.line_bytes
            is_blank = np.bincount(group.line_by_row, lengths, len(line_bytes)) == 0
            token_bytes = int(sizes[ids].sum(dtype=np.int64))
            group_loss = group.lost_bytes + (
                int(lost_bytes[stretch_ids].sum()) if lost_bytes.any() else 0
            )
            accounting.lines += len(line_bytes)
            accounting.blank_lines += int(is_blank.sum())
            accounting.blank_bytes += int(line_bytes[is_blank].sum())
            accounting.token_bytes += token_bytes
            accounting.space_bytes += int(line_bytes[~is_blank].sum()) - token_bytes - group_loss
            accounting.lost_bytes += group_loss
            accounting.tokens += len(ids)
            ids_and_lengths.append((ids, lengths))
        return types, ids_and_lengths


def _expand_rows(
    stretch_ids: npt.NDArray[np.int32],
    stretch_counts: Int64s,
    token_ids: npt.NDArray[np.int32],
    starts: Int64s,
    counts: Int64s,
) -> tuple[npt.NDArray[np.int32], Int64s]:
    """Return the token ids of stretches, joined, and the number of tokens in each row."""
    if (counts == 1).all():
        return token_ids[starts][stretch_ids], stretch_counts
    token_counts = counts[stretch_ids]
    token_ends = np.append(0, np.cumsum(token_counts))
    positions = np.repeat(starts[stretch_ids] - token_ends[:-1], token_counts)
    positions += np.arange(len(positions))
    return token_ids[positions], np.diff(token_ends[np.append(0, np.cumsum(stretch_counts))])


def _tokenize_rows(text: bytes, rows: TextRows, tokenizer: Tokenizer) -> tuple[TextRows, int]:
    """Return rows of tokens instead of stretches, and the number of bytes that are in no token."""
    texts = text.decode("utf-8").split("\n")[:-1]
    token_lists = tokenizer.split(texts)
    tokens = pa.array([token for tokens in token_lists for token in tokens], pa.string())
    token_dictionary = tokens.dictionary_encode()
    counts = np.array([len(tokens) for tokens in token_lists])
    lost_bytes = sum(
        _count_lost_bytes(text, tokens) for text, tokens in zip(texts, token_lists, strict=True)
    )
    return TextRows(
        token_dictionary.dictionary, token_dictionary.indices.to_numpy(), counts, rows.hashes
    ), lost_bytes


def _tokenize_stretches(
    stretches: pa.StringArray, tokenizer: Tokenizer
) -> tuple[pa.StringArray, npt.NDArray[np.int32], Int64s, Int64s, Int64s]:
    """Split each distinct stretch; return the distinct tokens, the ids of all tokens, and for each
    stretch the position of its first token, the number of its tokens, and its lost bytes.
    """
    counts, lost_bytes = np.ones(len(stretches), np.int64), np.zeros(len(stretches), np.int64)
    if not tokenizer.kind.splits_at_spaces:
        indices = np.arange(len(stretches), dtype=np.int32)
        return stretches, indices, indices.astype(np.int64), counts, lost_bytes
    is_whole = pc.match_substring_regex(stretches, f"^{tokenizer.kind.one_token_pattern}$")
    other_stretches = np.flatnonzero(~is_whole.to_numpy(zero_copy_only=False))
    texts = stretches.filter(pc.invert(is_whole)).to_pylist()
    token_lists = tokenizer.split(texts)
    counts[other_stretches] = [len(tokens) for tokens in token_lists]
    new_tokens = pa.array([token for tokens in token_lists for token in tokens], pa.string())
    all_tokens = pa.concat_arrays([stretches.filter(is_whole), new_tokens])
    token_dictionary = all_tokens.dictionary_encode()
    starts = np.empty(len(stretches), np.int64)
    order = np.append(np.flatnonzero(is_whole.to_numpy(zero_copy_only=False)), other_stretches)
    starts[order] = np.cumsum(counts[order]) - counts[order]
    for i, text, tokens in zip(other_stretches.tolist(), texts, token_lists, strict=True):
        lost_bytes[i] = _count_lost_bytes(text, tokens)
    return (
        token_dictionary.dictionary,
        token_dictionary.indices.to_numpy(),
        starts,
        counts,
        lost_bytes,
    )


def _encode_tokens(ids: npt.NDArray[np.int32], types: pa.StringArray) -> pa.DictionaryArray:
    """Return tokens as a dictionary array; its dictionary has only the types that occur, in order
    of first occurrence."""
    first_positions = np.full(len(types), len(ids), np.int32)
    first_positions[ids[::-1]] = np.arange(len(ids) - 1, -1, -1, dtype=np.int32)
    order = np.argsort(first_positions, kind="stable")[: int((first_positions < len(ids)).sum())]
    new_ids = np.zeros(len(types), np.int32)
    new_ids[order] = np.arange(len(order))
    return pa.DictionaryArray.from_arrays(pa.array(new_ids[ids]), types.take(pa.array(order)))


def _split_sentences(text: bytes, split_line: Callable[[str], list[str]]) -> tuple[bytes, Int64s]:
    """Return the text with one sentence per line, and the line that each sentence comes from."""
    sentences: list[str] = []
    counts = []
    for line in text.decode("utf-8").split("\n")[:-1]:
        line_sentences = split_line(line)
        sentences.extend(line_sentences)
        counts.append(len(line_sentences))
    sentences.append("")
    return "\n".join(sentences).encode("utf-8"), np.repeat(np.arange(len(counts)), counts)


def _count_lost_bytes(text: str, tokens: Iterable[str]) -> int:
    """Return how many bytes of a text are in no token, not counting white space."""
    joined_tokens = "".join(tokens)
    if joined_tokens == text:
        return 0
    return max(0, len("".join(text.split()).encode()) - len(joined_tokens.encode()))
