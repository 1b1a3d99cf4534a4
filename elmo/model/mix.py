"""ELMo vectors for downstream PyTorch code: the learned mix of layers, and a module around a biLM.

ELMo_k = γ Σ_j s_j h_kj with s = softmax(w) (equation 1 of the paper), w starting at 0 and γ at 1.

Shapes: L layers, B sentences, T tokens of the longest, D width of a layer, P projection, K
characters of a token, S directions, N distinct tokens.
"""

import copy
from collections.abc import Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from elmo.data.characters import SENTENCE_BEGIN, SENTENCE_END
from elmo.errors import ElmoError
from elmo.io.location import Folder
from elmo.model.folder import Model, load_model
from elmo.nn.bilm import token_vectors
from elmo.nn.device import prefers_large_operations, round_up_rows, round_up_time_steps
from elmo.settings import Fraction, check_count, check_value

LayerNorm = Literal["bilm-tf", "allennlp"]
TOKENS_AT_ONCE = 4096  # tokens in one slice, without gradients
_EPSILON_BY_NORM = {"bilm-tf": 1e-12, "allennlp": 1e-13}


class ScalarMix(nn.Module):
    """A weighted sum of `layers` layers: one learned weight per layer and one scale (equation 1 of
    the paper).

    With `layer_norm`, each layer is first normalised to mean 0 and variance 1 over all unmasked
    values of the batch, as in 2018; a vector then depends on the rest of its batch.
    """

    def __init__(self, layers: int, *, layer_norm: LayerNorm | None = None) -> None:
        super().__init__()
        if layer_norm not in (None, *_EPSILON_BY_NORM):
            raise ElmoError(f"layer_norm must be bilm-tf, allennlp or None, found {layer_norm!r}")
        check_count("layers", layers)
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers_LBTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Mix layers (layers, sentences, tokens, dim) into one tensor (sentences, tokens, dim).
        `mask_BT` is true where there is a token; only `layer_norm` uses it."""
        if layers_LBTD.dim() != 4 or len(layers_LBTD) != len(self.weights):
            raise ElmoError(
                f"layers must be ({len(self.weights)}, sentences, tokens, dim) to mix, found "
                f"{tuple(layers_LBTD.shape)}"
            )
        if self.layer_norm is not None:
            layers_LBTD = _normalise(layers_LBTD, mask_BT, _EPSILON_BY_NORM[self.layer_norm])
        weights_L = (self.weights.softmax(0) * self.gamma).to(layers_LBTD.dtype)
        return torch.einsum("l,lbtd->btd", weights_L, layers_LBTD)

    def l2(self) -> Tensor:
        """Return Σ w²; multiply it by λ (0.001 in the paper's tasks) and add it to the loss."""
        return self.weights.square().sum()


def _normalise(layers_LBTD: Tensor, mask_BT: Tensor, epsilon: float) -> Tensor:
    """Normalise each layer by its mean and variance over the unmasked values."""
    mask_BT1 = mask_BT.to(layers_LBTD.dtype).unsqueeze(-1)
    count = mask_BT1.sum().clamp(min=1) * layers_LBTD.shape[-1]
    mean_L = (layers_LBTD * mask_BT1).sum((1, 2, 3), keepdim=True) / count
    squares = ((layers_LBTD - mean_L) * mask_BT1).square()
    variance_L = squares.sum((1, 2, 3), keepdim=True) / count
    return (layers_LBTD - mean_L) / torch.sqrt(variance_L + epsilon)


class ElmoOutput(TypedDict):
    """The output of `Elmo`: a tensor (sentences, tokens, dim) per mix, 0 where masked, and the mask
    (sentences, tokens), true where there is a token."""

    elmo_representations: list[Tensor]
    mask: Tensor


class Elmo(nn.Module):
    """A biLM that reads each sentence independently, with `representations` learned mixes of its
    layers.

    The biLM is frozen unless `trainable`; a `Model` is copied and stays unchanged. `dropout`
    applies to the mixes. `layer_norm="bilm-tf"` normalises as the original did, without the
    sentence boundaries; `"allennlp"` includes them. The default is None, because both make a vector
    depend on its batch. The module is created on the model's device. Several threads may use it for
    inference.
    """

    def __init__(
        self,
        model: Model | Folder,
        representations: int = 1,
        *,
        layer_norm: LayerNorm | None = None,
        dropout: float = 0.5,
        keep_sentence_boundaries: bool = False,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        check_count("representations", representations)
        check_value("dropout", dropout, Fraction)
        loaded_model = model if isinstance(model, Model) else load_model(model, with_softmax=False)
        if loaded_model.bilm.shape.input_words is not None:
            raise ElmoError("the model reads words, not characters; use Embedder")
        bilm = copy.deepcopy(loaded_model.bilm) if isinstance(model, Model) else loaded_model.bilm
        self.bilm = bilm.requires_grad_(trainable)
        self.characters = loaded_model.characters
        self.keep_sentence_boundaries, self.trainable = keep_sentence_boundaries, trainable
        layers = loaded_model.bilm.shape.layers + 1
        self.mixes = nn.ModuleList(
            ScalarMix(layers, layer_norm=layer_norm) for _ in range(representations)
        )
        self.dropout = nn.Dropout(dropout)
        boundaries = loaded_model.characters.encode([SENTENCE_BEGIN, SENTENCE_END])
        self.register_buffer("marks_2K", torch.from_numpy(boundaries).long(), persistent=False)
        self.marks_2K: Tensor
        self.to(self.bilm.lstm.weight[0].device)

    def batch_to_ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Return the character ids of token lists, the input of `forward`, on this module's device:
        (sentences, tokens of the longest, characters of a token), 0 where there is no token."""
        ids_BTK = torch.from_numpy(self.characters.encode_batch(sentences))
        return ids_BTK.to(self.bilm.lstm.weight[0].device)

    def forward(self, ids_BTK: Tensor | Sequence[Sequence[str]]) -> ElmoOutput:
        """Return the mixed layers of token lists, or of their character ids from `batch_to_ids`.

        The result has the keys of AllenNLP's module: `elmo_representations`, a tensor (sentences,
        tokens, dim) per mix, and `mask`. `keep_sentence_boundaries` adds two tokens to each
        sentence.
        """
        if not isinstance(ids_BTK, Tensor):
            ids_BTK = self.batch_to_ids(ids_BTK)
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            layers_LBTD, lengths_B = self._compute_layers(ids_BTK)
        time_steps = torch.arange(layers_LBTD.shape[2], device=ids_BTK.device)
        bounded_mask_BT = time_steps < (lengths_B + 2)[:, None]
        inner_mask_BT = time_steps[:-2] < lengths_B[:, None]
        mask_BT = bounded_mask_BT if self.keep_sentence_boundaries else inner_mask_BT
        representations = []
        for mix in self.mixes:
            if self.keep_sentence_boundaries or mix.layer_norm == "allennlp":
                mixed_BTD = mix(layers_LBTD, bounded_mask_BT)
                if not self.keep_sentence_boundaries:
                    mixed_BTD = mixed_BTD[:, 1:-1]
            else:
                mixed_BTD = mix(layers_LBTD[:, :, 1:-1], inner_mask_BT)
            representations.append(self.dropout(mixed_BTD * mask_BT.unsqueeze(-1)))
        return {"elmo_representations": representations, "mask": mask_BT}

    def l2(self) -> Tensor:
        """Return Σ w² of the layers' weights, summed over all mixes; multiply it by λ and add it to
        the loss."""
        return torch.stack([mix.l2() for mix in self.mixes]).sum()  # type: ignore[operator]

    def _compute_layers(self, ids_BTK: Tensor) -> tuple[Tensor, Tensor]:
        """Return all layers (L, B, T + 2, D) with the boundaries, and lengths (B) without them."""
        if ids_BTK.dim() != 3 or ids_BTK.shape[2] != self.characters.max_characters:
            raise ElmoError(
                f"ids must be (sentences, tokens, {self.characters.max_characters}), as "
                f"Elmo.batch_to_ids returns, found {tuple(ids_BTK.shape)}"
            )
        if len(ids_BTK) == 0:
            shape = self.bilm.shape
            weight = self.bilm.lstm.weight[0]
            layers_LBTD = weight.new_zeros(shape.layers + 1, 0, ids_BTK.shape[1] + 2, shape.dim)
            return layers_LBTD, ids_BTK.new_zeros(0)
        device = ids_BTK.device.type
        is_autocast = torch.is_autocast_enabled(device)
        precision = (
            torch.get_autocast_dtype(device) if is_autocast else self.bilm.lstm.weight[0].dtype
        )
        with torch.autocast(device, enabled=False):
            x_NP, index_BT, mask_BT = self._encode(ids_BTK, precision)
            lengths_B = mask_BT.sum(1)
            time_steps = torch.arange(index_BT.shape[1] + 2, device=ids_BTK.device)
            begin_index, end_index = len(x_NP) - 2, len(x_NP) - 1
            forward_BT = nn.functional.pad(index_BT, (1, 1), value=begin_index)
            forward_BT = torch.where(time_steps > lengths_B[:, None], end_index, forward_BT)
            reversed_BT = (lengths_B[:, None] + 1 - time_steps).clamp(min=0)
            index_SBT = torch.stack([forward_BT, forward_BT.gather(1, reversed_BT)])
            S, B, T = index_SBT.shape
            if prefers_large_operations(index_SBT.device):  # CUDA graphs need repeated shapes
                padding = (0, round_up_time_steps(T) - T, 0, round_up_rows(B) - B)
                index_SBT = nn.functional.pad(index_SBT, padding)
            input_STBP = token_vectors(index_SBT.transpose(1, 2), x_NP)
            layer_outputs = self._run_lstm(input_STBP)
            x_STBP, *layer_outputs = (y_STBP[:, :T, :B] for y_STBP in (input_STBP, *layer_outputs))
        x_BTP = x_STBP[0].transpose(0, 1)
        layers = [torch.cat([x_BTP, x_BTP], -1)]
        for y_STBP in layer_outputs:
            forward_BTP, backward_BTP = y_STBP.transpose(1, 2)
            indices = reversed_BT.unsqueeze(-1).expand_as(backward_BTP)
            layers.append(torch.cat([forward_BTP, backward_BTP.gather(1, indices)], -1))
        return torch.stack(layers), lengths_B

    def _run_lstm(self, x_STBP: Tensor) -> list[Tensor]:
        """Return the output of each LSTM layer. Without gradients, text is read in slices, to save
        memory: the gates take 2 × 4 × cells numbers per token."""
        _, T, B, _ = x_STBP.shape
        slice_steps = T if torch.is_grad_enabled() else max(1, TOKENS_AT_ONCE // B)
        state = self.bilm.lstm.zero_state(B)
        slice_outputs = []
        for start in range(0, T, slice_steps):
            layer_outputs, state = self.bilm.lstm(x_STBP[:, start : start + slice_steps], state)
            slice_outputs.append(layer_outputs)
        return [torch.cat(layer_slices, 1) for layer_slices in zip(*slice_outputs, strict=True)]

    def _encode(self, ids_BTK: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors (of distinct tokens and the two boundaries), token indices and the
        mask."""
        boundaries_2P = self.bilm.encode(self.marks_2K, precision=precision)
        size, is_integer = self.characters.size, ids_BTK.dtype in (torch.int32, torch.int64)
        low, high = ids_BTK.aminmax() if ids_BTK.numel() and is_integer else (0, 0)
        if not is_integer or low < 0 or high > size:
            raise ElmoError(f"ids must be integers from 0 to {size}, as batch_to_ids returns")
        mask_BT = ids_BTK[:, :, 0] > 0
        if (mask_BT[:, 1:] & ~mask_BT[:, :-1]).any():
            raise ElmoError(
                "ids have padding before a token; put padding at the end, as batch_to_ids does"
            )
        characters_BTK = torch.where(mask_BT.unsqueeze(-1), ids_BTK - 1, self.marks_2K[0])
        characters_NK, index = torch.unique(
            characters_BTK.flatten(0, 1), dim=0, return_inverse=True
        )
        x_NP = self.bilm.encode(characters_NK, precision=precision)
        return torch.cat([x_NP, boundaries_2P]), index.view(mask_BT.shape), mask_BT
