"""The newest training report, which the first worker writes and the driver shows."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.train.perplexity import OnWindow

from ..terminal.progress import Progress, log_detail, say, show_activity

LIVE_FILE = "live.json"  # in the run's folder
_DISK_POLL_SECONDS, _URL_POLL_SECONDS = 0.5, 2.0  # seconds between reads of the report


class ReportWriter:
    """A callback for training reports that, on the first worker, writes the newest to `folder`."""

    def __init__(self, folder: Location, *, is_first_worker: bool) -> None:
        self.folder, self.is_first_worker, self.last_write_time = folder, is_first_worker, 0.0
        self.start_figures: dict[str, float] = {}

    def __call__(self, kind: str, figures: dict[str, float]) -> None:
        """Handle a training report: its kind and its figures."""
        if kind == "machine":
            self.start_figures = {**figures, "at": time.time()}
        self._write(kind, figures, is_throttled=kind == "train" and self.folder.local is None)

    def show_measuring(self, text: str) -> OnWindow:
        """Return a callback that reports the progress of measuring a held-out text."""
        return lambda read, tokens: self._write(
            "measure", {"text": text, "read": read, "heldout_tokens": tokens}, is_throttled=True
        )

    def _write(self, kind: str, figures: Mapping[str, Any], *, is_throttled: bool) -> None:
        """Write a report; if `is_throttled`, only when the last one is old enough."""
        is_due = time.monotonic() - self.last_write_time >= _poll_seconds(self.folder)
        if self.is_first_worker and (is_due or not is_throttled):
            self.last_write_time = time.monotonic()
            self.folder.write_json(
                LIVE_FILE, {"kind": kind, **figures, "began": self.start_figures}
            )


def _poll_seconds(folder: Location) -> float:
    """Return the seconds between two reads of the newest report."""
    return _DISK_POLL_SECONDS if folder.local else _URL_POLL_SECONDS


def _read_newest_report(folder: Location) -> str:
    """Return the newest report as JSON; empty if there is none or it cannot be read."""
    try:
        return folder.read(LIVE_FILE).decode()
    except (FileNotFoundError, ElmoError):
        return ""


@contextmanager
def following_reports(
    stage: str, folder: Location, on_report: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    """Show training progress during the block; a thread calls `on_report` with each report."""
    folder.delete(LIVE_FILE)
    stop = threading.Event()
    arguments = (stage, folder, on_report, stop)
    thread = threading.Thread(target=follow_reports, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def follow_reports(
    stage: str, folder: Location, on_report: Callable[[dict[str, Any]], None], stop: threading.Event
) -> None:
    """Show the reports of the first worker, in `folder`, until `stop` is set."""
    last_text, heldout_note = "", ""
    start_figures: dict[str, float] = {}
    with ExitStack() as stack:
        progress: Progress | None = None
        while not stop.wait(_poll_seconds(folder)):
            text = _read_newest_report(folder)
            if text in ("", last_text):
                continue
            last_text, figures = text, json.loads(text)
            if figures["kind"] == "measure":
                show_activity(
                    f"measuring {figures['heldout_tokens']:,} held-out tokens of the "
                    f"{figures['text']} text, "
                    f"{figures['read'] / max(1, figures['heldout_tokens']):.0%} done"
                )
            elif figures["kind"] == "machine":
                show_activity("")
            began = figures.get("began", start_figures)
            if began != start_figures:  # its own report may have been missed
                start_figures = began
                if start_figures.get("step"):
                    say(f"{stage}: resuming from step {start_figures['step']:.0f}")
            if figures["kind"] == "heldout":
                heldout_note = f", held-out perplexity {figures['average']:.1f}"
                step_line = f"step {figures['step']:.0f}{heldout_note}"
                show_activity(step_line)
                log_detail(step_line)
            elif figures["kind"] == "train":
                tokens = figures["tokens"]
                if progress is None:
                    tokens_left = figures["seconds_left"] * figures["tokens_per_second"]
                    bar = Progress(stage, tokens + tokens_left, unit="tokens", completed=tokens)
                    progress = stack.enter_context(bar)
                progress.set_completed(
                    tokens,
                    f"step {figures['step']:.0f}, perplexity {figures['perplexity']:.1f}"
                    f"{heldout_note}, gradient norm {figures['gradient_norm']:.2f} "
                    f"({figures['clipped']:.0%} clipped), {figures['peak_memory_mb']:.0f} MB",
                )
            on_report(figures)
