"""Long work shows a bar on a terminal, and lines with the same figures in a log."""

import io
import json
import re
import sys
import threading
from pathlib import Path

import pytest

from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from pipeline.stages import live
from pipeline.terminal import progress
from tests.elmo.conftest import save_tiny_model
from tests.pipeline.command_line import elmo


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line comes every few milliseconds instead of every minute."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)


def until(condition: threading.Event) -> None:
    assert condition.wait(120)


class Log(io.StringIO):
    """Standard error that says when a text has been written to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.there = text, threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.text in self.getvalue():
            self.there.set()
        return written


def test_figures() -> None:
    shown = progress.Progress("features", 20, unit="shards", completed=5)
    assert re.fullmatch(r"5 of 20 shards, 0:00 so far", shown.describe())
    shown.start_time -= 60
    shown.set_completed(11, "a note")
    figures = "11 of 20 shards, 6.0 shards/min, 1:00 so far, 1:30 left, a note"
    assert shown.describe() == figures
    shown.start_time -= 3 * 3600
    assert "3:01:00 so far" in shown.describe()
    of_a_pipe = progress.Progress("embed", None, unit="kB")
    of_a_pipe.start_time -= 10
    of_a_pipe.set_completed(1500)
    assert of_a_pipe.describe() == "1,500 kB, 150 kB/s, 0:10 so far"


@pytest.mark.usefixtures("soon")
def test_a_log_gets_lines_while_one_shard_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("  tokenize: 0 of 1 shards, 0:00 so far\n")
    monkeypatch.setattr(sys, "stderr", log)
    work = workers.map_tasks(
        lambda item: until(log.there), [1], cluster=Cluster(), label="tokenize"
    )
    assert list(work) == [None]
    assert "\r" not in log.getvalue() and "|" not in log.getvalue()


@pytest.mark.usefixtures("soon")
def test_training_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("perplexity 94.3")
    monkeypatch.setattr(sys, "stderr", log)
    row = {"step": 40, "tokens": 1000, "perplexity": 94.3, "gradient_norm": 0.5, "clipped": 0.1}
    row |= {"tokens_per_second": 100.0, "seconds_left": 30.0, "peak_memory_mb": 512.0}
    (tmp_path / "live.json").write_text(json.dumps({"kind": "train", **row}))
    done = threading.Event()
    arguments = ("pretrain", Location(tmp_path), lambda _: None, done)
    thread = threading.Thread(target=live.follow_reports, args=arguments, daemon=True)
    thread.start()
    until(log.there)
    log.text, log.there = "so far, step 41, held-out perplexity 91.2\n", threading.Event()
    heldout = {"kind": "heldout", "step": 41, "average": 91.2}
    (tmp_path / "live.json").write_text(json.dumps(heldout))
    until(log.there)
    done.set()
    thread.join()
    line = next(one for one in log.getvalue().splitlines() if "perplexity" in one)
    assert line.startswith("  pretrain: 1,000 of 4,000 tokens, ")
    assert line.endswith("step 40, perplexity 94.3, gradient norm 0.50 (10% clipped), 512 MB")


def test_a_report_that_is_gone_for_a_while_does_not_end_the_display(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a URL does not answer, or its file is read between its emptying and its writing."""
    monkeypatch.setenv("ELMO_VERBOSE", "1")
    file = tmp_path / "live.json"

    def report(step: int) -> None:
        file.write_text(json.dumps({"kind": "heldout", "step": step, "average": 94.3}))

    looks = iter([lambda: report(5), lambda: file.write_text(""), file.unlink, lambda: report(10)])

    class Done(threading.Event):
        """Changes the file before each look, and is set after the last."""

        def wait(self, timeout: float | None = None) -> bool:
            change = next(looks, None)
            if change:
                change()
            return change is None

    live.follow_reports("pretrain", Location(tmp_path), lambda _: None, Done())
    said = [f"  step {step}, held-out perplexity 94.3" for step in (5, 10)]
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_embed_in_a_log_and_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ELMO_QUIET", "")  # and back to what it was, after --quiet has set it
    save_tiny_model(tmp_path / "model")
    (tmp_path / "in.txt").write_text("he has a gift\n" * 500)
    command = ("embed", tmp_path / "model", "--input", tmp_path / "in.txt", "--pretokenized")
    code, out, err = elmo(*options, *command, "--output", tmp_path / "out.npz")
    assert (code, out) == (0, f"embed: 500 lines in {tmp_path / 'out.npz'}\n"), err
    if options:
        assert err == ""
    else:
        assert re.search(r"^  embed: [\d,]+ lines, .*\d+:\d\d so far$", err, re.MULTILINE), err
