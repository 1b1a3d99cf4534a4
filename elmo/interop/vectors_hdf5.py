"""The HDF5 files of vectors that the 2018 ELMo tools wrote.

There is one dataset per sentence, named by its number from 0: (layers, tokens, dim) in the layouts
`bilm-tf` and `all`, (tokens, dim) in `top` and `average`. Except in `bilm-tf`, `sentence_to_index`
is a JSON object from a sentence's text to its number, the last one of equal sentences, as `allennlp
elmo` wrote it. A blank line of the input has a dataset without tokens.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.interop.hdf5 import create_hdf5, load_h5py

LAYOUTS = ("bilm-tf", "all", "top", "average")
_INDEX = "sentence_to_index"


def write_dump(
    out: Path, sentences: Iterable[tuple[Sequence[str], Floats]], *, layout: str = "all"
) -> int:
    """Write sentences, given as tokens and vectors (layers, tokens, dim); return their number.

    The layout `top` keeps the last layer, `average` the mean of all.
    """
    if layout not in LAYOUTS:
        raise ElmoError(f"layout must be one of {', '.join(LAYOUTS)}, found {layout!r}")
    h5py = load_h5py()
    numbers: dict[str, str] = {}
    count = 0
    with create_hdf5(out) as (file, check):
        for tokens, vectors in sentences:
            kept = {"top": lambda v: v[-1], "average": lambda v: v.mean(0)}.get(layout)
            file.create_dataset(
                str(count), data=np.asarray(kept(vectors) if kept else vectors, "<f4")
            )
            check()
            numbers[" ".join(tokens)] = str(count)
            count += 1
        if layout != "bilm-tf":
            index = file.create_dataset(_INDEX, (1,), dtype=h5py.string_dtype())
            index[0] = json.dumps(numbers)
    return count
