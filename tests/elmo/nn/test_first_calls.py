"""MKL's functions are called once by one thread before several threads use them."""

import re
from pathlib import Path

import pytest
import torch

from elmo.nn import FUNCTIONS_OF_MKL

# The functions that torch takes from MKL for contiguous tensors on a CPU.
OF_MKL = (
    "acos asin atan cos erf erfc erfinv exp expm1 log log10 log1p log2 sin sqrt tan tanh".split()
)
CALL = re.compile(rf"(?<!\bnp)(?<!\bmath)\.(?:_foreach_)?({'|'.join(OF_MKL)})_?\(")
LIBRARY = Path(__file__).parents[3] / "elmo"


def test_every_function_that_the_library_uses_is_called_once() -> None:
    used = {name for file in LIBRARY.rglob("*.py") for name in CALL.findall(file.read_text())}
    assert "sqrt" in used
    assert used == set(FUNCTIONS_OF_MKL)


def test_the_mkl_of_torch_still_needs_it() -> None:
    version = re.search(r"Math Kernel Library Version (\d+)", torch.__config__.show())
    if version is None:
        pytest.skip("this torch has no MKL")
    assert int(version[1]) < 2025, "delete FUNCTIONS_OF_MKL: MKL 2025 does not need it"
