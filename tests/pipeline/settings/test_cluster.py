"""How the work is run: defaults, cluster.yaml and variables, in that order."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from elmo.errors import ElmoError
from pipeline.settings import cluster
from pipeline.settings.cluster import Cluster
from tests.programs import ROOT, call


def test_the_example_holds_every_field_and_its_default() -> None:
    example = ROOT / "cluster.example.yaml"
    assert cluster.load(example) == (Cluster(), "cluster: the defaults")
    lines = example.read_text().splitlines()
    assert [line.split(":")[0] for line in lines if line[0] != "#"] == list(vars(Cluster()))


def test_a_variable_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("workers: 2\ncpus: 4\ngpu: true\n")
    monkeypatch.setenv("ELMO_CPUS", "8")
    monkeypatch.setenv("ELMO_ACTORS", "3")
    monkeypatch.setenv("ELMO_STORAGE", "s3://me:secret@bucket/elmo")
    found, said = cluster.load(file)
    assert found.storage == "s3://me:secret@bucket/elmo"
    assert (found.workers, found.cpus, found.gpu, found.actors) == (2, 8, True, 3)
    assert said == (
        f"cluster: workers 2 ({file}), cpus 8 (ELMO_CPUS), gpu True ({file}), actors 3 "
        "(ELMO_ACTORS), storage s3://bucket/elmo (ELMO_STORAGE); defaults otherwise"
    )
    monkeypatch.setenv("ELMO_GPU", "false")
    assert not cluster.load(file)[0].gpu


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ELMO_WORKERS", "many", "ELMO_WORKERS must be a whole number of at least 0"),
        ("ELMO_WORKERS", "-1", "ELMO_WORKERS must be a whole number of at least 0"),
        ("ELMO_GPU", "maybe", "ELMO_GPU must be true or false, found 'maybe'"),
        ("ELMO_WAIT_MINUTES", "nan", "ELMO_WAIT_MINUTES must be a number above 0"),
    ],
)
def test_a_bad_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ElmoError, match=message):
        cluster.load(tmp_path / "absent.yaml")


def test_a_bad_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("workers: 1\nkeep: 0\n")
    with pytest.raises(ElmoError, match="cluster.yaml:2: keep must be a whole number of at least"):
        cluster.load(file)


@pytest.mark.parametrize("text", ["relative/dir", "/shared", "s3://", "file:///", "s3:/bucket"])
def test_storage_is_a_url_with_a_bucket_or_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"storage: {text}\n")
    with pytest.raises(ElmoError, match="cluster.yaml:1: storage must be a URL such as s3://"):
        cluster.load(file)
    monkeypatch.setenv("ELMO_STORAGE", text)
    with pytest.raises(ElmoError, match="ELMO_STORAGE must be a URL such as s3://"):
        cluster.load(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["", "s3://bucket/elmo", "file:///tmp/x", "gs://b"])
def test_storage_takes_urls(text: str) -> None:
    assert Cluster(storage=text).storage == text


@pytest.mark.parametrize("ways", [["--temp"], ["--queue", "--run-all"]])
@pytest.mark.slow
def test_an_experiment_in_a_copy_of_the_project_has_the_projects_settings(
    tmp_path: Path, ways: list[str]
) -> None:
    """cluster.yaml, which git ignores, is not in the copy that DVC makes."""
    code = "import pathlib; from pipeline.settings.cluster import load; "
    code += "line = load(pathlib.Path('cluster.yaml'))[1]; pathlib.Path('out').write_text(line)"
    stage = {"cmd": f'{sys.executable} -c "{code}"', "outs": [{"out": {"cache": False}}]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"a": stage}}))
    (tmp_path / "cluster.yaml").write_text("gpu: true\n")
    (tmp_path / ".gitignore").write_text("/cluster.yaml\n")
    own = {name: text for name, text in os.environ.items() if not name.startswith("ELMO_")}
    own |= {"DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(ROOT)}
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    dvc = [sys.executable, "-m", "dvc"]
    commands = [[*git, "init", "-q"], [*dvc, "init", "-q"], [*git, "add", "."]]
    commands += [[*git, "commit", "-qm", "x"], [*dvc, "exp", "run", ways[0], "-n", "try"]]
    commands += [[*dvc, "exp", "run", way] for way in ways[1:]]
    for command in [*commands, [*dvc, "exp", "apply", "try"]]:
        call(*command, cwd=tmp_path, env=own)
    assert "gpu True" in (tmp_path / "out").read_text()
