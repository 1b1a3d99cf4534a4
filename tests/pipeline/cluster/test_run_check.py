"""What a cluster lacks for a run, said before its first stage, in one answer."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.cluster import preflight, run_check, workers
from pipeline.settings import params as settings
from pipeline.settings.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
STAGES = ("tokenize", "pretrain")


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
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    project()
    return Cluster(address=address, workers=1, cpus=1)


def project(**changed: dict[str, Any]) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    for section, values in changed.items():
        params[section] |= values
    Path("params.yaml").write_text(yaml.safe_dump(params))


@pytest.mark.ray
def test_a_cluster_that_can_do_the_stages(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_check.check_run(cluster, STAGES)
    assert capsys.readouterr().err == ""


@pytest.mark.ray
def test_all_that_is_wrong_is_one_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "LEAST_FREE", 10**18)
    lacking = Cluster(address=cluster.address, cpus=1, tracking_uri="http://127.0.0.1:1")
    with pytest.raises(ElmoError) as raised:
        run_check.check_run(lacking, STAGES)
    said = str(raised.value)
    for words in (
        "workers is 0",
        "elmo submit --env ELMO_WORKERS=1",
        "MB free in",
        "the tracking server does not answer",
    ):
        assert words in said
    with pytest.raises(ElmoError) as raised:
        run_check.check_run(lacking, ["tokenize"])
    assert "workers is 0" not in str(raised.value)  # nothing trains


@pytest.mark.ray
def test_a_text_that_no_package_here_reads(cluster: Cluster) -> None:
    """fsspec knows LakeFS, and none of the project's extras installs its package."""
    project(corpus={"general": ["lakefs://repository/main/a.txt"]})
    with pytest.raises(ElmoError, match="lakefs_spec is not installed; use one image for all"):
        run_check.check_run(cluster, STAGES)


@pytest.mark.ray
def test_what_training_waits_for_is_said_and_what_it_can_not_get_is_refused(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_check.check_run(Cluster(address=cluster.address, workers=2, cpus=1, gpu=True), STAGES)
    assert (
        "0 of 2 workers of 1 cores and 1 GPU have room on this cluster as it is (1 cores and 0 "
        "GPUs); training waits 10 minutes for more"
    ) in capsys.readouterr().err
    project(vocab={"max_words": 2**31})
    with pytest.raises(
        ElmoError, match=r"^training takes \d+\.\d GB of memory or more, and no node"
    ):
        run_check.check_run(cluster, STAGES)


@pytest.mark.ray
def test_a_node_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    out = [Location(Path("out").absolute())]
    before = list(Path().iterdir())
    with workers.session() as ray:
        assert preflight.check_nodes(ray, out, tracking_uri="sqlite:///x") == 1
        monkeypatch.setattr(preflight, "LEAST_FREE", 10**18)
        with pytest.raises(ElmoError, match=r"^node \S+ \([\d.]+\): .* MB free in"):
            preflight.check_nodes(ray, out, tracking_uri=None)
    assert list(Path().iterdir()) == before


@pytest.mark.ray
def test_a_check_whose_process_dies_is_made_again(cluster: Cluster) -> None:
    """The tracking server, asked the first time, kills the process that asks."""
    killed: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if not killed and process.cmdline()[:1] == ["ray::check_node"]:
                        process.kill()
                        killed.append(process.pid)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with workers.session() as ray:
            out = [Location(Path("out").absolute())]
            assert preflight.check_nodes(ray, out, tracking_uri=uri) == 1
        server.shutdown()
    assert killed


def test_the_memory_of_training_is_that_of_two_checkpoints(tmp_path: Path) -> None:
    """One is 6.05 GB at the original size with 800,000 words."""
    project_file = tmp_path / "params.yaml"
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    original = yaml.safe_load((ROOT / "presets" / "original.yaml").read_text())
    params["pretrain"]["network"] |= original["pretrain"]["network"]
    params["pretrain"]["training"]["optimizer"]["name"] = "adamw"
    params["vocab"]["max_words"] = 800_000
    project_file.write_text(yaml.safe_dump(params))
    found = run_check.training_bytes(settings.load(project_file))
    assert found == pytest.approx(2 * 6.05e9, rel=0.01)
