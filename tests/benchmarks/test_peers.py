"""A peer's environment is made once; one that cannot be made keeps its rows' figures."""

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as page
from benchmarks import peers
from benchmarks.rows import BENCHMARKS

(TRAINING,) = (one for one in BENCHMARKS if one.name == "training_bilm_tf")


def test_without_its_python_a_peer_is_left_out_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = peers.Peer(sys.executable, (), "one")
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    lacking = {"bilm-tf": peers.Peer("python3.7-not-here", (), "two")}
    lacking["bilm-tf-2"] = peers.Peer(str(shim), (), "two")
    monkeypatch.setattr(peers, "PEERS", {"allennlp": other, **lacking})
    found = peers.interpreters(tmp_path)
    assert found == {"allennlp": str(tmp_path / "allennlp" / "bin" / "python")}
    assert capsys.readouterr().err.splitlines() == [
        "bilm-tf: needs python3.7-not-here; its rows keep their figures",
        f"bilm-tf-2: needs {shim}; its rows keep their figures",
    ]
    given = {"text": "t", "peers": tmp_path} | found
    assert not page._is_run(TRAINING, given, only=[])
    with pytest.raises(SystemExit, match="training_bilm_tf needs bilm-tf$"):
        page._is_run(TRAINING, given, only=["training_bilm_tf"])
    with pytest.raises(SystemExit, match="training_bilm_tf needs --peers"):
        page._is_run(TRAINING, {"text": "t"}, only=["training_bilm_tf"])


def test_an_environment_that_is_there_needs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", {"bilm-tf": peers.Peer("python3.7-not-here", (), "two")})
    python = tmp_path / "bilm-tf" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert peers.interpreters(tmp_path) == {"bilm-tf": str(python)}
    peers.make("bilm-tf", python)
