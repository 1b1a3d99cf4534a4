"""Train a small masked language model on a text, in an environment with transformers.

    PYTHON benchmarks/masked_lm.py train TEXT MODEL MINUTES [LR]
    PYTHON benchmarks/masked_lm.py tune MODEL EXAMPLES.json ANSWERS.json

`train` trains for MINUTES of CPU time on TEXT, which has one sentence per line, with tokens
separated by spaces. The model is a ModernBERT with 5 layers of width 256; its tokens are pieces of
a byte-pair encoding. Each batch has 16 sequences of 64 pieces, of which 30% are masked. `tune`
fine-tunes MODEL as a tagger on `sentences` and `tags` of EXAMPLES, then tags its `test` sentences.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModel,
    AutoTokenizer,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

PIECES, LENGTH, ROWS, MASKED_SHARE = 8_000, 64, 16, 0.3
LR, WARM_UP_SHARE = 1e-3, 0.06  # share of the time
TUNING_LR, TUNING_ROWS, TUNING_EPOCHS = 3e-4, 16, 20
SPECIAL = {"pad_token": "<pad>", "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}


def train(text: Path, folder: Path, minutes: float, lr: float = LR) -> None:
    """Train on `text` for `minutes` of CPU time and write the model to `folder`."""
    torch.manual_seed(1)
    lines = text.read_text(encoding="utf-8").splitlines()
    bpe = ByteLevelBPETokenizer(add_prefix_space=True)
    bpe.train_from_iterator(
        lines, PIECES, min_frequency=2, special_tokens=[*SPECIAL.values(), "<unk>"]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, unk_token="<unk>", **SPECIAL
    )
    separator = tokenizer.sep_token_id
    stream = [k for line in bpe.encode_batch(lines) for k in (*line.ids, separator)]
    rows = torch.tensor(stream[: len(stream) // LENGTH * LENGTH]).view(-1, LENGTH)
    model = ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=256,
            intermediate_size=384,
            num_hidden_layers=5,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            local_attention=LENGTH,
            pad_token_id=tokenizer.pad_token_id,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=separator,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=separator,
            sparse_prediction=True,
            attn_implementation="eager",  # the fastest way to train on a CPU
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.01)
    start_time, step, row_count, mean_loss = time.process_time(), 0, 0, 0.0
    order = torch.randperm(len(rows))
    while (share := (time.process_time() - start_time) / (60 * minutes)) < 1:
        batch = rows[order[torch.arange(row_count, row_count + ROWS) % len(rows)]]
        row_count += ROWS
        is_target = torch.rand(batch.shape) < MASKED_SHARE
        labels = batch.masked_fill(~is_target, -100)
        draws = torch.rand(batch.shape)  # a target becomes: 80% mask, 10% random, 10% itself
        inputs = batch.masked_fill(is_target & (draws < 0.8), tokenizer.mask_token_id)
        random_pieces = torch.randint(len(SPECIAL) + 1, len(tokenizer), batch.shape)
        inputs = torch.where(is_target & (draws >= 0.9), random_pieces, inputs)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(share / WARM_UP_SHARE, (1 - share) / (1 - WARM_UP_SHARE))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean_loss += 0.02 * (loss.item() - mean_loss) if step else loss.item()
        step += 1
        if step % 100 == 0:
            epochs = row_count / len(rows)
            print(f"{share:.0%} of the time, {epochs:.2f} epochs, loss {mean_loss:.3f}", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tune(folder: Path, examples: Path, answers: Path) -> None:
    """Train the model in `folder` with a linear layer as a tagger; write the tags of `test`."""
    torch.manual_seed(1)
    request = json.loads(examples.read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True)
    labels = sorted({tag for tags in request["tags"] for tag in tags})
    head = torch.nn.Linear(model.config.hidden_size, len(labels))
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, TUNING_LR, weight_decay=0.01)
    sentences = request["sentences"]
    tags = [torch.tensor([labels.index(tag) for tag in row]) for row in request["tags"]]
    steps = TUNING_EPOCHS * -(-len(sentences) // TUNING_ROWS)
    model.train()
    step = 0
    for _ in range(TUNING_EPOCHS):
        order = torch.randperm(len(sentences)).tolist()
        for begin in range(0, len(order), TUNING_ROWS):
            batch = order[begin : begin + TUNING_ROWS]
            share = step / steps
            for group in optimizer.param_groups:
                group["lr"] = TUNING_LR * min((share + 1 / steps) / 0.1, 1 - share)
            scores = head(_first_pieces(model, tokenizer, [sentences[k] for k in batch]))
            loss = torch.nn.functional.cross_entropy(scores, torch.cat([tags[k] for k in batch]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            step += 1
    model.eval()
    tags_by_sentence: list[list[str]] = []
    with torch.inference_mode():
        for begin in range(0, len(request["test"]), 64):
            part = request["test"][begin : begin + 64]
            best = head(_first_pieces(model, tokenizer, part)).argmax(-1).tolist()
            ends = np.cumsum([len(tokens) for tokens in part])[:-1]
            tags_by_sentence += [[labels[k] for k in row] for row in np.split(np.array(best), ends)]
    answers.write_text(json.dumps(tags_by_sentence))


def _first_pieces(model: Any, tokenizer: Any, sentences: list[list[str]]) -> Any:
    """Return the vector of each token: the last layer at its first piece, (tokens, 256)."""
    batch = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
    hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    positions = []
    for row, tokens in enumerate(sentences):
        token_by_piece = batch.word_ids(row)
        positions += [(row, token_by_piece.index(k)) for k in range(len(tokens))]
    rows, columns = map(list, zip(*positions, strict=True))
    return hidden[rows, columns]


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, *arguments = sys.argv[1:]
    if command == "train":
        text, folder, *numbers = arguments
        train(Path(text), Path(folder), *map(float, numbers))
    else:
        tune(*map(Path, arguments))
