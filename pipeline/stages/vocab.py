"""vocab: count the words and characters of shards from their dictionaries.

Tokens are not read as text: the types of each shard are counted by their ids, and only the lists of
types are merged. The work folder keeps the counts of finished shards until the stage is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.data.characters import SENTENCE_BEGIN, SENTENCE_END, Characters
from elmo.data.manifest import SPLITS, ShardEntry
from elmo.data.shards import Shards, open_shard_at
from elmo.data.vocabulary import RESERVED_WORDS, SPECIAL_WORDS
from elmo.errors import ElmoError
from elmo.io.atomic import refuse_foreign_output
from elmo.io.folders import check_output_folder, local_folder, new_folder
from elmo.io.location import Location, in_parallel

from ..cluster import workers
from ..settings.cluster import Cluster
from ..settings.params import VocabSettings
from ..terminal.failures import catch_read_errors
from ..text.work_folder import work_folder
from .stage import OUT_ARGUMENT, Argument, Stage

_MARKER_FILES = ("words.txt", "characters.json")  # these mark a folder as this stage's output
_EXTRA_FILE_PATTERN = r"counts\.txt"
_TYPES_AT_A_TIME = 4_000_000  # types whose characters are counted at a time

STAGE = Stage(
    name="vocab",
    version=2,
    help="Count the words of SHARDS and choose the vocabulary.",
    inputs=(Argument("shards"),),
    outputs=(OUT_ARGUMENT,),
    run=lambda params, **arguments: run(params=params.vocab, **arguments),
    summary=lambda figures, _: summary(figures),
    figure_by_metric={"words": "words", "heldout_covered_share_higher_better": "heldout_coverage"},
    uses_cluster=True,
)


@dataclass(frozen=True)
class TypeCounts:
    """The number of occurrences of each type (distinct token), and the number of sentences.

    `counts` has the numbers in the order of `types`.
    """

    types: pa.StringArray
    counts: npt.NDArray[np.int64]
    sentences: int

    @property
    def tokens(self) -> int:
        """Return the number of tokens that were counted."""
        return int(self.counts.sum())


def run(
    shards: Location, out: Location, params: VocabSettings, *, work: Location, cluster: Cluster
) -> dict[str, float]:
    """Write `words.txt`, `counts.txt` and `characters.json` of the training split to `out`.

    Returns the counts by name. A resumed run reads the counts of finished shards from `work`.
    """
    check_output_folder(out, required=_MARKER_FILES, pattern=_EXTRA_FILE_PATTERN)
    if out.exists("characters.json"):
        with refuse_foreign_output(str(out)), local_folder(out) as old_folder:
            Characters.load(old_folder / "characters.json")
    with work_folder(work, "vocab", out) as counts_folder:
        train, heldout = count_types(Shards(shards), work=counts_folder, cluster=cluster)
        words, counts = _choose_words(train, params)
        if not len(words):
            raise ElmoError(
                f"vocab.min_count {params.min_count} removes every word of {shards}; lower it"
            )
        boundaries = pa.array([SENTENCE_BEGIN, SENTENCE_END])
        in_vocabulary_count = int(counts.sum()) + _count_known_tokens(train, boundaries)
        special_counts = [train.sentences, train.sentences, train.tokens - in_vocabulary_count]
        all_words = pa.concat_arrays([pa.array([*SPECIAL_WORDS]), words])
        characters = _choose_characters(train, params)
        with new_folder(out, required=_MARKER_FILES, pattern=_EXTRA_FILE_PATTERN) as folder:
            _write_lines(folder / "words.txt", all_words)
            _write_lines(
                folder / "counts.txt", pa.array(np.append(special_counts, counts)).cast(pa.string())
            )
            characters.save(folder / "characters.json")
    covered_tokens = _count_known_tokens(heldout, pa.concat_arrays([words, boundaries]))
    return {
        "words": len(words) + 3,
        "types": len(train.types),
        "tokens": train.tokens,
        "coverage": in_vocabulary_count / train.tokens,
        "heldout_coverage": covered_tokens / heldout.tokens if heldout.tokens else 0.0,
        "characters": characters.size,
    }


def summary(figures: dict[str, float]) -> str:
    """Return the line that the stage prints, from the counts of `run`: words and coverage."""
    coverage = f"{figures['heldout_coverage']:.1%} of held-out tokens covered"
    return f"{figures['words']:,} words, {coverage}"


def count_types(
    shards: Shards, *, work: Location, cluster: Cluster
) -> tuple[TypeCounts, TypeCounts]:
    """Count the types of the training split and of the held-out split, with a Ray task per shard.

    `work` keeps the counts of each shard.
    """
    jobs = [
        (shards.location, entry, work, f"{entry.sha256}-{STAGE.version}-counts.arrow")
        for split in SPLITS
        for entry in shards.entries(split)
    ]
    finished_names = set(work.names())
    unfinished_jobs = [job for job in jobs if job[3] not in finished_names]
    for _ in workers.map_tasks(count_shard, unfinished_jobs, cluster=cluster, label="vocab"):
        pass
    tables = in_parallel(lambda job: _read_counts(work, job[3]), jobs)
    train_shards = len(shards.entries("train"))
    return _sum_counts(tables[:train_shards]), _sum_counts(tables[train_shards:])


def count_shard(job: tuple[Location, ShardEntry, Location, str]) -> None:
    """Count the types of one shard and write the counts to the work folder.

    `job` is the shards' folder, the shard's entry, the work folder and the file name to write. The
    shard's bytes are checked first.
    """
    shards, entry, work, name = job
    shard = open_shard_at(shards, entry)
    sentences = np.count_nonzero(np.diff(shard.offsets))
    columns = {"type": pa.concat_arrays([shard.dictionary]), "count": shard.counts()}
    batch = pa.record_batch(columns, metadata={"sentences": str(sentences)})
    with work.new_file(name) as path, pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)


def _read_counts(work: Location, name: str) -> pa.Table:
    with (
        work.local_copy(name) as path,  # it may be deleted once it is mapped
        catch_read_errors(work.path_of(name)),
        pa.ipc.open_file(pa.memory_map(str(path))) as file,
    ):
        return file.read_all()


def _sum_counts(tables: Sequence[pa.Table]) -> TypeCounts:
    """Return the sum of the counts of several shards; the types are in no particular order."""
    sentences = sum(int(table.schema.metadata[b"sentences"]) for table in tables)
    empty_table = pa.table({"type": pa.array([], pa.string()), "count": pa.array([], pa.int64())})
    total = pa.concat_tables([empty_table, *(table.replace_schema_metadata() for table in tables)])
    total = total.group_by("type").aggregate([("count", "sum")])
    return TypeCounts(total["type"].combine_chunks(), total["count_sum"].to_numpy(), sentences)


def _choose_words(
    train: TypeCounts, params: VocabSettings
) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """Return words, except reserved ones, and counts: the most frequent first, ties by
    codepoint."""
    is_word = train.counts >= params.min_count
    for mark in RESERVED_WORDS:
        is_word &= np.asarray(pc.not_equal(train.types, mark))
    table = pa.table({"word": train.types, "count": train.counts}).filter(pa.array(is_word))
    # Bytes of UTF-8 sort in the order of codepoints.
    table = table.sort_by([("count", "descending"), ("word", "ascending")])
    if params.max_words:
        table = table.slice(0, max(params.max_words - 3, 0))
    return table["word"].combine_chunks(), table["count"].to_numpy()


def _count_known_tokens(counts: TypeCounts, words: pa.StringArray) -> int:
    """Return how many of the counted tokens are among `words`."""
    return int(counts.counts[np.asarray(pc.is_in(counts.types, value_set=words))].sum())


def _choose_characters(train: TypeCounts, params: VocabSettings) -> Characters:
    if params.characters == "bytes":
        return Characters(max_characters=params.max_characters)
    occurrences = np.zeros(0x110000)
    for start in range(0, len(train.types), _TYPES_AT_A_TIME):
        types = train.types[start : start + _TYPES_AT_A_TIME]
        counts = train.counts[start : start + _TYPES_AT_A_TIME]
        codepoints = np.frombuffer("".join(types.to_pylist()).encode("utf-32-le"), np.uint32)
        lengths = pc.utf8_length(types).to_numpy()
        occurrences += np.bincount(
            codepoints, weights=np.repeat(counts, lengths), minlength=len(occurrences)
        )
    frequent_codepoints = np.flatnonzero(occurrences >= params.min_character_count)
    sorted_codepoints = frequent_codepoints[
        np.argsort(-occurrences[frequent_codepoints], kind="stable")
    ]
    return Characters(tuple(chr(code) for code in sorted_codepoints), params.max_characters)


def _write_lines(path: Path, lines: pa.StringArray) -> None:
    """Write strings, one per line, as `Vocabulary.save` does, without a Python object for each."""
    text = pc.binary_join_element_wise(lines, "", "\n")
    offsets = np.frombuffer(text.buffers()[1], np.int32)
    path.write_bytes(text.buffers()[2][: int(offsets[len(text)])])
