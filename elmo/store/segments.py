"""Vectors of a shard's sentences, a segment at a time, as the store's parts are written.

Shapes: T tokens, N distinct tokens, D dimensions of a layer, P those of one direction.
"""

from collections.abc import Iterator
from typing import NamedTuple

from elmo.data.arrays import Floats, Ints
from elmo.data.ragged import split_into_runs
from elmo.model.batches import batches_by_length
from elmo.model.embedder import Embedder

SEGMENT_TOKENS = 32768  # embedded together
BATCH_ROWS = 256  # sentences of a segment read together


class Segment(NamedTuple):
    """The vectors of sentences `start` to `stop - 1` of a shard.

    `contextual[l - 1]` is layer l of all their tokens, end to end: float32 (tokens, dim).
    """

    start: int
    stop: int
    contextual: list[Floats]


def embed_segments(embedder: Embedder, x_NP: Floats, ids: Ints, offsets: Ints) -> Iterator[Segment]:
    """Yield the vectors of a shard's sentences, in segments that depend on the shard alone.

    Sentence k has the tokens `ids[offsets[k]:offsets[k + 1]]`, rows of `x_NP`, which are the
    context-free vectors of the distinct tokens. Memory does not grow with the shard.
    """
    sentences = [ids[start:stop] for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]
    segments = []
    for start, stop in split_into_runs(offsets, SEGMENT_TOKENS):
        lengths = [len(sentence) for sentence in sentences[start:stop]]
        batches = [rows + start for rows in batches_by_length(lengths, BATCH_ROWS)]
        segments.append((slice(start, stop), batches))
    layers_of_segments = embedder.read_alone(x_NP, sentences, segments)
    for (span, _), layers in zip(segments, layers_of_segments, strict=True):
        yield Segment(span.start, span.stop, layers)
