"""The products of training are the same numbers by torch's library and by oneDNN."""

from itertools import product as pairs

import pytest
import torch
from torch import Tensor

from elmo.nn import products
from elmo.nn.products import add_products_, affine, product


@pytest.fixture(params=[False, True], ids=["torch", "oneDNN"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "mkl_lacks_avx512", lambda: request.param)


def matrix(*shape: int, transposed: bool = False) -> Tensor:
    made = torch.randn(*shape[:-2], *reversed(shape[-2:])) if transposed else torch.randn(*shape)
    return made.mT if transposed else made


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("shape", [(3, 40, 5), (50, 40, 7), (7, 40, 50), (0, 4, 5)])
def test_products_of_matrices_in_any_order(
    library: None, batch: tuple[int, ...], shape: tuple[int, int, int]
) -> None:
    rows, inputs, columns = shape
    for one, other in pairs([False, True], repeat=2):
        a = matrix(*batch, rows, inputs, transposed=one)
        b = matrix(*batch, inputs, columns, transposed=other)
        expected = (a.double() @ b.double()).float()
        torch.testing.assert_close(product(a, b), expected)
        out, scratch = torch.empty(2, *batch, rows, columns)
        assert product(a, b, out=out) is out
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(product(a, b, scratch=scratch), expected)
        if batch:
            sums, bias = torch.randn(2, rows, columns), torch.randn(2, columns)
            torch.testing.assert_close(add_products_(sums.clone(), a, b), sums + expected)
            torch.testing.assert_close(product(a, b, bias_SO=bias), bias[:, None] + expected)


@pytest.mark.parametrize("biased", [True, False])
def test_gradients_of_an_affine_map(library: None, biased: bool) -> None:
    x, weight = matrix(30, 40).requires_grad_(), matrix(40, 20).requires_grad_()
    bias = torch.randn(20, requires_grad=True) if biased else None
    leaves = [each for each in (x, weight, bias) if each is not None]
    found = affine(x, weight, bias)
    expected = x @ weight + (0 if bias is None else bias)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_only_training_multiplies_by_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "mkl_lacks_avx512", lambda: True)
    x, weight, bias = matrix(30, 40), matrix(40, 20), torch.randn(20)
    plain = torch.addmm(bias, x, weight)
    assert torch.equal(affine(x, weight, bias), plain)
    with torch.no_grad():
        assert torch.equal(affine(x, weight.requires_grad_(), bias), plain)
