"""What the profilers of the faces share: one recording at a time, begun and ended by calls that say no file."""

from __future__ import annotations

import os
import threading
from itertools import chain, count
from pathlib import Path

from forebay.config import TRACE
from forebay.observe.tracing.session import Trace

__all__ = ["begin", "changing", "end", "file_asked_for", "going_on", "usual_file"]

changing = threading.RLock()  # a face that has more to begin holds it, too
_current: list[tuple[str, Trace]] = []  # one, or none, and whose it is


def begin(
    by: str, path: Path, *, intervals: bool = True, events: bool = True, wait_until_completed: bool = False
) -> None:
    """Record from now on, for the file, or another of its kind: none that is there is overwritten.

    Nothing where a recording goes on already. Raises as `Trace.start` does.
    """
    with changing:
        if not going_on():
            made = Trace(
                _not_there(path), intervals=intervals, events=events, wait_until_completed=wait_until_completed
            )
            made.start()
            _current[:] = [(by, made)]


def going_on() -> bool:
    """Whether a recording does; never one of the process that this one was forked from."""
    return any(trace.running for _, trace in _current)


def end(by: str) -> bool:
    """End the recording that goes on, if the same face began it, and write it; whether it did. OSError."""
    with changing:
        going = [trace for whose, trace in _current if whose == by]
        if going:
            _current.clear()
    for trace in going:
        trace.stop()
    return bool(going)


def file_asked_for() -> Path | None:
    """What FOREBAY_TRACE says."""
    return TRACE.value()


def usual_file() -> Path:
    """Where a trace goes if nobody said: into the current directory, named after the process."""
    return Path(f"forebay-trace-{os.getpid()}.pftrace")


def _not_there(path: Path) -> Path:
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], others) if not each.exists())


def _in_child() -> None:
    global changing  # noqa: PLW0603 -- another thread of the parent may have held the old one
    changing = threading.RLock()
    _current.clear()


os.register_at_fork(after_in_child=_in_child)
