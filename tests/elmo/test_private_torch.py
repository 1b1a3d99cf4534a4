"""What the library takes from torch that torch does not promise to keep: each name does here what
public operations do. A name that is not listed is refused: list it with its check, or do without.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elmo.nn.softmax import SampledWords

LIBRARY = Path(__file__).parents[2] / "elmo"
PRIVATE = re.compile(r"torch(?:\.\w+)*\._(?!_)\w+(?:\.\w+)*|torch\.ops\.\w+\.\w+")


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def equal(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted)


def in_place(operation: Callable[..., None], wanted: Callable[..., Tensor], *more: object) -> None:
    """An operation on lists of tensors is the public one on each."""
    lists = [floats(3, 2, seed=k) if one == "tensor" else one for k, one in enumerate(more, 1)]
    left = floats(3, 2)
    expected = wanted(left, *lists)
    operation([left], *([one] if isinstance(one, Tensor) else one for one in lists))
    equal(left, expected)


def lerp() -> None:
    in_place(torch._foreach_lerp_, lambda a, b, w: a + w * (b - a), "tensor", 0.3)


def addcmul() -> None:
    in_place(torch._foreach_addcmul_, lambda a, b, c: a + b * c, "tensor", "tensor")
    left, b, c = floats(4), floats(4, seed=1), floats(4, seed=2)
    wanted = left + 0.5 * b * c
    torch._foreach_addcmul_([left], [b], [c], value=0.5)
    equal(left, wanted)


def addcdiv() -> None:
    left, b, c = floats(4), floats(4, seed=1), floats(4, seed=2)
    wanted = left + 0.5 * b / c
    torch._foreach_addcdiv_([left], [b], [c], value=0.5)
    equal(left, wanted)


def square_root() -> None:
    equal(torch._foreach_sqrt([floats(4).abs()])[0], floats(4).abs().sqrt())


def norm() -> None:
    equal(torch._foreach_norm([floats(4, 3)])[0], floats(4, 3).square().sum().sqrt())


def packed_product() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    x, weight, bias = floats(7, 5), floats(4, 5, seed=1), floats(4, seed=2)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 7)
    found = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    equal(found, nn.functional.linear(x, weight, bias))
    sums = floats(7, 4, seed=3)
    found = torch.ops.mkldnn._linear_pointwise.binary(x, sums, packed, None, "add")
    equal(found, sums + nn.functional.linear(x, weight))


def bfloat16_units() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    x, weight = floats(7, 64).bfloat16(), floats(4, 64, seed=1).bfloat16()
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight, 7)
    found = torch.ops.mkldnn._linear_pointwise(x, laid_out, None, "none", [], "")
    equal(found, (x.float() @ weight.float().T).bfloat16())


def collate() -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    assert Tensor in default_collate_fn_map


def row_sums() -> None:
    rows, values = torch.tensor([2, 0, 2, 1, 2]), floats(5, 3)
    found = torch.ops.aten.embedding_dense_backward(values, rows, 4, -1, False)
    equal(found, torch.zeros(4, 3).index_add(0, rows, values))


def tree_map() -> None:
    from torch.utils._pytree import tree_map_only

    row = SampledWords(np.arange(2), 3, 4)
    found = tree_map_only(Tensor, lambda tensor: tensor + 1, [(torch.tensor(1), row), None])
    assert found == [(torch.tensor(2), row), None] and type(found[0][1]) is SampledWords


CHECKS: dict[str, Callable[[], None]] = {
    "torch._foreach_add_": lambda: in_place(torch._foreach_add_, lambda a, s: a + s, 0.5),
    "torch._foreach_addcdiv_": addcdiv,
    "torch._foreach_addcmul_": addcmul,
    "torch._foreach_div_": lambda: in_place(torch._foreach_div_, lambda a, s: a / s, 0.5),
    "torch._foreach_lerp_": lerp,
    "torch._foreach_mul_": lambda: in_place(torch._foreach_mul_, lambda a, s: a * s, 0.5),
    "torch._foreach_norm": norm,
    "torch._foreach_sqrt": square_root,
    "torch.ops.aten.embedding_dense_backward": row_sums,
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": bfloat16_units,
    "torch.ops.mkldnn._linear_pointwise": packed_product,
    "torch.ops.mkldnn._linear_pointwise.binary": packed_product,
    "torch.ops.mkldnn._reorder_linear_weight": packed_product,
    "torch.utils._pytree": tree_map,
    "torch.utils.data._utils.collate": collate,
}


def test_each_private_name_of_torch_is_listed_with_its_check() -> None:
    used = {
        name
        for path in LIBRARY.rglob("*.py")
        for name in PRIVATE.findall(path.read_text(encoding="utf-8"))
    }
    assert used == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_it_does_what_public_operations_do(name: str) -> None:
    CHECKS[name]()
