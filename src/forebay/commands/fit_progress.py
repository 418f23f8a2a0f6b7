"""The progress line of `forebay fit` on a terminal: which cards run, for how long, and the peak so far."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forebay._base.byte_sizes import format_bytes
from forebay._base.signal_mask import signals_blocked
from forebay.commands.terminal import Terminal

__all__ = ["FitProgress", "fit_progress"]

_SECONDS = 0.5  # between two lines


@dataclass
class _Run:
    """A card that runs."""

    started: float
    peak: int = 0  # bytes in blocks


class FitProgress:
    """The state of all runs, of which the threads that wait for them tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, _Run] = {}
        self._started = time.monotonic()
        self.count = self.done = 0  # cards, and those that have a result

    def begin(self, card: str) -> None:
        """Note that a run begins."""
        with self._lock:
            self._running[card] = _Run(time.monotonic())

    def reached(self, card: str, peak: int) -> None:
        """Note the peak of the bytes in blocks so far."""
        with self._lock:
            if (found := self._running.get(card)) is not None:
                found.peak = max(found.peak, peak)

    def end(self, card: str) -> None:
        """Note that a run has ended."""
        with self._lock:
            self._running.pop(card, None)

    def line(self, now: float) -> str:
        """Return the line."""
        with self._lock:
            runs = [f"{card} {_seconds(now - run.started)}{_peak(run)}" for card, run in self._running.items()]
            done = f", {self.done} of {self.count} cards done" if self.count > 1 else ""
        return f"forebay: {_seconds(now - self._started)}{done}" + "".join(f"; {each}" for each in runs)


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _peak(run: _Run) -> str:
    return f", peak so far {format_bytes(run.peak)}" if run.peak else ""


@contextmanager
def fit_progress() -> Iterator[FitProgress | None]:
    """Context manager: print the line on standard error while the runs last; None if that is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    progress, terminal, stopped = FitProgress(), Terminal(), threading.Event()

    def show() -> None:
        while not stopped.wait(_SECONDS):
            line = progress.line(time.monotonic())[: terminal.console().width - 1]
            terminal.print(f"\r{line}\x1b[K")

    thread = threading.Thread(target=show, name="forebay progress", daemon=True)
    with signals_blocked():
        thread.start()
    try:
        yield progress
    finally:
        stopped.set()
        thread.join()
        terminal.print("\r\x1b[K")
        terminal.close()
