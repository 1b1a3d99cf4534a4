"""A tiny training job, for tests that run it here, in processes of their own, or kill it."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.io.location import Location
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import new_softmax
from elmo.settings import CheckpointSettings, ModelShape, OptimizerSettings, TrainingSettings
from elmo.train.checkpoints import state_tensors
from elmo.train.job import TrainingJob
from elmo.train.loop import fit
from elmo.train.step import WorkerGroup

NETWORK = ModelShape(
    char_dim=4,
    filters=((1, 4), (2, 8)),
    activation="relu",
    highways=1,
    cells=16,
    projection=8,
    layers=2,
    cell_clip=3.0,
    projection_clip=3.0,
    skip=True,
    input_words=None,
)


def random_bilm(
    shape: ModelShape, deviation: float, generator: torch.Generator | None = None
) -> BiLM:
    """A network of random weights, each time the same, for characters that are bytes."""
    generator = generator or torch.Generator().manual_seed(0)
    bilm = BiLM(shape, character_count=Characters().size)
    for parameter in bilm.parameters():
        torch.nn.init.normal_(parameter, 0, deviation, generator=generator)
    return bilm


OPTIMIZER = OptimizerSettings(
    name="adamw",
    lr=0.02,
    warmup_steps=4,
    decay="cosine",
    final_lr=0.1,
    clip=1.0,
    accumulator=0.0,
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-8,
    weight_decay=0.01,
)
ADAGRAD = replace(  # of 2018
    OPTIMIZER,
    name="adagrad",
    lr=0.2,
    warmup_steps=0,
    decay="constant",
    final_lr=1.0,
    clip=10.0,
    accumulator=1.0,
    beta1=0.0,
    beta2=0.0,
    epsilon=0.0,
    weight_decay=0.0,
)
TRAINING = TrainingSettings(
    seed=1,
    epochs=2,
    rows=5,
    window=6,
    block_sentences=4,
    reset="sentence",
    precision="float32",
    softmax="sampled",
    samples=8,
    draws="shared",
    loss_scale=1.0,
    dropout=0.1,
    optimizer=OPTIMIZER,
    evaluate_every=10,
    evaluate_tokens=0,
    patience=0,
)
ALPHABET = [f"{a}{b}" for a in "abcd" for b in "uvwx"]
WORDS = ["<S>", "</S>", "<UNK>", *ALPHABET]


def sentences(count: int) -> list[list[str]]:
    """Each word is followed by the one after it, or the one after that."""
    found = []
    for k in range(count):
        at, sentence = 3 * k, []
        for n in range(k % 7):
            at += 1 + (k * n) % 2
            sentence.append(ALPHABET[at % 16])
        found.append(sentence)
    return found


def make_job(
    folder: Path, *, minutes: float = 1e4, keep: int = 2, stop: Path | None = None, **changes: Any
) -> TrainingJob:
    """The job in `folder`, its shards written once; `changes` are settings of training.

    A checkpoint is written with each evaluation; with `minutes` 0 after each step.
    """
    if not (folder / "shards").exists():
        write_shards(folder / "shards", sentences(140), heldout_every=7, shard_sentences=30)
    if "optimizer" in changes:
        changes["optimizer"] = replace(OPTIMIZER, **changes["optimizer"])
    bilm = BiLM(NETWORK, character_count=Characters().size)
    bilm.reset_parameters(0)
    settings = replace(TRAINING, **changes)
    softmax = new_softmax(len(WORDS), NETWORK.projection, seed=1)
    return TrainingJob(
        bilm=bilm,
        softmax=softmax,
        vocabulary=Vocabulary(WORDS, [60, 60, 1, *range(30, 14, -1)]),
        characters=Characters(),
        shards=Shards(folder / "shards"),
        settings=settings,
        folder=Location(folder / "job"),
        checkpointing=CheckpointSettings(minutes, keep),
        stop_flag=stop,
    )


def weights(job: TrainingJob) -> dict[str, Tensor]:
    """All weights by name, copied."""
    modules = {"bilm": job.bilm, "softmax": job.softmax}
    return {name: tensor.clone() for name, tensor in state_tensors(modules, {}).items()}


def main(folder: Path, rank: int, size: int, changes: dict[str, Any], stop_at: int) -> None:
    """Train in `folder`/job as one of `size` workers, which meet through a file in `folder`, and
    write `folder`/end.safetensors. With `stop_at`, a signal comes at that step."""
    torch.set_num_threads(1)
    job = make_job(folder, **changes)
    workers = WorkerGroup(rank, size)
    if size > 1:
        meeting = f"file://{folder.absolute()}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)

    def report(kind: str, figures: dict[str, float]) -> None:
        if figures["step"] == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        fit(job, workers=workers, report=report)
    finally:
        if size > 1:
            dist.destroy_process_group()
    if rank == 0:
        save_file(weights(job), folder / "end.safetensors")
