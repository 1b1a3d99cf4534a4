"""What pretraining and fine-tuning share: a job on each worker, its run, its model folder."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo.adaptive import is_adaptive, new_softmax, softmax_from
from elmo.bilm import BiLM, Config
from elmo.characters import Characters
from elmo.checkpoint import load_model, save_model
from elmo.errors import ElmoError
from elmo.files import new_folder, read_json, write_json
from elmo.precision import hint
from elmo.settings import Training
from elmo.shards import Shards
from elmo.step import Workers
from elmo.training import CURVES, STOP, Job, fit, heldout_perplexity
from elmo.vocabulary import Vocabulary
from pipeline import cluster as ray_cluster
from pipeline import tracking
from pipeline.params import Cluster


def train(
    stage: str,
    params: Any,
    training: Training,
    config: dict[str, Any],
    *,
    inputs: dict[str, str],
    out: Path,
    curves: Path,
    runs: Path,
    cluster: Cluster,
) -> dict[str, Any]:
    """Train as `config` says, or go on where a killed run of the same inputs and params stopped."""
    folder = (runs / stage / tracking.fingerprint(stage, params, inputs)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tracking.run(stage, params, inputs=inputs, folder=folder) as log:
        config = config | {
            "stage": stage,
            "folder": str(folder),
            "training": asdict(training),
            "threads": cluster.cpus,
            "run_id": log.run_id,
            "tracking_uri": tracking.tracking_uri(),
        }
        with _shown(stage, folder / "live.json", training.precision):
            found = ray_cluster.fit(
                _loop, config, cluster=cluster, name=f"{stage}-{folder.name}", storage=folder,
                stop=folder / STOP,
            )  # fmt: skip
        if "interrupted" in found:
            raise KeyboardInterrupt
        if "refused" in found:
            raise ElmoError(found["refused"])
        lineage = {
            "stage": stage,
            "inputs": inputs,
            "run_id": log.run_id,
            "params": asdict(params),
            "perplexity": {when: found[when] for when in ("before", "after") if found[when]},
        }
        trained = load_model(folder / "model")
        with new_folder(curves) as new:
            for name in CURVES:
                (new / name).write_bytes((folder / name).read_bytes())
        save_model(
            out,
            bilm=trained.bilm,
            vocabulary=trained.vocabulary,
            characters=trained.characters,
            softmax=trained.softmax,
            training=lineage,
        )
        flat = {
            f"{when}.{text}.{name}": value
            for when in ("before", "after")
            for text, figures in found[when].items()
            for name, value in figures.items()
        }
        log.metrics(flat, step=found["steps"])
        log.artifact(curves)
        log.tag("model_digest", trained.digest)
    return found


def _loop(config: dict[str, Any], rank: int, size: int, device: str) -> dict[str, Any]:
    """What each worker runs. How it ends is handed back: Ray would try it again and again."""
    try:
        return _work(config, rank, size, device)
    except KeyboardInterrupt:
        return {"interrupted": True}
    except ElmoError as error:
        return {"refused": str(error)}


def _work(config: dict[str, Any], rank: int, size: int, device: str) -> dict[str, Any]:
    torch.set_num_threads(max(1, config["threads"]))
    workers = Workers(rank, size, torch.device(device))
    folder = Path(config["folder"])
    job, general, words_added = _job(config, folder)
    job.bilm.to(workers.device)
    job.softmax.to(workers.device)
    before = _remembered(
        folder / "before.json", workers, lambda: _perplexities(job, general, workers)
    )
    live = _Live(config, folder / "live.json") if rank == 0 else None
    progress = fit(job, workers=workers, report=live or (lambda kind, figures: None))
    after = _perplexities(job, general, workers)
    if rank == 0:
        softmax = {name: value.detach() for name, value in job.softmax.state_dict().items()}
        save_model(
            folder / "model", bilm=job.bilm, vocabulary=job.vocabulary, characters=job.characters,
            softmax=softmax, training={},
        )  # fmt: skip
    return {
        "before": before if config["kind"] == "finetune" else {},
        "after": after,
        "steps": progress.step,
        "tokens": progress.tokens,
        "words_added": words_added,
    }


def _job(config: dict[str, Any], folder: Path) -> tuple[Job, Job | None, int]:
    """The job, the same with general text for comparison, and how many words were added."""
    from elmo.settings import Optimizer

    optimizer = Optimizer(**config["training"]["optimizer"])
    training = Training(**(config["training"] | {"optimizer": optimizer}))
    shards = Shards(Path(config["shards"]))
    if config["kind"] == "pretrain":
        shape = config["network"] | {"input_words": None}
        network = Config.from_dict(shape, source=Path("params.yaml"))
        characters = Characters.load(Path(config["vocab"]) / "characters.json")
        vocabulary = Vocabulary.load(Path(config["vocab"]))
        bilm = BiLM(network, characters=characters.size)
        bilm.reset_parameters(training.seed)
        softmax = new_softmax(
            training.softmax, len(vocabulary), network.projection, seed=training.seed + 1
        )
        job = Job(bilm, softmax, vocabulary, characters, shards, training, folder, {})
        return job, None, 0
    parent = load_model(Path(config["model"]))
    if parent.bilm.config.input_words is not None:
        raise ElmoError(f"{config['model']}: reads words, not characters; it can't be fine-tuned")
    vocabulary = _extended(parent.vocabulary, shards, config["new_words"])
    if parent.softmax is None:
        softmax = new_softmax(
            training.softmax, len(vocabulary), parent.bilm.config.projection, seed=training.seed
        )
    elif is_adaptive(parent.softmax) != (training.softmax == "adaptive"):
        raise ElmoError(
            f"finetune.training.softmax is {training.softmax}, and {config['model']} has "
            f"{'an' if is_adaptive(parent.softmax) else 'no'} adaptive softmax; choose as it has"
        )
    else:
        softmax = softmax_from(parent.softmax, words=len(vocabulary), seed=training.seed)
    rates = _lr_of(parent.bilm, config["freeze"], config["layer_decay"])
    frozen = "softmax" in config["freeze"]
    lr_of = rates | {f"softmax.{name}": float(not frozen) for name, _ in softmax.named_parameters()}
    job = Job(parent.bilm, softmax, vocabulary, parent.characters, shards, training, folder, lr_of)
    general = replace(job, shards=Shards(Path(config["general"])))
    return job, general, len(vocabulary) - len(parent.vocabulary)


def _extended(vocabulary: Vocabulary, shards: Shards, least: int) -> Vocabulary:
    """The vocabulary with the task tokens seen `least` times or more after its own words."""
    if least == 0:
        return vocabulary
    counts: Counter[str] = Counter()
    for info in shards.infos("train"):
        shard = shards.open(info)
        seen = np.bincount(shard.ids, minlength=len(shard.types))
        counts.update(dict(zip(shard.types, seen.tolist(), strict=True)))
    new = [(word, n) for word, n in counts.items() if n >= least and word not in vocabulary]
    new.sort(key=lambda pair: (-pair[1], pair[0]))
    old = vocabulary.counts
    added = None if old is None else [*old, *(n for _, n in new)]
    return Vocabulary([*vocabulary.words, *(word for word, _ in new)], added)


def _lr_of(bilm: BiLM, freeze: list[str], decay: float) -> dict[str, float]:
    """What multiplies each parameter's learning rate: 0 where frozen, decay^depth elsewhere."""
    layers = bilm.config.layers
    known = ["encoder", *(f"lstm.{k}" for k in range(1, layers + 1)), "softmax"]
    for name in freeze:
        if name not in known:
            raise ElmoError(f"finetune.freeze may name {', '.join(known)}; found {name!r}")
    found = {}
    for name, _ in bilm.named_parameters():
        layer = 0 if name.startswith("encoder") else int(name.split(".")[2]) + 1
        frozen = ("encoder" if layer == 0 else f"lstm.{layer}") in freeze
        found[f"bilm.{name}"] = 0.0 if frozen else decay ** (layers + 1 - layer)
    return found


def _perplexities(job: Job, general: Job | None, workers: Workers) -> dict[str, Any]:
    """Held-out perplexity of the job's text, and of general text beside task text."""
    if general is None:
        return {"general": heldout_perplexity(job, workers=workers).to_dict()}
    return {
        "task": heldout_perplexity(job, workers=workers).to_dict(),
        "general": heldout_perplexity(general, workers=workers).to_dict(),
    }


def _remembered(path: Path, workers: Workers, compute: Any) -> dict[str, Any]:
    """What was computed before the first step: the weights it needs are gone after a restart."""
    if path.exists():
        return read_json(path)
    found = compute()
    if workers.rank == 0:
        write_json(path, found)
    return found  # type: ignore[no-any-return]


class _Live:
    """Hears what the training reports: MLflow's curves, and the line the driver shows."""

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        import os

        os.environ.setdefault("MLFLOW_TRACKING_URI", config["tracking_uri"])
        self.log, self.path = tracking.Run(config["run_id"]), path

    def __call__(self, kind: str, figures: dict[str, float]) -> None:
        named = {f"{kind}.{name}": value for name, value in figures.items() if name != "step"}
        self.log.metrics(named, step=int(figures["step"]))
        write_json(self.path, {"kind": kind, **figures})


@contextmanager
def _shown(stage: str, path: Path, precision: str) -> Iterator[None]:
    """Show on the terminal how the training goes, from whichever worker it comes."""
    path.unlink(missing_ok=True)
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(stage, path, precision, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(stage: str, path: Path, precision: str, done: threading.Event) -> None:
    seen, shown = "", 0.0
    pause = 2 if sys.stderr.isatty() else 20
    while not done.wait(0.5):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == seen or (time.monotonic() - shown < pause and '"train"' in text):
            continue
        seen, shown = text, time.monotonic()
        figures = json.loads(text)
        if figures["kind"] == "machine":
            told = hint(precision, figures)
            if told:
                print(f"  {stage}: {told}", file=sys.stderr, flush=True)
            continue
        if figures["kind"] == "heldout":
            line = f"held-out perplexity {figures['average']:.1f}"
        else:
            line = (
                f"perplexity {figures['perplexity']:.1f}, "
                f"{figures['tokens_per_second']:,.0f} tokens/s, "
                f"{figures['seconds_left']:.0f} s left, "
                f"gradient norm {figures['gradient_norm']:.2f} "
                f"({figures['clipped']:.0%} clipped), {figures['peak_memory_mb']:.0f} MB"
            )
        print(f"  {stage}: step {figures['step']:.0f}, {line}", file=sys.stderr, flush=True)
