"""The check of a whole run before its first stage: all that the cluster lacks, in one error."""

from collections.abc import Iterable
from pathlib import Path

from elmo.errors import ElmoError
from elmo.io.location import Location

from ..settings import params as settings
from ..settings.cluster import Cluster, export_addresses
from . import preflight, workers

TRAINING = ("pretrain", "finetune")


def check_run(cluster: Cluster, stages: Iterable[str]) -> None:
    """Check that the cluster at `cluster.address` can run these stages of this folder's project.

    Raises one `ElmoError` with all that is wrong.
    """
    export_addresses(cluster)
    params = settings.load(Path("params.yaml"))
    trains = not set(TRAINING).isdisjoint(stages)
    problems = [workers.NO_WORKERS] if trains and not cluster.workers else []
    with workers.session() as ray:
        problems += preflight.find_problems(
            ray,
            [Location(cluster.storage or "dvc.yaml")],
            urls=[*params.corpus.general, *params.corpus.domain],
        )
    if problems:
        raise ElmoError("; ".join(problems))
