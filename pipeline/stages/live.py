"""The newest figures of a training: written by the first worker, shown on the driver's terminal."""

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

FILE = "live.json"  # in the run's folder
SILENCE_SECONDS = 40.0  # without figures after which the terminal says so
_DISK_POLL, _URL_POLL = 0.5, 2.0  # seconds between reads of the report: on a disk, at a URL


class Reports:
    """Receives the training's reports; the first worker leaves the newest in the run's `folder`."""

    def __init__(self, folder: Location, *, is_first_worker: bool) -> None:
        self.folder, self.is_first_worker, self.written_at = folder, is_first_worker, 0.0
        self.began: dict[str, float] = {}

    def __call__(self, kind: str, figures: dict[str, float]) -> None:
        """Take a report of the training: its kind and its figures."""
        if kind == "machine":
            self.began = {**figures, "at": time.time()}
        self._write(kind, figures, is_throttled=kind == "train" and self.folder.local is None)

    def show_measuring(self, text: str) -> OnWindow:
        """Return a callback that shows the progress of measuring a held-out text."""
        return lambda read, tokens: self._write(
            "measure", {"text": text, "read": read, "heldout_tokens": tokens}, is_throttled=True
        )

    def _write(self, kind: str, figures: Mapping[str, Any], *, is_throttled: bool) -> None:
        """Write a report; if `is_throttled`, only when the last one is old enough."""
        is_due = time.monotonic() - self.written_at >= poll_seconds(self.folder)
        if self.is_first_worker and (is_due or not is_throttled):
            self.written_at = time.monotonic()
            self.folder.write_json(FILE, {"kind": kind, **figures, "began": self.began})


def poll_seconds(folder: Location) -> float:
    """Return the seconds between two reads of the newest report."""
    return _DISK_POLL if folder.local else _URL_POLL


def read_newest(folder: Location) -> str:
    """Return the newest report as JSON; empty if there is none yet or the store does not answer."""
    try:
        return folder.read(FILE).decode()
    except (FileNotFoundError, ElmoError):
        return ""


@contextmanager
def run_alongside(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Call `function(*arguments, stop)` in a thread until the block ends: then `stop` is set."""
    stop = threading.Event()
    thread = threading.Thread(target=function, args=(*arguments, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def showing_reports(stage: str, folder: Location) -> Iterator[None]:
    """Show the training's progress on the terminal during the block."""
    folder.delete(FILE)
    with run_alongside(show_reports, stage, folder):
        yield


def show_reports(stage: str, folder: Location, stop: threading.Event) -> None:
    """Show the reports of the first worker, in `folder`, until `stop` is set."""
    last_text, heard_at, heldout_note, activity = "", time.monotonic(), "", ""
    said_at = heard_at
    began: dict[str, float] = {}
    with ExitStack() as stack:
        progress: Progress | None = None
        while not stop.wait(poll_seconds(folder)):
            text = read_newest(folder)
            time_now = time.monotonic()
            if text in ("", last_text):
                if time_now - said_at > SILENCE_SECONDS:
                    said_at = time_now
                    guess = "evaluating or saving" if progress else "still starting"
                    reason = activity or f"{guess}, or a machine is busy or does not answer"
                    say(f"{stage}: no progress for {time_now - heard_at:.0f} s: {reason}")
                continue
            last_text, heard_at, said_at = text, time_now, time_now
            figures = json.loads(text)
            activity = _activity(figures)
            if figures["kind"] != "train":
                show_activity(activity)
            if figures.get("began", began) != began:  # its own report may have been missed
                began = figures["began"]
                if began.get("step"):
                    say(f"{stage}: resuming from step {began['step']:.0f}")
            if figures["kind"] == "heldout":
                heldout_note = f", held-out perplexity {figures['average']:.1f}"
                log_detail(f"step {figures['step']:.0f}{heldout_note}")
            elif figures["kind"] == "train":
                tokens = figures["tokens"]
                if progress is None:
                    tokens_left = figures["seconds_left"] * figures["tokens_per_second"]
                    bar = Progress(stage, tokens + tokens_left, unit="tokens", completed=tokens)
                    progress = stack.enter_context(bar)
                progress.set_completed(tokens, _format_note(figures, heldout_note))


def _activity(figures: Mapping[str, Any]) -> str:
    """Return which text the workers measure and how far they are, else ""."""
    if figures["kind"] != "measure":
        return ""
    return (
        f"measuring {figures['heldout_tokens']:,} held-out tokens of the {figures['text']} text, "
        f"{figures['read'] / max(1, figures['heldout_tokens']):.0%} done"
    )


def _format_note(figures: Mapping[str, float], heldout_note: str) -> str:
    return (
        f"step {figures['step']:.0f}, perplexity {figures['perplexity']:.1f}{heldout_note}, "
        f"gradient norm {figures['gradient_norm']:.2f} ({figures['clipped']:.0%} clipped), "
        f"{figures['peak_memory_mb']:.0f} MB"
    )
