"""What torch.compile fuses on a GPU gives what plain torch gives; here it compiles for a CPU."""

import functools
import shutil

import pytest
import torch

from elmo.nn.cell import fuse_on_gpu
from elmo.nn.dropout import dropout_keys, dropout_scales
from elmo.nn.encoder import _MaxPool, _spread_gradient
from elmo.nn.softmax import _softmax

CPU = torch.device("cpu")
compiled = functools.partial(torch.compile, dynamic=True)
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler here"
)


def test_a_cpu_gets_the_function_itself() -> None:
    assert fuse_on_gpu(_spread_gradient, CPU) is _spread_gradient


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("is_sampled", [True, False])
def test_the_fused_softmax_is_the_plain_one(is_sampled: bool) -> None:
    function = compiled(_softmax)
    for n in (64, 37):
        product_nM = torch.randn(n, 100).bfloat16()
        product_nM[3, 5] = -torch.inf
        rest = (torch.randn(100), torch.randn(n), is_sampled, None)
        nats_n, share_nM = _softmax(product_nM, *rest)
        assert share_nM.dtype == torch.bfloat16
        fused_nats_n, fused_share_nM = function(product_nM, *rest)
        torch.testing.assert_close(fused_nats_n, nats_n)
        torch.testing.assert_close(fused_share_nM.float(), share_nM.float(), atol=0, rtol=2**-7)


@pytest.mark.slow
@needs_compiler
def test_the_fused_gradient_of_maxima_is_that_of_amax(monkeypatch: pytest.MonkeyPatch) -> None:
    function = compiled(_spread_gradient)
    monkeypatch.setattr("elmo.nn.encoder.fuse_on_gpu", lambda plain, device: function)
    for N, K in ((256, 44), (512, 36)):
        y_NKF = torch.randn(N, K, 8).bfloat16().round().requires_grad_()  # many are as large
        dlargest_NF = torch.randn(N, 8).bfloat16()
        y_NKF.amax(1).backward(dlargest_NF)
        expected, y_NKF.grad = y_NKF.grad, None
        _MaxPool.apply(y_NKF, True).backward(dlargest_NF)
        assert torch.equal(y_NKF.grad, expected)


@pytest.mark.slow
@needs_compiler
def test_the_fused_dropout_mask_is_the_plain_one() -> None:
    keys_LB = torch.stack([dropout_keys(1, 2, layer, rows=list(range(16))) for layer in range(3)])
    arguments = ((2, 20, 16, 32), keys_LB, 0.1, torch.bfloat16)
    assert torch.equal(compiled(dropout_scales)(*arguments), dropout_scales(*arguments))
