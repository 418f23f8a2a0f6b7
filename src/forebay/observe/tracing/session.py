"""Traces of queues, waits, events, ranges and memory, written to a file for https://ui.perfetto.dev."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay._base.atomic_write import atomic_write, check_writable
from forebay._base.own_version import own_version
from forebay.errors import WrongState, warn_unraisable
from forebay.observe.tracing import perfetto
from forebay.observe.tracing.recorder import Recorder
from forebay.observe.tracing.resolve import resolve

__all__ = ["DEFAULT_ENTRIES", "DEFAULT_LIMIT", "Trace", "stop_on_exit", "trace"]

DEFAULT_ENTRIES = 200_000  # an operation takes less than 200 bytes
DEFAULT_LIMIT = 5.0  # seconds

_running: list[Trace] = []


class Trace:
    """A trace from `start` to `stop`. It can be started once.

    After `stop`, `operations`, `unfinished` and `lost` are the numbers of traced operations, of those that were not
    finished, and of entries that were dropped. A trace that is still running when the program exits is stopped then.
    Does not initialise a device.

    Parameters
    ----------
    path : str or path-like
        The file.
    most : int, default 200_000
        Maximum number of entries (operations, waits, events, ranges, memory counters); the newest are kept.
    limit : float, default 5.0
        Seconds that `stop` waits for unfinished work.
    wait_until_completed : bool, default False
        Wait for each operation when it is queued, so that operations do not overlap.
    intervals : bool, default True
        Include the interval of each operation, range and wait; otherwise only the end of each operation.
    events : bool, default True
        Include events and their records, waits and queries.

    Raises
    ------
    ValueError
        If `most` or `limit` is invalid.
    """

    lost: int
    operations: int
    unfinished: int

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        most: int = DEFAULT_ENTRIES,
        limit: float = DEFAULT_LIMIT,
        wait_until_completed: bool = False,
        intervals: bool = True,
        events: bool = True,
    ) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most < 1 << 63:
            raise ValueError(f"most must be a number of entries from 1 to 2**63 - 1, not {most!r}")
        if not limit >= 0:
            raise ValueError(f"limit must be a non-negative number of seconds, not {limit!r}")
        self.path: Path = Path(path).absolute()
        self.operations = self.unfinished = self.lost = 0
        self._limit = limit
        self._included = {"intervals": intervals, "events": events}
        self._recorder = Recorder(most, wait_until_completed=wait_until_completed)
        self._state = "new"

    @property
    def running(self) -> bool:
        """True from `start` to `stop`."""
        return self._state == "running"

    @property
    def written(self) -> bool:
        """True once the file is written."""
        return self._state == "written"

    def start(self) -> None:
        """Start to record.

        Raises
        ------
        ModuleNotFoundError
            If the package `perfetto` is not installed.
        OSError
            If the file cannot be written.
        WrongState
            If the trace was already started.
        """
        if self._state != "new":
            raise WrongState("this trace was already started: create a new one")
        perfetto.check()
        check_writable(self.path, "a trace")
        self._state = "running"
        _running.append(self)
        self._recorder.begin()

    def stop(self) -> None:
        """Stop recording, and write the file.

        Does nothing if the trace is not running, or in a forked child. Waits up to `limit` seconds for unfinished work.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        try:
            _running.remove(self)
        except ValueError:  # never started, or stopped by another thread
            return
        self._state = "done"
        try:
            self._write()
        except Exception:
            self._recorder.drop()
            raise
        except BaseException:  # Ctrl-C, as writing may take seconds: the next `stop`, or the exit handler, retries
            _running.append(self)
            raise
        self._state = "written"
        self._recorder.drop()

    def _write(self) -> None:
        self._recorder.finish(self._limit)
        data = resolve(self._recorder, **self._included)
        self.operations, self.unfinished, self.lost = data.operations, data.unfinished, data.lost
        notes: dict[str, Any] = {
            "operations": data.operations,
            "not done": data.unfinished,
            "lost": data.lost,
            "program": " ".join(getattr(sys, "argv", ())),
            "forebay": own_version(),
        }
        if data.untimed:
            notes["timed by the host"] = ", ".join(sorted(data.untimed))
        with atomic_write(self.path) as file:
            perfetto.write(data, file, notes)

    def _after_fork_in_child(self) -> None:
        """Stop without writing: the parent writes the file."""
        self._state = "forked"
        self._recorder.after_fork_in_child()


@contextmanager
def trace(path: str | os.PathLike[str], **options: Any) -> Iterator[Trace]:
    """Context manager that traces the block and writes the file, also after an exception.

    Parameters
    ----------
    path : str or path-like
        The file.
    **options : Any
        Keyword arguments of `Trace`.

    Raises
    ------
    ModuleNotFoundError
        If the package `perfetto` is not installed.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import forebay, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, trace(f"{folder}/fill.pftrace") as written:
    ...     ones = forebay.full((1000,), 1.0)
    >>> written.operations, written.unfinished, written.lost
    (1, 0, 0)
    """
    started = Trace(path, **options)
    started.start()
    with stop_on_exit(started.stop, f"the trace {started.path}"):
        yield started


@contextmanager
def stop_on_exit(stop: Callable[[], None], what: str, errors: type[Exception] = Exception) -> Iterator[None]:
    """Call `stop` on exit. If the block raised, exceptions of type `errors` become a note of that exception."""
    try:
        yield
    except BaseException as error:
        try:
            stop()
        except errors as reason:
            error.add_note(f"{what} could not be written: {reason}")
        raise
    stop()


@atexit.register
def _stop_at_exit() -> None:
    for each in tuple(_running):
        try:
            each.stop()
        except Exception as error:  # noqa: BLE001 -- the other traces must still be written
            warn_unraisable(f"the trace {each.path} could not be written when the program ended: {error}")


def _after_fork_in_child() -> None:
    for each in _running:
        each._after_fork_in_child()  # noqa: SLF001 -- of this module
    _running.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
