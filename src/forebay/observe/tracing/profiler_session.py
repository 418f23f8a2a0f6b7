"""The trace that the profilers of all device kinds share: one per process, started and stopped without a file name."""

from __future__ import annotations

import os
import threading
from itertools import chain, count
from pathlib import Path

from forebay._base.config import TRACE
from forebay.observe.tracing.session import Trace

__all__ = ["begin", "default_file", "end", "is_active", "lock", "requested_file"]

lock: threading.RLock = threading.RLock()  # also held by profilers that start more than the trace
_current: list[tuple[str, Trace]] = []  # the active trace, if any, and the kind that started it


def begin(
    by: str, path: Path, *, intervals: bool = True, events: bool = True, wait_until_completed: bool = False
) -> None:
    """Start a trace for the device kind `by`. If the file exists, a number is appended to its name.

    Does nothing if a trace is active. Raises as `Trace.start` does.
    """
    with lock:
        if not is_active():
            trace = Trace(_unused(path), intervals=intervals, events=events, wait_until_completed=wait_until_completed)
            trace.start()
            _current[:] = [(by, trace)]


def is_active() -> bool:
    """Return True if a trace is active. A forked child has none."""
    return any(trace.running for _, trace in _current)


def end(by: str) -> bool:
    """Stop and write the active trace if the same kind started it. Return True if so. Raises OSError."""
    with lock:
        own = [trace for kind, trace in _current if kind == by]
        if own:
            _current.clear()
    for trace in own:
        trace.stop()
    return bool(own)


def requested_file() -> Path | None:
    """Return the file that FOREBAY_TRACE names."""
    return TRACE.value()


def default_file() -> Path:
    """Return the default file: in the current directory, named after the process."""
    return Path(f"forebay-trace-{os.getpid()}.pftrace")


def _unused(path: Path) -> Path:
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], others) if not each.exists())


def _after_fork_in_child() -> None:
    global lock  # noqa: PLW0603 -- a thread of the parent may have held the old lock
    lock = threading.RLock()
    _current.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
