"""LSTM weights in 8 bits, for embedding on CPUs that multiply them faster (AVX-512 VNNI).

Each column of a weight has a scale; each row of the other factor gets one at run time. Integers add
up exactly, so a row's result does not depend on the other rows of its batch. States, gates and
biases stay float32.

Shapes: S directions, T time steps, B rows, n of them still read, K numbers of a row, G columns of a
weight, I input, P projection, C cells.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from elmo.nn.cell import CellFunctions
from elmo.nn.lstm import LayerWeights

LARGEST = 127


class Int8Matrix(NamedTuple):
    """A weight of both directions (direction, row, column) as 8-bit integers, with a float32 scale
    per column."""

    values_SGK: Tensor
    scales_SG: Tensor

    @classmethod
    def quantize(cls, weight_SKG: Tensor) -> "Int8Matrix":
        """Return a float32 weight (direction, row, column) quantised to 8 bits."""
        values_SGK, scales_SG1 = _quantize_rows(weight_SKG.mT.contiguous())
        return cls(values_SGK, scales_SG1.squeeze(-1))

    def product(self, x_SnK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the product of `x_SnK`, quantised row by row, and this weight: the integers
        (direction, row, column), and the scales of rows and of columns by which they must be
        multiplied."""
        values_SnK, scales_Sn1 = _quantize_rows(x_SnK)
        S, n, _ = x_SnK.shape
        product_SnG = torch.empty(S, n, self.scales_SG.shape[1], dtype=torch.int32)
        for values_nK, values_GK, product_nG in zip(
            values_SnK, self.values_SGK, product_SnG, strict=True
        ):
            torch._int_mm(values_nK, values_GK.T, out=product_nG)
        return product_SnG, scales_Sn1, self.scales_SG


class Int8Weights(NamedTuple):
    """The 8-bit weights of one LSTM layer, with the interface of `elmo.nn.lstm.LayerWeights`."""

    input: Int8Matrix
    recurrent: Int8Matrix
    bias_SG: Tensor
    project: Int8Matrix | None

    @classmethod
    def quantize(cls, weights: LayerWeights) -> "Int8Weights":
        """Return the float32 weights of an LSTM layer quantised to 8 bits."""
        return cls(
            Int8Matrix.quantize(weights.input_SIG),
            Int8Matrix.quantize(weights.recurrent_SPG),
            weights.bias_SG,
            None if weights.project_SCP is None else Int8Matrix.quantize(weights.project_SCP),
        )

    def input_gates(self, x_STBI: Tensor, cell: CellFunctions) -> Tensor:
        """Return what the input adds to the gates of every time step, as `LayerWeights.input_gates`
        does, but by 8-bit products: float32 (direction, time step, row, 4 × cells)."""
        S, T, B, inputs = x_STBI.shape
        product = self.input.product(x_STBI.reshape(S, T * B, inputs))
        return cell.add_scaled(self.bias_SG.unsqueeze(1), *product).view(S, T, B, -1)

    def step(
        self,
        gates_STBG: Tensor,
        t: int,
        h_SnP: Tensor,
        c_SnC: Tensor,
        clip: float | None,
        cell: CellFunctions,
    ) -> tuple[Tensor, Tensor]:
        """Compute time step `t` of the first n rows of the batch by 8-bit products; return their
        output, not yet clipped, and their new cell state, as `LayerWeights.step` does."""
        gates_SnG = gates_STBG[:, t, : h_SnP.shape[1]]
        product = self.recurrent.product(h_SnP)
        c_SnC, hidden_SnC = cell.forward_int8(gates_SnG, *product, c_SnC, clip)
        if self.project is None:
            return hidden_SnC, c_SnC
        product_SnP, rows_Sn1, columns_SP = self.project.product(hidden_SnC)
        return product_SnP * rows_Sn1 * columns_SP.unsqueeze(1), c_SnC


def _quantize_rows(x_SnK: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of at most LARGEST in magnitude, and the scale of each row (S, n, 1)."""
    scales_Sn1 = x_SnK.abs().amax(-1, keepdim=True).clamp_min_(1e-30) / LARGEST
    return (x_SnK / scales_Sn1).round_().to(torch.int8), scales_Sn1


@cache
def int8_is_supported() -> bool:
    """Tell whether this machine multiplies 8-bit integers fast and correctly, as `precision="int8"`
    requires.

    Without oneDNN and AVX-512 VNNI, torch computes the products one by one, 20 times as slowly as
    float32. If `ONEDNN_MAX_CPU_ISA` excludes VNNI, oneDNN adds in 16 bits, which overflows.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_onednn or not torch.cpu._is_vnni_supported():
        return False
    largest_values = torch.full((32, 64), LARGEST, dtype=torch.int8)
    return bool((torch._int_mm(largest_values, largest_values.T) == 64 * LARGEST**2).all())
