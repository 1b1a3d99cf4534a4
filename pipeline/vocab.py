"""vocab: the words and characters of a folder of shards, from their dictionaries alone.

No token is looked at as text: each shard's types are counted by their ids, and only the lists of
types are merged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.characters import Characters
from elmo.errors import ElmoError
from elmo.files import check_sha256, new_folder
from elmo.shards import SPLITS, Info, Shards, open_shard
from elmo.vocabulary import BOS, EOS, UNK
from pipeline import cluster as workers
from pipeline.params import Cluster, Vocab

_MERGED_AT = 4_000_000


@dataclass(frozen=True)
class Counts:
    """How often each type occurs, and how many sentences with tokens there are."""

    types: pa.StringArray
    counts: npt.NDArray[np.int64]
    sentences: int

    @property
    def tokens(self) -> int:
        """How many tokens were counted."""
        return int(self.counts.sum())


def run(shards: Path, out: Path, params: Vocab, *, cluster: Cluster) -> dict[str, float]:
    """Write `words.txt`, `counts.txt` and `characters.json` of the training split to `out`."""
    _check(params)
    train, heldout = count(Shards(shards), cluster=cluster)
    words, counts = _words(train, params)
    if not len(words):
        raise ElmoError(f"vocab.min_count {params.min_count} leaves no word of {shards}; lower it")
    known = int(counts.sum()) + sum(_occurrences(train, mark) for mark in (BOS, EOS))
    marks = [train.sentences, train.sentences, train.tokens - known]
    characters = _characters(train, params)
    with new_folder(out) as written:
        _write_lines(written / "words.txt", pa.concat_arrays([pa.array([BOS, EOS, UNK]), words]))
        _write_lines(written / "counts.txt", pa.array(np.append(marks, counts)).cast(pa.string()))
        characters.save(written / "characters.json")
    found = _covered(heldout, pa.concat_arrays([words, pa.array([BOS, EOS])]))
    return {
        "words": len(words) + 3,
        "types": len(train.types),
        "tokens": train.tokens,
        "coverage": known / train.tokens,
        "heldout_coverage": found / heldout.tokens if heldout.tokens else 0.0,
        "long_tokens": _long(train, characters) + _long(heldout, characters),
        "characters": characters.size,
    }


def count(shards: Shards, *, cluster: Cluster) -> tuple[Counts, Counts]:
    """Count the types of both splits, a task for each shard; their order does not matter."""
    work = [(shards.folder.absolute(), info) for split in SPLITS for info in shards.infos(split)]
    found = workers.tasks(count_shard, work, cluster=cluster, label="count")
    train = merge(islice(found, len(shards.infos("train"))))
    return train, merge(found)


def count_shard(work: tuple[Path, Info]) -> Counts:
    """Check one shard's bytes and count its types; all that a worker does."""
    folder, info = work
    check_sha256(folder / info["file"], info["sha256"])
    shard = open_shard(folder / info["file"], info=info)
    sentences = int(np.count_nonzero(np.diff(shard.offsets)))
    types = pa.concat_arrays([shard.dictionary])
    return Counts(types, shard.counts(), sentences)


def merge(parts: Iterable[Counts]) -> Counts:
    """Add up counts; at no time are more than a few million types held."""
    held: list[Counts] = []
    for part in parts:
        held.append(part)
        if sum(len(counts.types) for counts in held) > _MERGED_AT:
            held = [_add(held)]
    return _add(held)


def _add(parts: list[Counts]) -> Counts:
    if len(parts) < 2:
        return parts[0] if parts else Counts(pa.array([], pa.string()), np.zeros(0, np.int64), 0)
    merged = pa.chunked_array([part.types for part in parts]).combine_chunks().dictionary_encode()
    counts = np.zeros(len(merged.dictionary), np.int64)
    np.add.at(counts, merged.indices.to_numpy(), np.concatenate([part.counts for part in parts]))
    return Counts(merged.dictionary, counts, sum(part.sentences for part in parts))


def _words(train: Counts, params: Vocab) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """The words but the three marks, by falling count and then by codepoint, and their counts."""
    kept = train.counts >= params.min_count
    for mark in (BOS, EOS, UNK):
        kept &= _mask(pc.not_equal(train.types, mark))
    table = pa.table({"word": train.types, "count": train.counts}).filter(pa.array(kept))
    # Bytes of UTF-8 sort as the codepoints do.
    table = table.sort_by([("count", "descending"), ("word", "ascending")])
    if params.max_words:
        table = table.slice(0, max(params.max_words - 3, 0))
    return table["word"].combine_chunks(), table["count"].to_numpy()


def _covered(counts: Counts, words: pa.StringArray) -> int:
    """How many tokens are among these words."""
    return int(counts.counts[_mask(pc.is_in(counts.types, value_set=words))].sum())


def _occurrences(counts: Counts, token: str) -> int:
    return int(counts.counts[_mask(pc.equal(counts.types, token))].sum())


def _mask(found: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return found.to_numpy(zero_copy_only=False)


def _characters(train: Counts, params: Vocab) -> Characters:
    if params.characters == "bytes":
        return Characters(max_characters=params.max_characters)
    lengths = pc.utf8_length(train.types).to_numpy()
    text = "".join(train.types.to_pylist()).encode("utf-32-le")
    seen = np.bincount(np.frombuffer(text, np.uint32), weights=np.repeat(train.counts, lengths))
    chosen = np.flatnonzero(seen >= params.min_character_count)
    order = chosen[np.argsort(-seen[chosen], kind="stable")]
    return Characters(tuple(chr(i) for i in order), params.max_characters)


def _long(counts: Counts, characters: Characters) -> int:
    """How many tokens do not fit in the characters of a token and are cut."""
    measure = pc.binary_length if characters.kind == "bytes" else pc.utf8_length
    return int(
        counts.counts[measure(counts.types).to_numpy() > characters.max_characters - 2].sum()
    )


def _write_lines(path: Path, lines: pa.StringArray) -> None:
    """Write strings a line each, as `Vocabulary.save` does, without a Python object for each."""
    joined = pc.binary_join_element_wise(lines, "", "\n")
    offsets = np.frombuffer(joined.buffers()[1], np.int32)
    path.write_bytes(joined.buffers()[2][: int(offsets[len(joined)])])


def _check(params: Vocab) -> None:
    if params.characters not in ("bytes", "unicode"):
        raise ElmoError(f"vocab.characters must be bytes or unicode, found {params.characters!r}")
    for name, least in (("min_count", 1), ("min_character_count", 1), ("max_characters", 3)):
        if getattr(params, name) < least:
            found = getattr(params, name)
            raise ElmoError(f"vocab.{name} must be {least} or more, found {found}")
    if params.max_words and params.max_words < 4:
        raise ElmoError(
            f"vocab.max_words must be 0 (no limit) or 4 or more, found {params.max_words}"
        )
