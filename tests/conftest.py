"""What holds for all tests: one thread per process.

The models of the tests are tiny. Several threads of one process gain nothing on them, and lose
much where the cores are busy: each waits for the one that has no core.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, and for processes that tests start

from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A stage in this process sets as many as it was told."""
    yield
    torch.set_num_threads(1)
