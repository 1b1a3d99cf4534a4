"""The dtypes in which a store keeps vectors: float16, float32, and int8 with a scale per vector.

Shapes: T tokens, D width of a layer.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Floats
from elmo.errors import ElmoError

DTYPES = {"float16": "<f2", "float32": "<f4", "int8": "|i1"}
SCALE_DTYPE = "<f4"  # of the factor by which an int8 vector is multiplied


def to_stored(vectors_TD: Floats, dtype: str) -> tuple[npt.NDArray[Any], Floats | None]:
    """Return vectors (tokens, dim) in the store's dtype, with their scales (tokens,) for int8, else
    None.

    `ElmoError` is raised if a value is not finite or too large for float16.
    """
    if not np.isfinite(vectors_TD).all():
        raise ElmoError("the model computed a vector that is not finite; train it again")
    if dtype == "int8":
        scale_T = np.abs(vectors_TD).max(1, initial=0).astype(SCALE_DTYPE) / np.float32(127)
        safe_T = np.where(scale_T > 0, scale_T, np.float32(1))
        return np.rint(vectors_TD / safe_T[:, None]).astype("|i1"), scale_T
    if dtype == "float32":
        return np.ascontiguousarray(vectors_TD, DTYPES["float32"]), None
    halves = narrow(vectors_TD)
    if not np.isfinite(halves).all():
        raise ElmoError(
            f"a value of {np.abs(vectors_TD).max():.0f} does not fit float16; use dtype float32"
        )
    return halves, None


def narrow(vectors_TD: Floats) -> npt.NDArray[np.float16]:
    """Return vectors rounded to float16; torch does so 20 times as fast as numpy."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(vectors_TD)).half().numpy()
