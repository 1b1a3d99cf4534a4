"""Write shards and make a vocabulary from text files with one tokenized sentence per line."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from elmo.data.manifest import ShardsCounts, Split, TokenizerEntry, write_manifest
from elmo.data.shards import Shards, describe_shard, shard_name, write_shard
from elmo.data.vocabulary import Vocabulary
from elmo.io.folders import new_folder
from elmo.io.location import Location

SHARD_SENTENCES = 10_000


def prepare_shards(
    out: Path, *, train: Path, heldout: Path, tokens: int = 0
) -> tuple[Shards, Vocabulary]:
    """Write the shards of two files to `out`, unless it exists, with only the first `tokens` of
    `train` (0: all); return the shards and a vocabulary of all tokens of `train`."""
    lines = read_lines(train)
    if not out.exists():
        _write_splits(out, {"train": take_tokens(lines, tokens), "heldout": read_lines(heldout)})
    shards = Shards(out)
    counts = Counter(token for line in lines for token in line)
    line_count = len(lines)
    unknown_count = counts.pop("<unk>", 0) + counts.pop("<UNK>", 0)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    marks = ["<S>", "</S>", "<UNK>"]
    return shards, Vocabulary(
        [*marks, *words], [line_count, line_count, unknown_count, *(counts[word] for word in words)]
    )


def read_lines(file: Path) -> list[list[str]]:
    """Return the tokens of each line."""
    return [line.split() for line in file.read_text(encoding="utf-8").splitlines()]


def take_tokens(lines: list[list[str]], tokens: int) -> list[list[str]]:
    """Return the first lines, with at most that many tokens in total (0: all)."""
    if tokens == 0:
        return lines
    line_ends = np.cumsum([len(line) for line in lines])
    return lines[: int(np.searchsorted(line_ends, tokens, side="right"))]


def _write_splits(out: Path, texts: dict[Split, list[list[str]]]) -> None:
    document_counts: dict[Split, int] = {}
    entries, totals, first_id = [], Counter[str](), 0
    with new_folder(Location(out), required=("manifest.json",)) as folder:
        for split, lines in texts.items():
            document_counts[split] = len(lines)
            for number, start in enumerate(range(0, len(lines), SHARD_SENTENCES)):
                chunk = lines[start : start + SHARD_SENTENCES]
                path = folder / shard_name(split, number)
                ids = np.arange(first_id, first_id + len(chunk), dtype=np.int64)
                tokens = [token for line in chunk for token in line]
                write_shard(
                    path,
                    sentence_ids=ids,
                    document_ids=ids,
                    offsets=np.cumsum([0, *map(len, chunk)], dtype=np.int32),
                    tokens=pa.array(tokens, pa.string()).dictionary_encode(),
                )
                entries.append(describe_shard(path, split=split))
                size = sum(len(token.encode()) for token in tokens)
                totals += Counter(
                    sentences=len(chunk), documents=len(chunk), tokens=len(tokens), bytes=size
                )
                first_id += len(chunk)
        write_manifest(
            Location(folder),
            shards=entries,
            documents_by_split=document_counts,
            tokenizer=TokenizerEntry("whitespace"),
            counts=ShardsCounts(blank_lines=0, token_bytes=totals["bytes"], dropped={}, **totals),
            inputs=[],
            quality={},
        )
