"""The check of a whole run before its first stage: all that the cluster lacks, in one error."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.io.location import Location

from ..settings import params as settings
from ..settings.cluster import Cluster, export_addresses
from ..terminal.progress import human_size, say
from . import free_cores, preflight, workers

TRAINING = ("pretrain", "finetune")


def check_run(cluster: Cluster, stages: Iterable[str]) -> None:
    """Check that the cluster at `cluster.address` can run these stages of this folder's project.

    Raises one `ElmoError` with all that is wrong. Too few nodes are only reported, since more may
    come.
    """
    export_addresses(cluster)
    params = settings.load(Path("params.yaml"))
    with workers.session() as ray:
        trains = not set(TRAINING).isdisjoint(stages)
        found = [
            *(_training(ray, cluster, params) if trains else ()),
            *preflight.find_problems(
                ray,
                [Location(cluster.storage or "dvc.yaml")],
                urls=[*params.corpus.general, *params.corpus.domain],
                tracking_uri=cluster.tracking_uri,
            ),
        ]
    if found:
        raise ElmoError("; ".join(found))


def _training(ray: Any, cluster: Cluster, params: settings.Params) -> Iterator[str]:
    """Yield what keeps training from beginning; say what it will wait for."""
    if not cluster.workers:
        yield workers.NO_WORKERS
        return
    size = {"cpus": cluster.cpus, "gpus": int(cluster.gpu)}
    fit = free_cores.placeable_workers(ray, **size)
    if fit < cluster.workers:
        of = f"{cluster.workers} workers of {cluster.cpus} cores{' and 1 GPU' * cluster.gpu}"
        say(
            f"{fit} of {of} have room on this cluster as it is "
            f"({free_cores.describe_resources(ray)}); training waits {cluster.wait_minutes:g} "
            "minutes for more (ELMO_WORKERS, ELMO_CPUS, ELMO_GPU)"
        )
    least = training_bytes(params)
    if fit and not free_cores.placeable_workers(ray, **size, memory=least):
        yield (
            f"training takes {human_size(least)} of memory or more, and no node that has room for "
            "a worker has that; lower vocab.max_words or pretrain.network, or add larger nodes"
        )


def training_bytes(params: settings.Params) -> int:
    """Return the memory that training takes at least, in bytes, in float32.

    These are the weights, the optimizer's state and the copy that is saved. Words count where
    `vocab.max_words` bounds them; gradients and activations come on top.
    """
    if params.pretrain.model:
        return 0
    import torch

    from elmo.nn.bilm import BiLM
    from elmo.settings import ModelShape

    network = params.pretrain.network
    with torch.device("meta"):
        body = BiLM(ModelShape(**asdict(network), input_words=None), characters=0)
    numbers = sum(one.numel() for one in body.parameters())
    numbers += params.vocab.max_words * (network.projection + 1)
    kept = 2 if params.pretrain.training.optimizer.name == "adagrad" else 3
    return 2 * 4 * kept * numbers
