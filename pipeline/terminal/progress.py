"""The progress of long work: a bar on a terminal, elsewhere one line per minute.

`ELMO_QUIET`, which `elmo --quiet` sets, hides both, and what `say` prints.
"""

import os
import sys
import threading
import time

from tqdm import tqdm

LINE_SECONDS = 60.0  # seconds between lines without a terminal
_open_displays: list["Progress"] = []  # only the last one is shown
_draw_lock = threading.RLock()


class Progress:
    """A progress display: how much of `total` is done, the speed and the time left.

    `label` names the work. `unit` is the plural noun of the things counted; if empty, only the time
    is shown. `total` is None if unknown. `completed` is the amount that an earlier start did; it
    does not count towards the speed. Use it in a `with` block; the newest open one is shown.
    """

    def __init__(self, label: str, total: float | None, *, unit: str, completed: float = 0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.start_time = self.last_update = time.monotonic()
        self.initial_amount, self.completed, self.note = completed, completed, ""
        self.is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)
        self._bar: tqdm[object] | None = None

    def __enter__(self) -> "Progress":
        with _draw_lock:
            for progress in _open_displays:
                progress._clear()
            _open_displays.append(self)
        if not is_quiet():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with _draw_lock:
            _open_displays.remove(self)

    def advance(self, amount: float = 1) -> None:
        """Add `amount` to the amount completed."""
        self.set_completed(self.completed + amount)

    def set_completed(self, completed: float, note: str = "") -> None:
        """Set the amount completed in total; `note` is shown after the figures."""
        self.completed, self.note, self.last_update = completed, note, time.monotonic()

    def describe(self) -> str:
        """Return as text what is done, the speed, the time so far and the time left."""
        seconds = max(1e-9, time.monotonic() - self.start_time)
        if not self.unit:
            return ", ".join(filter(None, [f"{clock_time(seconds)} so far", self.note]))
        rate = (self.completed - self.initial_amount) / max(
            1e-9, self.last_update - self.start_time
        )
        total_text = f" of {self.total:,.0f}" if self.total is not None else ""
        phrases = [f"{self.completed:,.0f}{total_text} {self.unit}"]
        if rate > 0:
            speed, time_unit = (rate, "s") if rate >= 1 else (60 * rate, "min")
            phrases.append(f"{speed:,.{0 if speed >= 10 else 1}f} {self.unit}/{time_unit}")
        phrases.append(f"{clock_time(seconds)} so far")
        if rate > 0 and self.total is not None:
            remaining_seconds = (self.total - self.completed) / rate - (
                time.monotonic() - self.last_update
            )
            if remaining_seconds > -1:  # else the estimate was too short
                phrases.append(f"{clock_time(max(0.0, remaining_seconds))} left")
        return ", ".join([*phrases, self.note] if self.note else phrases)

    def _refresh(self) -> None:
        while not self._has_ended.wait(0.25 if self.is_terminal else LINE_SECONDS):
            with _draw_lock:
                if _open_displays[-1] is self and self.is_terminal:
                    self._draw()
                elif _open_displays[-1] is self:
                    say(f"{self.label}: {self.describe()}")
        self._clear()

    def _draw(self) -> None:
        if self._bar is None:
            bar = "{percentage:3.0f}%|{bar:20}| " if self.total else ""
            self._bar = tqdm(
                total=self.total,
                initial=self.initial_amount,
                desc=self.describe(),
                bar_format=f"  {self.label}: {bar}{{desc}}",
                leave=False,
                ncols=_terminal_width(),
                nrows=20,  # otherwise a terminal of unknown size would show nothing
                file=sys.stderr,
            )
        self._bar.ncols = _terminal_width()
        self._bar.n = min(self.completed, self.total or self.completed)
        self._bar.set_description_str(self.describe())

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def show_activity(activity: str) -> None:
    """Show `activity`, such as a wait, on the newest progress bar until it is updated."""
    if _open_displays:
        _open_displays[-1].note = activity


def log_detail(line: str) -> None:
    """Print one line that helps to find the cause of a problem, if `elmo --verbose` is set."""
    if os.environ.get("ELMO_VERBOSE"):
        say(line)


def say(line: str) -> None:
    """Print one line about the work to standard error, above the progress bar if there is one."""
    if not is_quiet():
        tqdm.write(f"  {line}", file=sys.stderr)
        sys.stderr.flush()


def is_quiet() -> bool:
    """Tell whether `--quiet` (ELMO_QUIET) asked for results and errors only."""
    return bool(os.environ.get("ELMO_QUIET"))


def _terminal_width() -> int:
    """Return the width of the terminal, 80 if unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


def clock_time(seconds: float) -> str:
    """Return a time as text, such as `0:05` or `1:00:00`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


def human_size(count: float) -> str:
    """Return a number of bytes with its unit, such as `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
