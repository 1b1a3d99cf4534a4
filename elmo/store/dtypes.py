"""The dtypes in which a store keeps vectors: float16 and float32.

Shapes: T tokens, D width of a layer.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Floats
from elmo.errors import ElmoError

DTYPES = {"float16": "<f2", "float32": "<f4"}


def to_stored_dtype(vectors_TD: Floats, dtype: str) -> npt.NDArray[Any]:
    """Return vectors (tokens, dim) in the store's dtype; raise `ElmoError` if a value is not finite
    or too large for float16."""
    if not np.isfinite(vectors_TD).all():
        raise ElmoError("the model computed a vector that is not finite; train it again")
    if dtype == "float32":
        return np.ascontiguousarray(vectors_TD, DTYPES["float32"])
    vectors_float16 = to_float16(vectors_TD)
    if not np.isfinite(vectors_float16).all():
        raise ElmoError(
            f"a value of {np.abs(vectors_TD).max():.0f} does not fit float16; use dtype float32"
        )
    return vectors_float16


def to_float16(vectors_TD: Floats) -> npt.NDArray[np.float16]:
    """Return vectors rounded to float16; torch does so 20 times as fast as numpy."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(vectors_TD)).half().numpy()
