"""Token encoders: a char-CNN (convolution, max, highway, projection) or a table of word vectors.

The convolution is one matrix product for the filters of all widths, over windows as wide as the
widest filter: a narrower filter multiplies the rest of its window by zero. Tokens are cut to the
longest one of a chunk plus the widest filter. This is exact, because all windows beyond a token
contain only padding, and one of them represents the rest. Weights have the 2018 layout.

Shapes: N tokens, n tokens of a chunk, K characters, E width of a character vector, W = E × the
widest filter's width, F filters of all widths, P projection.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmo.nn.cell import fuse_on_gpu
from elmo.nn.device import prefers_large_operations
from elmo.nn.products import affine

CHUNK_TOKENS = 128  # tokens convolved at a time; limits memory and fits the cache
GPU_CHUNK_TOKENS = 2048  # the same on a GPU; only limits memory


class Highway(nn.Module):
    """A highway layer for vectors of width `filters`: y = c · t + (1 − c) · x. x is the input. t is
    the relu of a linear map of x. The gate c (*carry* in the code of 2018) is the sigmoid of
    another linear map."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.carry_weight = nn.Parameter(torch.zeros(filters, filters))
        self.carry_bias = nn.Parameter(torch.zeros(filters))
        self.transform_weight = nn.Parameter(torch.zeros(filters, filters))
        self.transform_bias = nn.Parameter(torch.zeros(filters))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the weights at random, with the distributions of bilm-tf."""
        for weight in (self.carry_weight, self.transform_weight):
            nn.init.normal_(weight, 0, weight.shape[0] ** -0.5, generator=generator)
        nn.init.constant_(self.carry_bias, -2)
        nn.init.zeros_(self.transform_bias)

    def forward(self, x_NF: Tensor) -> Tensor:
        """Return vectors (tokens, filters) of the same shape as the input."""
        dtype = x_NF.dtype
        carry_NF = affine(x_NF, self.carry_weight.to(dtype), self.carry_bias.to(dtype))
        weight, bias = self.transform_weight.to(dtype), self.transform_bias.to(dtype)
        transform_NF = affine(x_NF, weight, bias)
        return torch.lerp(x_NF, torch.relu(transform_NF), torch.sigmoid(carry_NF))


class CharacterEncoder(nn.Module):
    """The character network of the paper (section 3.4): convolutions, highway layers, a projection.
    It turns character ids (tokens, characters) into vectors (tokens, projection).

    `character_count` is the number of character ids, and `char_dim` the width of their vectors.
    `filters` are pairs: a width in characters, and the number of filters of this width. The
    filters' `activation` is `relu` or `tanh`. `highways` is the number of highway layers.

    With `compiled`, the backward pass on a GPU uses fused kernels, which take seconds to compile.
    """

    compiled = False

    def __init__(
        self,
        *,
        character_count: int,
        char_dim: int,
        filters: tuple[tuple[int, int], ...],
        activation: str,
        highways: int,
        projection: int,
    ) -> None:
        super().__init__()
        filter_count = sum(count for _, count in filters)
        self.widths = tuple(width for width, _ in filters)
        self.activation, self.projection = activation, projection
        self.char_embedding = nn.Parameter(torch.zeros(character_count, char_dim))
        self.conv_weight = nn.ParameterList(
            nn.Parameter(torch.zeros(width * char_dim, count)) for width, count in filters
        )
        self.conv_bias = nn.ParameterList(nn.Parameter(torch.zeros(count)) for _, count in filters)
        layers = (Highway(filter_count) for _ in range(highways))
        self.highway: Iterable[Highway] = nn.ModuleList(layers)  # type: ignore[assignment]
        needs_projection = filter_count != projection
        self.project_weight = (
            nn.Parameter(torch.zeros(filter_count, projection)) if needs_projection else None
        )
        self.project_bias = nn.Parameter(torch.zeros(projection)) if needs_projection else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the weights at random, with the distributions of bilm-tf."""
        nn.init.uniform_(self.char_embedding, -1, 1, generator=generator)
        for weight, bias in zip(self.conv_weight, self.conv_bias, strict=True):
            if self.activation == "relu":
                nn.init.uniform_(weight, -0.05, 0.05, generator=generator)
            else:
                nn.init.normal_(weight, 0, weight.shape[0] ** -0.5, generator=generator)
            nn.init.zeros_(bias)
        for highway in self.highway:
            highway.reset_parameters(generator)
        if self.project_weight is not None and self.project_bias is not None:
            std = self.project_weight.shape[0] ** -0.5
            nn.init.normal_(self.project_weight, 0, std, generator=generator)
            nn.init.zeros_(self.project_bias)

    def forward(self, characters_NK: Tensor, precision: torch.dtype) -> Tensor:
        """Return the vectors (tokens, projection) of tokens, computed in `precision`. Pass each
        distinct token once, because equal tokens have equal vectors."""
        if len(characters_NK) == 0:
            return self.char_embedding.new_empty((0, self.projection), dtype=precision)
        weight_WF = self._join_filters(precision)
        if prefers_large_operations(characters_NK.device):
            chunks = torch.split(characters_NK, GPU_CHUNK_TOKENS)
            x_NF = torch.cat(
                [self._pool(chunk_nK, weight_WF, is_padded=False) for chunk_nK in chunks]
            )
        else:
            x_NF = self._pool_by_length(characters_NK, weight_WF)
        for highway in self.highway:
            x_NF = highway(x_NF)
        if self.project_weight is None or self.project_bias is None:
            return x_NF
        return affine(x_NF, self.project_weight.to(precision), self.project_bias.to(precision))

    def _join_filters(self, precision: torch.dtype) -> Tensor:
        """Return the filters of all widths as one weight (W, F) in `precision`; narrower filters
        are padded with zeros."""
        rows = max(self.widths) * self.char_embedding.shape[1]
        pad = nn.functional.pad
        padded_weights = [pad(weight, (0, 0, 0, rows - len(weight))) for weight in self.conv_weight]
        return torch.cat(padded_weights, 1).to(precision)

    def _pool_by_length(self, characters_NK: Tensor, weight_WF: Tensor) -> Tensor:
        """Apply `_pool` to chunks of tokens of similar length, each cut to its longest token."""
        pad_id = self.char_embedding.shape[0] - 1
        lengths_N = (characters_NK != pad_id).sum(1)
        order_N = torch.argsort(lengths_N, stable=True)
        longest_lengths = (
            torch.cummax(lengths_N[order_N], 0).values[CHUNK_TOKENS - 1 :: CHUNK_TOKENS].tolist()
        )
        chunks = []
        for k, rows_n in enumerate(torch.split(order_N, CHUNK_TOKENS)):
            length = longest_lengths[k] if k < len(longest_lengths) else int(lengths_N.max())
            width = length + max(self.widths)
            is_padded = width <= characters_NK.shape[1]
            chunks.append(self._pool(characters_NK[rows_n, :width], weight_WF, is_padded=is_padded))
        return torch.cat(chunks)[torch.argsort(order_N)]

    @property
    def pad_to_few_shapes(self) -> Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]]:
        """Return a function that pads character ids (tokens, characters) to one of few shapes,
        because each needs a CUDA graph; it can be pickled.

        It appends rows of padding. It cuts off columns of padding, except as many as the widest
        filter reads. The tokens' vectors stay the same.
        """
        return partial(_pad, pad_id=self.char_embedding.shape[0] - 1, max_width=max(self.widths))

    def _pool(self, characters_NK: Tensor, weight_WF: Tensor, *, is_padded: bool) -> Tensor:
        """Return the largest output of each filter over each token (tokens, filters).

        With `is_padded`, the last windows have only padding, so windows of narrower filters beyond
        them need not be computed.
        """
        # Round after the lookup, so that gradients of repeated characters are summed in float32.
        x_NKE = nn.functional.embedding(characters_NK, self.char_embedding).to(weight_WF.dtype)
        max_width = max(self.widths)
        largest_NF: Tensor = _MaxPool.apply(_convolve(x_NKE, weight_WF, max_width), self.compiled)  # type: ignore[no-untyped-call]
        if not is_padded and max_width > 1:
            end_NF = self._pool_end(x_NKE[:, 1 - max_width :], weight_WF)
            largest_NF = torch.maximum(largest_NF, end_NF)
        activate = torch.relu if self.activation == "relu" else torch.tanh
        return activate(largest_NF + torch.cat(tuple(self.conv_bias)).to(weight_WF.dtype))

    def _pool_end(self, x_NKE: Tensor, weight_WF: Tensor) -> Tensor:
        """Return the largest output of each filter (tokens, filters) over the last characters,
        which are fewer than the widest filter reads; −∞ if a filter has no window there."""
        length, max_width = x_NKE.shape[1], max(self.widths)
        remaining_K = torch.arange(
            length, 0, -1, device=x_NKE.device
        )  # from each position to the end
        is_cut_KF = torch.cat(
            [
                (remaining_K < width)[:, None].expand(-1, len(bias))
                for width, bias in zip(self.widths, self.conv_bias, strict=True)
            ],
            1,
        )
        padded_NKE = nn.functional.pad(x_NKE, (0, 0, 0, max_width - 1))
        y_NKF = _convolve(padded_NKE, weight_WF, max_width)
        y_NKF = y_NKF.masked_fill(is_cut_KF, -torch.inf)
        largest_NF: Tensor = _MaxPool.apply(y_NKF, self.compiled)  # type: ignore[no-untyped-call]
        return largest_NF


def _pad(
    characters_NK: npt.NDArray[np.int32], *, pad_id: int, max_width: int
) -> npt.NDArray[np.int32]:
    N, K = characters_NK.shape
    is_used_K = (characters_NK != pad_id).any(0)
    length = K - int(np.argmax(is_used_K[::-1])) if is_used_K.any() else 0
    columns = min(K, -(-(length + max_width) // 8) * 8)
    rows = -(-max(N, 1) // 256) * 256
    padded_NK = np.full((rows, columns), pad_id, np.int32)
    padded_NK[:N] = characters_NK[:, :columns]
    return padded_NK


def _convolve(x_NKE: Tensor, weight_WF: Tensor, width: int) -> Tensor:
    """Return the product of every window of `width` characters with the weight (tokens, windows,
    filters)."""
    windows_NKW = x_NKE.unfold(1, width, 1).mT.flatten(2)
    return affine(windows_NKW.flatten(0, 1), weight_WF).view(*windows_NKW.shape[:2], -1)


class _MaxPool(torch.autograd.Function):
    """The largest output of each filter: (N, K, F) → (N, F), as `amax(1)`."""

    @staticmethod
    def forward(ctx: Any, y_NKF: Tensor, is_compiled: bool) -> Tensor:
        largest_NF = y_NKF.amax(1)
        ctx.save_for_backward(y_NKF, largest_NF)
        ctx.spread_gradient = (
            fuse_on_gpu(_spread_gradient, y_NKF.device) if is_compiled else _spread_gradient
        )
        return largest_NF

    @staticmethod
    def backward(ctx: Any, dlargest_NF: Tensor) -> tuple[Tensor, None]:
        y_NKF, largest_NF = (tensor.detach() for tensor in ctx.saved_tensors)
        return ctx.spread_gradient(y_NKF, largest_NF, dlargest_NF), None


def _spread_gradient(y_NKF: Tensor, largest_NF: Tensor, dlargest_NF: Tensor) -> Tensor:
    """Return the gradient of `y_NKF`, given the gradient of its maxima; equal maxima share it."""
    is_largest_NKF = y_NKF == largest_NF[:, None]
    return is_largest_NKF * (dlargest_NF / is_largest_NKF.sum(1))[:, None]


class WordEncoder(nn.Module):
    """A table with one vector per word, for models of 2018 that read words, not characters. It
    turns word ids (tokens,) into vectors (tokens, projection)."""

    def __init__(self, *, word_count: int, projection: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(word_count, projection))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the weights at random, with the distribution of bilm-tf."""
        nn.init.uniform_(self.embedding, -1, 1, generator=generator)

    def forward(self, words_N: Tensor, precision: torch.dtype) -> Tensor:
        """Return the vectors (words, projection) of word ids, in `precision`."""
        return nn.functional.embedding(words_N, self.embedding).to(precision)
