"""Export of a biLM as one file that runs without this package: a torch.export program, or ONNX.

The exported model takes character ids as made by `Embedder.ids`, of any number of sentences and
tokens, and returns all layers. Its loop over time is a scan, so lengths are not fixed.

Shapes: L layers, S directions, B sentences, T tokens of the longest, K characters of a token, E
character vector, N tokens, P projection, D width of a layer, C cells.
"""

import copy
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from elmo.data.characters import SENTENCE_BEGIN, SENTENCE_END
from elmo.errors import ElmoError
from elmo.io.atomic import new_file_if_absent
from elmo.model.folder import Model, load_model
from elmo.nn.encoder import CharacterEncoder

LONGEST = 100_000  # sentences, and tokens of one, that a file promises to take


def export_portable_model(model: str | Path, out: str | Path) -> None:
    """Export a model as one file that runs without this package: `.pt2` for torch.export.load,
    `.onnx` for any ONNX runtime.

    Its input `ids` are character ids as from `Embedder.ids`, int64 (sentences, tokens, characters);
    its output `layers` is float32 (sentences, layers, tokens, dim), 0 where there is no token.
    `model_metadata(model)` is in the file too: as metadata_props in ONNX, as the extra file
    elmo.json for torch.export.
    """
    out = Path(out)
    write = {".pt2": _write_program, ".onnx": _write_onnx}.get(out.suffix)
    if write is None:
        raise ElmoError(f"{out}: must end in .pt2 (torch.export) or .onnx")
    source_model = load_model(model, with_softmax=False)
    exportable = ExportableBiLM(source_model).eval()
    ids_BTK = torch.ones(2, 3, exportable.begin_K.shape[0], dtype=torch.long)
    axes = {
        0: torch.export.Dim("sentences", max=LONGEST),
        1: torch.export.Dim("tokens", max=LONGEST),
    }
    with torch.no_grad(), new_file_if_absent(out) as new_model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporters' own insides
        write(exportable, ids_BTK, {"ids": axes}, new_model, model_metadata(source_model))


def model_metadata(model: Model) -> dict[str, str]:
    """Return what a program that runs the exported model must know, as text by key: `digest`,
    `tokenizer` and `characters` (both JSON), `layers` and `dim`.

    A character's input id is its id in `characters` plus one; 0 marks positions without a token.
    After the symbols (or 256 bytes), and for symbols one id for unknown ones, come the five marks:
    begin and end of sentence, begin and end of word, padding.
    """
    characters = model.characters
    table = {
        "kind": characters.kind,
        "max_characters": characters.max_characters,
        "symbols": characters.symbols,
        "first_mark": characters.first_mark,
    }
    return {
        "digest": model.digest,
        "tokenizer": json.dumps(msgspec.to_builtins(model.tokenizer), ensure_ascii=False),
        "characters": json.dumps(table, ensure_ascii=False),
        "layers": str(model.bilm.config.layers + 1),
        "dim": str(model.bilm.config.dim),
    }


class ExportableBiLM(nn.Module):
    """The biLM of a model as a torch module that torch.export and ONNX can export: without this
    package's own operations, with a scan as its loop over time. It returns all layers, not
    mixed."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if not isinstance(model.bilm.encoder, CharacterEncoder):
            raise ElmoError(
                "the model reads words, not characters, so it cannot be exported for serving"
            )
        self.bilm = copy.deepcopy(model.bilm).float().requires_grad_(False)
        begin_K, end_K = torch.from_numpy(
            model.characters.encode([SENTENCE_BEGIN, SENTENCE_END])
        ).long()
        self.register_buffer("begin_K", begin_K)
        self.register_buffer("end_K", end_K)
        self.begin_K: Tensor
        self.end_K: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Return all layers (sentences, layers, tokens, dim) for character ids (sentences, tokens,
        characters)."""
        mask_BT = ids[:, :, 0] > 0
        end_B1 = mask_BT.sum(1, keepdim=True) + 1
        raw_BTK = torch.where(mask_BT.unsqueeze(-1), ids - 1, self.end_K)
        ends_B1K = torch.zeros_like(raw_BTK[:, :1])
        raw_BTK = torch.cat([ends_B1K + self.begin_K, raw_BTK, ends_B1K + self.end_K], 1)
        x_BTP = self._encode(raw_BTK.flatten(0, 1)).view(*raw_BTK.shape[:2], -1)
        steps_T = torch.arange(raw_BTK.shape[1], device=ids.device)
        reversed_BT1 = (end_B1 - steps_T).clamp(min=0).unsqueeze(-1)
        x_STBP = torch.stack([x_BTP, _reversed(x_BTP, reversed_BT1)]).transpose(1, 2)
        layers = [torch.cat([x_BTP, x_BTP], -1)]
        for layer in range(self.bilm.config.layers):
            y_STBP = torch.stack([self._read(x_STBP[way], layer, way) for way in (0, 1)])
            if self.bilm.config.skip and layer > 0:
                y_STBP = y_STBP + x_STBP
            forward_BTP, backward_BTP = y_STBP.transpose(1, 2)
            layers.append(torch.cat([forward_BTP, _reversed(backward_BTP, reversed_BT1)], -1))
            x_STBP = y_STBP
        inner_BLTD = torch.stack(layers, 1)[:, :, 1:-1]
        return inner_BLTD * mask_BT[:, None, :, None]

    def _encode(self, characters_NK: Tensor) -> Tensor:
        encoder: Any = self.bilm.encoder
        x_NEK = nn.functional.embedding(characters_NK, encoder.char_embedding).mT
        activate = torch.relu if encoder.activation == "relu" else torch.tanh
        pooled = []
        for width, weight, bias in zip(
            encoder.widths, encoder.conv_weight, encoder.conv_bias, strict=True
        ):
            kernel = weight.view(width, -1, weight.shape[1]).permute(2, 1, 0)
            pooled.append(activate(nn.functional.conv1d(x_NEK, kernel, bias).amax(-1)))
        x_NP = torch.cat(pooled, 1)
        for highway in encoder.highway:
            x_NP = highway(x_NP)
        if encoder.project_weight is None:
            return x_NP
        return x_NP @ encoder.project_weight + encoder.project_bias

    def _read(self, x_TBP: Tensor, layer: int, way: int) -> Tensor:
        """Read one direction of one layer: (T, B, P) → (T, B, P)."""
        from torch._higher_order_ops.scan import scan

        lstm = self.bilm.lstm
        weight, bias = lstm.weight[layer][way], lstm.bias[layer][way]
        project = lstm.project[layer][way] if lstm.project else None
        cell_clip, projection_clip = lstm.cell_clip, lstm.projection_clip

        def time_step(
            carry: tuple[Tensor, Tensor], x_BP: Tensor
        ) -> tuple[tuple[Tensor, Tensor], Tensor]:
            h_BP, c_BC = carry
            i, j, f, o = (torch.cat([x_BP, h_BP], 1) @ weight + bias).chunk(4, 1)
            c_BC = torch.sigmoid(f + 1) * c_BC + torch.sigmoid(i) * torch.tanh(j)
            if cell_clip is not None:
                c_BC = c_BC.clamp(-cell_clip, cell_clip)
            h_BP = torch.sigmoid(o) * torch.tanh(c_BC)
            if project is not None:
                h_BP = h_BP @ project
                if projection_clip is not None:
                    h_BP = h_BP.clamp(-projection_clip, projection_clip)
            return (h_BP, c_BC), h_BP.clone()

        rows = x_TBP.shape[1]
        start = (x_TBP.new_zeros(rows, lstm.projection), x_TBP.new_zeros(rows, lstm.cells))
        _, y_TBP = scan(time_step, start, x_TBP, dim=0)
        return y_TBP


def _reversed(x_BTP: Tensor, reversed_BT1: Tensor) -> Tensor:
    """Return each sentence reversed; positions beyond a sentence must be masked by the caller."""
    return x_BTP.gather(1, reversed_BT1.expand_as(x_BTP))


def _write_program(
    served: ExportableBiLM, ids_BTK: Tensor, axes: dict[str, Any], out: Path, notes: dict[str, str]
) -> None:
    program = torch.export.export(served, (ids_BTK,), dynamic_shapes=axes)
    archive = io.BytesIO()  # torch ends the process where a disk is full
    torch.export.save(program, archive, extra_files={"elmo.json": json.dumps(notes)})
    out.write_bytes(archive.getbuffer())


def _write_onnx(
    served: ExportableBiLM, ids_BTK: Tensor, axes: dict[str, Any], out: Path, notes: dict[str, str]
) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ElmoError("ONNX needs a library: pip install 'elmo-pipeline[onnx]'") from None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    program = torch.onnx.export(
        served,
        (ids_BTK,),
        dynamic_shapes=axes,
        input_names=["ids"],
        output_names=["layers"],
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update({f"elmo.{name}": text for name, text in notes.items()})
    program.save(out)
