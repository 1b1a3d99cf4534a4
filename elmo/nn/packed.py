"""LSTM weights in the memory layout that oneDNN multiplies fastest, for inference on a CPU.

A product of few rows with a large weight spends much of its time reordering the weight for the
CPU's registers. Here this is done once, and a product is added to the gates before it is rounded.
Other float32 products of torch use MKL, which does not use AVX-512 on AMD processors: there, oneDNN
is faster for float32 weights of any size.

Shapes: S directions, T time steps, B rows, n rows that are still read, K numbers of a row, G
columns of a weight, I input, P projection, C cells.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elmo.nn.cell import CellFunctions
from elmo.nn.lstm import LayerWeights, LayerWeightsLike
from elmo.nn.products import mkl_lacks_avx512

MIN_PACKED_NUMBERS = 2**22  # smaller weights are fast to reorder for each product
_LAYOUT_ROWS = 128  # the layout is optimal for this number of rows, and correct for any


class PackedWeights(NamedTuple):
    """The weights of one LSTM layer in the memory layout that oneDNN multiplies fastest on a CPU,
    one tensor per direction, with the interface of `elmo.nn.lstm.LayerWeights`."""

    layer_weights: LayerWeights
    input: list[Tensor]
    recurrent: list[Tensor]
    project: list[Tensor] | None

    @classmethod
    def pack(cls, weights: LayerWeights) -> "PackedWeights":
        """Return the weights of an LSTM layer packed for oneDNN."""
        return cls(
            weights,
            _pack(weights.input_SIG),
            _pack(weights.recurrent_SPG),
            None if weights.project_SCP is None else _pack(weights.project_SCP),
        )

    def __reduce__(self) -> Any:
        # Tensors in this layout can't be pickled, so pack the weights again.
        return type(self).pack, (self.layer_weights,)

    def input_gates(self, x_STBI: Tensor) -> list[Tensor]:
        """Return the input's contribution to the gates of all time steps, as
        `LayerWeights.input_gates` does, but as one tensor (time step, row, 4 × cells) per
        direction."""
        operands = zip(x_STBI, self.input, self.layer_weights.bias_SG, strict=True)
        return [_product(x_TBI, input, bias_G) for x_TBI, input, bias_G in operands]

    def step(
        self,
        gates: list[Tensor],
        t: int,
        h_SnP: Tensor,
        c_SnC: Tensor,
        clip: float | None,
        cell: CellFunctions,
    ) -> tuple[Tensor, Tensor]:
        """Compute time step `t` of the first n rows of the batch, as `LayerWeights.step` does."""
        n = h_SnP.shape[1]
        outputs, cells = [], []
        for direction, gates_TBG in enumerate(gates):
            gates_nG = _add_product(gates_TBG[t, :n], h_SnP[direction], self.recurrent[direction])
            c_nC, y_n = cell.forward(gates_nG, c_SnC[direction], clip)
            outputs.append(y_n if self.project is None else _product(y_n, self.project[direction]))
            cells.append(c_nC)
        return torch.stack(outputs), torch.stack(cells)


def pack_if_faster(weights: Sequence[LayerWeights]) -> Sequence[LayerWeightsLike]:
    """Return the weights of each layer, packed for oneDNN if this makes products faster: large
    weights on a CPU, and float32 weights of any size if MKL does not use AVX-512."""
    return [PackedWeights.pack(layer) if _is_worth_packing(layer) else layer for layer in weights]


def choose_for_one_row(weights: Sequence[LayerWeightsLike]) -> Sequence[LayerWeightsLike]:
    """Return the fastest form of each layer's weights for batches of one row. In float32, packed
    weights are replaced by the unpacked ones, because MKL is faster for a vector."""
    return [
        layer.layer_weights
        if isinstance(layer, PackedWeights) and layer.layer_weights.bias_SG.dtype == torch.float32
        else layer
        for layer in weights
    ]


def _pack(weight_SKG: Tensor) -> list[Tensor]:
    return [
        torch.ops.mkldnn._reorder_linear_weight(weight_KG.T.contiguous(), _LAYOUT_ROWS)
        for weight_KG in weight_SKG
    ]


def _product(x: Tensor, weight: Tensor, bias_G: Tensor | None = None) -> Tensor:
    """Return the product of the rows of `x` and a packed weight, plus the bias."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias_G, "none", [], "")
    return result


def _add_product(sum_nG: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the sum plus the product of the rows of `x` and a packed weight, rounded once."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, sum_nG, weight, None, "add")
    return result


def _is_worth_packing(weights: LayerWeights) -> bool:
    weight_PG = weights.recurrent_SPG[0]
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_onednn or weight_PG.device.type != "cpu":
        return False
    if weight_PG.dtype == torch.bfloat16:
        return weight_PG.numel() >= MIN_PACKED_NUMBERS and onednn_has_bfloat16()
    is_float32 = weight_PG.dtype == torch.float32
    return is_float32 and (weight_PG.numel() >= MIN_PACKED_NUMBERS or mkl_lacks_avx512())


def onednn_has_bfloat16() -> bool:
    """Tell whether oneDNN multiplies bfloat16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
