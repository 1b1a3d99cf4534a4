"""Types of numpy arrays that several modules name."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer]
Int64s = npt.NDArray[np.int64]
