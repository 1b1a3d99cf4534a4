"""Ray Train as the stages call it, with what these tests do not look at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster


def fit(folder: Path, cluster: Cluster, loop: Callable[..., Any] = max, config: Any = None) -> Any:
    """Return what `loop` returns, trained as `train` with its work in `folder`.

    Not `print`: Ray Train replaces it, and it can't be pickled then."""
    return workers.fit(
        loop,
        {} if config is None else config,
        cluster=cluster,
        label="train",
        name="train",
        storage=Location(folder),
        stop_flag=folder / "stop",
    )
