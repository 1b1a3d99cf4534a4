"""A pool on a cluster that has no core at first: it waits, and starts when a node comes."""

import threading
from pathlib import Path

import pytest

from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.ray


class Double:
    def __call__(self, item: int) -> int:
        return 2 * item


def test_a_pool_starts_from_nothing_when_a_node_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    workers._set_ray_defaults()
    import ray
    from ray.cluster_utils import Cluster as Nodes

    memory = 80 << 20
    nodes = Nodes(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": memory}
    )
    try:
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(address=nodes.address, log_to_driver=False, runtime_env=environment)
        monkeypatch.setenv("RAY_ADDRESS", nodes.address)
        found: list[int] = []
        cluster = Cluster(wait_minutes=5)

        def work() -> None:
            found.extend(
                workers.map_actors(Double, [], range(4), cluster=cluster, label="features")
            )

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(3)
        assert thread.is_alive() and not found
        nodes.add_node(num_cpus=1, object_store_memory=memory)
        thread.join(200)
        assert sorted(found) == [0, 2, 4, 6]
    finally:
        ray.shutdown()
        nodes.shutdown()
