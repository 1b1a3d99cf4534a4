"""What a cluster lacks for a run, said before its first stage, in one answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.cluster import preflight, run_check, workers
from pipeline.settings.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
STAGES = ("tokenize", "pretrain")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head that works on nothing and one node of one core."""
    workers._set_up()  # Ray remembers how this process proves who it is: one way for all tests
    from ray.cluster_utils import Cluster as Nodes

    options = {"object_store_memory": 80 << 20, "include_dashboard": False}
    whole = Nodes(initialize_head=True, head_node_args=options | {"num_cpus": 0})
    try:
        whole.add_node(num_cpus=1, object_store_memory=80 << 20)
        whole.wait_for_nodes()
        yield whole.address
    finally:
        whole.shutdown()


@pytest.fixture
def cluster(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its settings; the current folder is a project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", address)
    project()
    return Cluster(address=address, workers=1, cpus=1)


def project(**changed: dict[str, Any]) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    for section, values in changed.items():
        params[section] |= values
    Path("params.yaml").write_text(yaml.safe_dump(params))


def test_a_cluster_that_can_do_the_stages(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_check.check_run(cluster, STAGES)
    assert capsys.readouterr().err == ""


def test_all_that_is_wrong_is_one_answer_that_names_the_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "code_digest", lambda: "that of another version")
    lacking = Cluster(address=cluster.address, cpus=1)
    with pytest.raises(
        ElmoError, match=r"^workers is 0, .*; node \S+ \([\d.]+\): \S+ holds another version"
    ):
        run_check.check_run(lacking, STAGES)
    with pytest.raises(ElmoError, match="^node "):
        run_check.check_run(lacking, ["tokenize"])  # nothing trains


def test_a_text_that_no_package_here_reads(cluster: Cluster) -> None:
    """fsspec knows LakeFS, and none of the project's extras installs its package."""
    project(corpus={"general": ["lakefs://repository/main/a.txt"]})
    with pytest.raises(ElmoError, match="lakefs_spec is not installed; use one image for all"):
        run_check.check_run(cluster, STAGES)


def test_the_check_of_a_stage_leaves_nothing(cluster: Cluster) -> None:
    before = list(Path().iterdir())
    with workers.session() as ray:
        assert preflight.check_nodes(ray, [Location(Path("out").absolute())]) == 1
    assert list(Path().iterdir()) == before
