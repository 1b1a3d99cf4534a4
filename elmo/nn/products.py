"""The matrix products of training, forward and backward: by torch, or by oneDNN if it is faster.

torch's float32 products use MKL, which does not use AVX-512 on AMD processors. There, oneDNN is
used; everywhere else, and in bfloat16, the products are torch's. The choice depends only on the
processor, not on a measurement that other work could affect. So every run and every worker on a
machine gets the same bits.

Shapes: N rows, I columns of the input, O columns of the result, S pairs in a batch.
"""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CPU_INFO = Path("/proc/cpuinfo")


def product(
    left: Tensor,
    right: Tensor,
    *,
    bias_SO: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
) -> Tensor:
    """Return the product of two matrices, or of each pair in two batches of matrices, plus the bias
    of each pair. It is written to `out` if that is given, else perhaps to the memory `scratch`."""
    if not _is_for_onednn(left):
        if bias_SO is not None:
            return _biased_product(bias_SO, left, right, out)
        return (torch.mm if left.dim() == 2 else torch.bmm)(
            left, right, out=scratch if out is None else out
        )
    if left.dim() == 2:
        return _multiply(left, right) if out is None else out.copy_(_multiply(left, right))
    out = left.new_empty(*left.shape[:2], right.shape[2]) if out is None else out
    for k, result in enumerate(out):
        result.copy_(_multiply(left[k], right[k], None if bias_SO is None else bias_SO[k]))
    return out


def add_products_(sums: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add the product of each pair of matrices in two batches to `sums` in place; return `sums`."""
    if not _is_for_onednn(left):
        return sums.baddbmm_(left, right)
    for sum_matrix, left_matrix, right_matrix in zip(sums, left, right, strict=True):
        sum_matrix.add_(_multiply(left_matrix, right_matrix))
    return sums


def affine(x_NI: Tensor, weight_IO: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return the product of an input and a weight, plus the bias; if the weight is trained, the
    backward pass uses the products of this module too."""
    if weight_IO.requires_grad and torch.is_grad_enabled() and _is_for_onednn(x_NI):
        apply: Any = _Affine.apply
        result: Tensor = apply(x_NI, weight_IO, bias_O)
        return result
    if bias_O is None:
        return torch.mm(x_NI, weight_IO)
    return torch.addmm(bias_O, x_NI, weight_IO)


@cache
def mkl_lacks_avx512() -> bool:
    """Tell whether MKL does not use this processor's AVX-512, as on AMD, and oneDNN can use it."""
    with suppress(OSError):
        is_amd = "AuthenticAMD" in CPU_INFO.read_text(encoding="utf-8", errors="replace")
        has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return is_amd and has_onednn and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return False


class _Affine(torch.autograd.Function):
    """An input times a weight, plus a bias, with oneDNN's products in both directions."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_IO: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_IO)
        return _multiply(x_NI, weight_IO, bias_O)

    @staticmethod
    def backward(ctx: Any, dy_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_IO = ctx.saved_tensors
        needs_dx, _, needs_dbias = ctx.needs_input_grad
        dx_NI = product(dy_NO, weight_IO.mT) if needs_dx else None
        return dx_NI, product(x_NI.mT, dy_NO), dy_NO.sum(0) if needs_dbias else None


def _biased_product(bias_SO: Tensor, left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
    """Return the product of each pair plus its bias. On a GPU, each pair is a separate product: a
    batched one would first write the bias to every row of the result."""
    if not left.is_cuda:
        return torch.baddbmm(bias_SO[:, None], left, right, out=out)
    out = left.new_empty(*left.shape[:2], right.shape[2]) if out is None else out
    for k, result in enumerate(out):
        torch.addmm(bias_SO[k], left[k], right[k], out=result)
    return out


def _is_for_onednn(left: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return False
    return left.dtype == torch.float32 and left.device.type == "cpu" and mkl_lacks_avx512()


def _multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product of two matrices by oneDNN. oneDNN copies the first matrix if it is
    transposed, but not the second; so if the first is larger, the transposed product is
    computed."""
    linear = torch.ops.mkldnn._linear_pointwise
    if bias is None and not left.is_contiguous() and left.numel() > right.numel():
        transposed_result: Tensor = linear(right.mT, left, None, "none", [], "")
        return transposed_result.mT
    result: Tensor = linear(left, right.mT, bias, "none", [], "")
    return result
