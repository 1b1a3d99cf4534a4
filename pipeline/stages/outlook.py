"""Estimates of the hours and bytes that the next stages will take, printed where they are large.

Hours follow from training steps timed on this machine, so none are estimated for a remote cluster,
nor for short work.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import ElmoError
from elmo.settings import NetworkSettings, TrainingSettings

from ..cluster import workers
from ..settings.cluster import Cluster
from ..terminal.progress import human_size, say

if TYPE_CHECKING:
    from ..settings.params import Params

HOUR = 3600.0
LARGE = 1_000_000_000  # bytes of vectors from which their room is looked at
MATTERS = 0.1  # of the free disk
WORTH = 1e14  # operations of all products from which steps are timed: hundreds of seconds of a core


def warn_of_long_work(
    text: str,
    *,
    tokens: int,
    train_tokens: int,
    params: "Params",
    cluster: Cluster,
    home: Path | None,
) -> None:
    """Print how long training and embedding a tokenized text will take, and the store's size.

    Only what is long or large is printed: from an hour on, and a store that takes much of the free
    disk. `text` is "general" or "domain", `tokens` and `train_tokens` count it with and without its
    held-out part; `home` is a folder on the disk of the future store, None at a URL.
    """
    from elmo.store.layout import choose_layers

    name = "pretrain" if text == "general" else "finetune"
    training: TrainingSettings = getattr(params, name).training
    if not _taken(name, params) and (seconds := _seconds(train_tokens, training, params, cluster)):
        hours = seconds * training.epochs / HOUR
        times = f" × {training.epochs} epochs" if training.epochs > 1 else ""
        if hours >= 1:
            say(
                f"{name}: {train_tokens:,} tokens{times} take about "
                f"{hours:,.0f} hours: {train_tokens / seconds:,.0f} tokens/s, by steps timed on "
                f"this machine; {name}.training.epochs, pretrain.network, less text make it shorter"
            )
    if text == "domain":
        warn_of_long_embedding(tokens, params, cluster)
        layer = layer_bytes(tokens, params)
        layers = choose_layers(params.features.layers, model_layers=_network(params).layers + 1)
        size = layer * len([name for name in layers if name != "layer_0"])
        if home and size >= LARGE and size > MATTERS * (free := free_bytes(home)):
            say(
                f"features: {tokens:,} tokens will take {human_size(size)}, {human_size(free)} are "
                f"free; to make it less, {advice_for_smaller_store(layer, params.features.dtype)}"
            )


def warn_of_long_embedding(tokens: int, params: "Params", cluster: Cluster) -> None:
    """Print how long embedding so many tokens takes at most, if that is an hour or more.

    It is taken to be as slow as training steps, which compute more.
    """
    seconds = _seconds(tokens, params.finetune.training, params, cluster) or 0.0
    if seconds >= HOUR:
        say(
            f"features: {tokens:,} tokens take up to {seconds / HOUR:,.0f} hours (training steps "
            "of as many, timed on this machine); less text in corpus.domain makes it shorter"
        )


def advice_for_smaller_store(layer: int, dtype: str) -> str:
    """Return advice, for a message, on how to make a store smaller.

    `layer` is the size of one layer in bytes, `dtype` that of the vectors.
    """
    settings = [f'features.layers to "top" ({human_size(layer)})']
    if dtype != "int8":
        settings.append("features.dtype to int8 (half of float16)")
    return (
        f"set {' or '.join(settings)}, name less text in corpus.domain, or name a URL as storage "
        "in cluster.yaml"
    )


def layer_bytes(tokens: int, params: "Params") -> int:
    """Return the bytes that one layer's vectors of so many tokens take."""
    from elmo.store.dtypes import DTYPES

    return (
        tokens * 2 * _network(params).projection * np.dtype(DTYPES[params.features.dtype]).itemsize
    )


def free_bytes(home: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    there = next(path for path in (home, *home.parents) if path.is_dir())
    return shutil.disk_usage(there).free


def _taken(name: str, params: "Params") -> bool:
    """Tell whether a stage takes the model as it is: a named one, or one that has read the text."""
    if name == "pretrain":
        return bool(params.pretrain.model)
    alone = bool(params.corpus.general) and params.corpus.general == params.corpus.domain
    return alone and not params.pretrain.model


def _seconds(
    tokens: int, training: TrainingSettings, params: "Params", cluster: Cluster
) -> float | None:
    """Return the seconds of training steps on so many tokens; None where none are timed."""
    import torch

    from elmo.train import step_speed

    network = _network(params)
    steps = tokens / (training.rows * training.window)
    work = steps * training.epochs * step_speed.count_operations(network, training)
    if workers.elsewhere() or work < WORTH or (cluster.gpu and not workers.has_cuda()):
        return None
    device = torch.device("cuda" if cluster.gpu else "cpu")
    try:
        timed = step_speed.cached_step_seconds(
            network, training, device=device, threads=cluster.cpus
        )
    except ElmoError as error:  # what this is to foresee may go all the same
        say(f"how long training takes is not known: {error}")
        return None
    if not timed.tokens:
        return None
    times = {"float32": timed.float32_s, "bfloat16": timed.bfloat16_s}
    seconds = times.get(training.precision, min(times.values()))
    return tokens * seconds / timed.tokens / max(1, cluster.workers)


def _network(params: "Params") -> NetworkSettings:
    from elmo.train.step_speed import read_network

    return read_network(params.pretrain.model) if params.pretrain.model else params.pretrain.network
