"""The two stacks of projected LSTMs, forward and backward, run side by side.

Training and embedding share one implementation. The product with the input is computed before the
loop over time, both directions share each product in the loop, and training computes the weight
gradients with one product per layer. On a GPU, a loop is one launch unless rows end within it; it
reads the parameters in place (elmo.nn.cuda_graphs). Weights have the 2018 layout: gates in the
order i, j (new), f, o; the forget bias of 1 is added when they are used and is not in files. Matrix
products run in the precision of the input; the cell state is always float32.

Shapes: S directions (0 forward, 1 backward), T time steps, B rows, n rows that are still read, I
input, P projection, C cells, G = 4C gates, L layers, K = I + P rows of a weight, N = T × B. Time
steps are in reading order: step 0 of the backward direction is the end of the sentence.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from elmo.nn.cell import EAGER_CELL, CellFunctions, choose_cell_functions, is_worth_compiling
from elmo.nn.cuda_graphs import call_lending_outputs, call_with_cuda_graph
from elmo.nn.products import add_products_, product

DropoutFunction = Callable[[Tensor, int], Tensor]


class LSTMState(NamedTuple):
    """The state of all LSTM layers in both directions, from which reading continues: outputs
    `h_LSBP` (layer, direction, row, projection) and cell states `c_LSBC` (layer, direction, row,
    cells)."""

    h_LSBP: Tensor
    c_LSBC: Tensor

    def select_rows(self, rows: Any) -> "LSTMState":
        """Return the state of only some rows of the batch; `rows` is a slice or an index tensor."""
        return LSTMState(self.h_LSBP[:, :, rows], self.c_LSBC[:, :, rows])


class LayerWeights(NamedTuple):
    """The weights of one LSTM layer in both directions, prepared for inference: in one precision,
    with the forget bias of 1 added. The input part and the recurrent part are separate."""

    input_SIG: Tensor
    recurrent_SPG: Tensor
    bias_SG: Tensor
    project_SCP: Tensor | None

    def input_gates(self, x_STBI: Tensor) -> Tensor:
        """Return the input's contribution to the gates of all time steps, with the bias:
        (direction, time step, row, 4 × cells).

        It needs no loop over time, so it is computed first, for all time steps at once.
        """
        S, T, B, inputs = x_STBI.shape
        x_SNI = x_STBI.reshape(S, T * B, inputs)
        return product(x_SNI, self.input_SIG, bias_SO=self.bias_SG).view(S, T, B, -1)

    def step(
        self,
        gates_STBG: Tensor,
        t: int,
        h_SnP: Tensor,
        c_SnC: Tensor,
        clip: float | None,
        cell: CellFunctions,
    ) -> tuple[Tensor, Tensor]:
        """Compute time step `t` of the first n rows of the batch; return their output (direction,
        row, projection), not yet clipped, and their new cell state (direction, row, cells).

        `gates_STBG` is from `input_gates`; its values for this step are overwritten. `h_SnP` and
        `c_SnC` are the output and the cell state of the previous step; `clip` bounds the cell
        state.
        """
        gates_SnG = gates_STBG[:, t, : h_SnP.shape[1]].baddbmm_(h_SnP, self.recurrent_SPG)
        c_SnC, hidden_SnC = cell.forward(gates_SnG, c_SnC, clip)
        return self.project(hidden_SnC), c_SnC

    def project(self, hidden_SnC: Tensor) -> Tensor:
        """Return the cells' output (direction, row, cells) projected to the layer's output width,
        or unchanged if the layer has no projection."""
        return hidden_SnC if self.project_SCP is None else torch.bmm(hidden_SnC, self.project_SCP)


class LayerWeightsLike(Protocol):
    """The interface of `LayerWeights` and `PackedWeights`, as `LSTMStack` uses it."""

    def input_gates(self, x_STBI: Tensor) -> Any:
        """Return the input's contribution to all gates, in the form that `step` takes."""

    def step(
        self,
        gates: Any,
        t: int,
        h_SnP: Tensor,
        c_SnC: Tensor,
        clip: float | None,
        cell: CellFunctions,
    ) -> tuple[Tensor, Tensor]:
        """Compute time step `t`, as `LayerWeights.step` does."""


class LSTMStack(nn.Module):
    """The LSTM layers of the language model, forward and backward side by side. Each layer's output
    is projected to a smaller width; with `skip`, layers from the second on add their input to their
    output.

    The first layer reads vectors of width `inputs`. `cell_clip` and `projection_clip` bound each
    number of the cell state and of the output (None: no bound).

    `compiled` says whether to compile the cell, which takes seconds. With None, the default, it is
    compiled once the stack has read so much text that this pays off.
    """

    compiled: bool | None = None

    def __init__(
        self,
        *,
        layers: int,
        inputs: int,
        cells: int,
        projection: int,
        cell_clip: float | None,
        projection_clip: float | None,
        skip: bool,
    ) -> None:
        super().__init__()
        self.cells, self.projection, self.skip = cells, projection, skip
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self._tokens_read = 0
        widths = [inputs] + [projection] * (layers - 1)
        self.weight = nn.ParameterList(
            nn.Parameter(torch.zeros(2, width + projection, 4 * cells)) for width in widths
        )
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(2, 4 * cells)) for _ in widths)
        needs_projection = cells != projection
        self.project = nn.ParameterList(
            nn.Parameter(torch.zeros(2, cells, projection)) for _ in widths if needs_projection
        )

    @property
    def layer_count(self) -> int:
        """Return the number of LSTM layers in each direction; layer 0 is not counted."""
        return len(self.weight)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the weights at random, as bilm-tf did: Glorot-uniform, with zero biases."""
        for weight in (*self.weight, *self.project):
            bound = (6 / (weight.shape[1] + weight.shape[2])) ** 0.5
            nn.init.uniform_(weight, -bound, bound, generator=generator)
        for bias in self.bias:
            nn.init.zeros_(bias)

    @torch.no_grad()
    def inference_weights(self, precision: torch.dtype) -> list[LayerWeights]:
        """Return each layer's weights prepared for inference in `precision`. Compute them once and
        pass them to each `forward`."""
        return [
            _prepare_weights(*self._layer_parameters(layer), precision, self.projection)
            for layer in range(self.layer_count)
        ]

    def _layer_parameters(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.weight[layer], self.bias[layer], self.project[layer] if self.project else None

    def zero_state(self, rows: int) -> LSTMState:
        """Return the state before the first token, all zeros, of a batch of `rows` rows."""
        weight = self.weight[0]
        h_LSBP = weight.new_zeros(self.layer_count, 2, rows, self.projection)
        cell_shape = (self.layer_count, 2, rows, self.cells)
        return LSTMState(h_LSBP, torch.zeros(cell_shape, dtype=torch.float32, device=weight.device))

    def forward(
        self,
        x_STBI: Tensor,
        state: LSTMState,
        *,
        reset_STB: Tensor | None = None,
        row_counts: Sequence[int] | None = None,
        drop: DropoutFunction | None = None,
        weights: Sequence[LayerWeightsLike] | None = None,
    ) -> tuple[list[Tensor], LSTMState]:
        """Read T time steps, continuing from `state`; return the outputs of each layer (direction,
        time step, row, projection) and the new state. In the backward direction, time step 0 is the
        end of a sentence.

        The caller owns the state: nothing is remembered between calls, and no gradient flows into
        it. `reset_STB` is true where a row starts from zeros. For inference only, `row_counts[t]`
        is how many rows, from the first on, have a token at time step t: sort the rows by falling
        length. The other rows keep their state, and their outputs are undefined. `drop(x, layer)`
        is applied to each layer's input; as in 2018, the residual adds the dropped input. For
        inference, pass `inference_weights(precision)` as `weights` to avoid recomputing them.
        """
        keep_STB1 = None if reset_STB is None else (~reset_STB).to(x_STBI.dtype).unsqueeze(-1)
        cell = self._choose_cell(x_STBI)
        outputs: list[Tensor] = []
        last_h_states, last_c_states = [], []
        for layer in range(self.layer_count):
            if drop is not None:
                x_STBI = drop(x_STBI, layer)
            start_state = (state.h_LSBP[layer].to(x_STBI.dtype), state.c_LSBC[layer])
            clips = (self.cell_clip, self.projection_clip if self.project else None)
            params = self._layer_parameters(layer)
            if torch.is_grad_enabled():
                if row_counts is not None:
                    raise ValueError("rows of different lengths are for inference only")
                apply: Any = _LayerFunction.apply
                y_STBP, h_SBP, c_SBC = apply(x_STBI, *params, *start_state, keep_STB1, clips, cell)
            elif weights is None and row_counts is None:
                inputs = (x_STBI, *start_state, keep_STB1)
                y_STBP, h_SBP, c_SBC = call_with_cuda_graph(
                    _infer, inputs, (clips, cell), params=params
                )
            else:
                weights = weights or self.inference_weights(x_STBI.dtype)
                y_STBP, h_SBP, c_SBC, _ = _read_rows(
                    x_STBI, weights[layer], *start_state, keep_STB1, clips, cell, row_counts, None
                )
            if self.skip and layer > 0:
                y_STBP = y_STBP + x_STBI
            outputs.append(y_STBP)
            last_h_states.append(h_SBP.to(state.h_LSBP.dtype))
            last_c_states.append(c_SBC)
            x_STBI = y_STBP
        return outputs, LSTMState(torch.stack(last_h_states), torch.stack(last_c_states))

    def _choose_cell(self, x_STBI: Tensor) -> CellFunctions:
        """Return the cell functions for this input, eager or compiled."""
        if torch.compiler.is_compiling():
            return EAGER_CELL
        self._tokens_read += x_STBI.shape[1] * x_STBI.shape[2]
        is_compiled = self.compiled
        if is_compiled is None:
            is_compiled = is_worth_compiling(self._tokens_read, self.cells)
        return choose_cell_functions(x_STBI.device, self.cells) if is_compiled else EAGER_CELL


class _SavedForBackward(NamedTuple):
    """The values, besides the gates, that a layer's backward pass needs from its forward pass.

    Time is the first axis of the cell states. A step reads the previous step's states while it
    writes its own, and torch.compile must see that the two do not overlap.
    """

    cells_TSBC: Tensor
    hidden_STBC: Tensor


def _prepare_weights(
    weight_SKG: Tensor,
    bias_SG: Tensor,
    project_SCP: Tensor | None,
    precision: torch.dtype,
    projection: int,
) -> LayerWeights:
    """Return a layer's parameters prepared for the loop."""
    return LayerWeights(
        *_split_weight(weight_SKG, weight_SKG.shape[1] - projection, precision),
        _with_forget_bias(bias_SG).to(precision),
        None if project_SCP is None else project_SCP.to(precision),
    )


def _split_weight(weight_SKG: Tensor, inputs: int, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split a weight into the part for the input and the part for the layer's own output, both in
    `precision`."""
    if precision == torch.float32 or weight_SKG.is_cuda:
        weight_SKG = weight_SKG.to(precision)
        return weight_SKG[:, :inputs], weight_SKG[:, inputs:]
    # Contiguous, because otherwise each bfloat16 product would copy its part.
    input_SIG, recurrent_SPG = weight_SKG[:, :inputs].to(precision), weight_SKG[:, inputs:]
    return input_SIG.contiguous(), recurrent_SPG.to(precision).contiguous()


def _read_rows(
    x_STBI: Tensor,
    weights: LayerWeightsLike,
    h_SBP: Tensor,
    c_SBC: Tensor,
    keep_STB1: Tensor | None,
    clips: tuple[float | None, float | None],
    cell: CellFunctions,
    row_counts: Sequence[int] | None,
    saved_values: _SavedForBackward | None,
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Read T time steps with one layer.

    Return outputs (S, T, B, P), the last output, the last cell state and the gates.
    """
    cell_clip, projection_clip = clips
    S, T, B, _ = x_STBI.shape
    gates = weights.input_gates(x_STBI)
    y_STBP = torch.empty(S, T, B, h_SBP.shape[-1], dtype=x_STBI.dtype, device=x_STBI.device)
    h_SBP, c_SBC = h_SBP.clone(), c_SBC.clone()
    for t in range(T):
        n = B if row_counts is None else row_counts[t]
        h_SnP, c_SnC = h_SBP[:, :n], c_SBC[:, :n]
        keep_SB1 = None if keep_STB1 is None else keep_STB1[:, t]
        if keep_SB1 is not None:
            h_SnP = h_SnP * keep_SB1
        if saved_values is None:
            if keep_SB1 is not None:
                c_SnC = c_SnC * keep_SB1
            h_SnP, c_SnC = weights.step(gates, t, h_SnP, c_SnC, cell_clip, cell)
        else:
            assert isinstance(weights, LayerWeights)
            gates_SBG = add_products_(gates[:, t], h_SnP, weights.recurrent_SPG)
            previous_c_SBC, c_SnC, h_SnP = (
                c_SnC,
                saved_values.cells_TSBC[t],
                saved_values.hidden_STBC[:, t],
            )
            cell.forward_into(gates_SBG, previous_c_SBC, keep_SB1, cell_clip, c_SnC, h_SnP)
            if weights.project_SCP is not None:
                h_SnP = product(h_SnP, weights.project_SCP)
        if projection_clip is not None:
            h_SnP = h_SnP.clamp_(-projection_clip, projection_clip)
        y_STBP[:, t, :n] = h_SnP
        if n == B:
            h_SBP, c_SBC = h_SnP, c_SnC
        else:
            h_SBP[:, :n], c_SBC[:, :n] = h_SnP, c_SnC
    return y_STBP, h_SBP, c_SBC, gates


class _LayerFunction(torch.autograd.Function):
    """An autograd function for `_read_rows`: one backward loop over time, and one product for the
    weight gradients of all time steps."""

    @staticmethod
    def forward(
        ctx: Any,
        x_STBI: Tensor,
        weight_SKG: Tensor,
        bias_SG: Tensor,
        project_SCP: Tensor | None,
        h_SBP: Tensor,
        c_SBC: Tensor,
        keep_STB1: Tensor | None,
        clips: tuple[float | None, float | None],
        cell: CellFunctions,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs, params = (x_STBI, h_SBP, c_SBC, keep_STB1), (weight_SKG, bias_SG, project_SCP)
        (y_STBP, last_h_SBP, last_c_SBC, *saved_values), ctx.lease = call_lending_outputs(
            _forward, inputs, (clips, cell), params=params, lent_count=3
        )
        ctx.save_for_backward(*inputs, y_STBP, *saved_values, *params)
        ctx.constants, ctx.is_lent = (clips, cell), ctx.lease is not None
        ctx.mark_non_differentiable(last_h_SBP, last_c_SBC)
        return y_STBP, last_h_SBP, last_c_SBC

    @staticmethod
    def backward(ctx: Any, dy_STBP: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        saved_tensors = ctx.saved_tensors
        inputs, y_STBP, params = saved_tensors[:4], saved_tensors[4], saved_tensors[8:]
        saved_values: Any = saved_tensors[5:8]
        call_inputs: Any = (dy_STBP, *inputs, y_STBP)
        weights: Any = (params[0], params[2])  # all but the bias
        if ctx.lease is not None:
            gradients = call_with_cuda_graph(
                _backward, call_inputs, ctx.constants, params=(*saved_values, *weights)
            )
            ctx.lease = None  # otherwise a loss that is still referenced would block the graph
        else:
            if ctx.is_lent:  # another call may have overwritten the saved values
                saved_values = _forward(*inputs, *params, *ctx.constants)[3:]
            gradients = _backward(*call_inputs, *saved_values, *weights, *ctx.constants)
        return *gradients, *(None,) * 5


def _infer(
    x_STBI: Tensor,
    h_SBP: Tensor,
    c_SBC: Tensor,
    keep_STB1: Tensor | None,
    weight_SKG: Tensor,
    bias_SG: Tensor,
    project_SCP: Tensor | None,
    clips: tuple[float | None, float | None],
    cell: CellFunctions,
) -> tuple[Tensor, ...]:
    """Return the outputs, the last output and the last cell state, given the parameters."""
    weights = _prepare_weights(weight_SKG, bias_SG, project_SCP, x_STBI.dtype, h_SBP.shape[-1])
    return _read_rows(x_STBI, weights, h_SBP, c_SBC, keep_STB1, clips, cell, None, None)[:3]


def _forward(
    x_STBI: Tensor,
    h_SBP: Tensor,
    c_SBC: Tensor,
    keep_STB1: Tensor | None,
    weight_SKG: Tensor,
    bias_SG: Tensor,
    project_SCP: Tensor | None,
    clips: tuple[float | None, float | None],
    cell: CellFunctions,
) -> tuple[Tensor, ...]:
    """Return the outputs, the last output and cell state, and for `_backward` gates, cells and
    hidden."""
    S, T, B, _ = x_STBI.shape
    saved_values = _SavedForBackward(
        c_SBC.new_empty(T, S, B, c_SBC.shape[-1]), x_STBI.new_empty(S, T, B, c_SBC.shape[-1])
    )
    weights = _prepare_weights(weight_SKG, bias_SG, project_SCP, x_STBI.dtype, h_SBP.shape[-1])
    outputs = _read_rows(x_STBI, weights, h_SBP, c_SBC, keep_STB1, clips, cell, None, saved_values)
    return *outputs, *saved_values


def _backward(
    dy_STBP: Tensor,
    x_STBI: Tensor,
    h_SBP: Tensor,
    c_SBC: Tensor,
    keep_STB1: Tensor | None,
    y_STBP: Tensor,
    gates_STBG: Tensor,
    cells_TSBC: Tensor,
    hidden_STBC: Tensor,
    weight_SKG: Tensor,
    project_SCP: Tensor | None,
    clips: tuple[float | None, float | None],
    cell: CellFunctions,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight, bias and projection; a parameter's gradient has the
    parameter's precision."""
    cell_clip, projection_clip = clips
    S, T, B, inputs = x_STBI.shape
    precision = weight_SKG.dtype
    input_SIG, recurrent_SPG = _split_weight(weight_SKG, inputs, x_STBI.dtype)
    project_SCP = None if project_SCP is None else project_SCP.to(x_STBI.dtype)
    dgates_STBG = torch.empty_like(gates_STBG)
    dproj_STBP = torch.empty_like(y_STBP)
    is_clipped_STBP = None if projection_clip is None else ~(y_STBP.abs() < projection_clip)
    dh_SBP, dc_SBC = torch.zeros_like(h_SBP), torch.zeros_like(c_SBC)
    for t in reversed(range(T)):
        dproj_SBP = torch.add(dy_STBP[:, t], dh_SBP, out=dproj_STBP[:, t])
        if is_clipped_STBP is not None:
            dproj_SBP.masked_fill_(is_clipped_STBP[:, t], 0)
        dhidden_SBC = dproj_SBP if project_SCP is None else product(dproj_SBP, project_SCP.mT)
        keep_SB1 = None if keep_STB1 is None else keep_STB1[:, t]
        dc_SBC = cell.backward(
            dhidden_SBC,
            dc_SBC,
            gates_STBG[:, t],
            cells_TSBC[t],
            cells_TSBC[t - 1] if t > 0 else c_SBC,
            keep_SB1,
            cell_clip,
            dgates_STBG[:, t],
        )
        if t > 0:
            dh_SBP = product(dgates_STBG[:, t], recurrent_SPG.mT)
            if keep_SB1 is not None:
                dh_SBP = dh_SBP * keep_SB1
    h_STBP = torch.cat([h_SBP[:, None], y_STBP[:, :-1]], 1)
    if keep_STB1 is not None:
        h_STBP = h_STBP * keep_STB1
    dgates_SNG = dgates_STBG.view(S, T * B, -1)
    dweight_SKG = product(torch.cat([x_STBI, h_STBP], -1).view(S, T * B, -1).mT, dgates_SNG)
    dproject_SCP = (
        None
        if project_SCP is None
        else product(hidden_STBC.view(S, T * B, -1).mT, dproj_STBP.view(S, T * B, -1)).to(precision)
    )
    dx_SNI = product(dgates_SNG, input_SIG.mT)
    dbias_SG = torch.bmm(dgates_SNG.new_ones(S, 1, T * B), dgates_SNG)[:, 0]
    return dx_SNI.view_as(x_STBI), dweight_SKG.to(precision), dbias_SG.to(precision), dproject_SCP


def _with_forget_bias(bias_SG: Tensor) -> Tensor:
    cells = bias_SG.shape[1] // 4
    input_and_new, forget, output = torch.split(bias_SG, [2 * cells, cells, cells], 1)
    return torch.cat([input_and_new, forget + 1, output], 1)
