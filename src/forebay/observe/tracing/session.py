"""Traces: what every queue did and when, who asked for it, and what memory was there, in a file for ui.perfetto.dev."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from forebay.atomic_write import check_writable, in_place_of
from forebay.errors import WrongState, complain
from forebay.observe.tracing import perfetto
from forebay.observe.tracing.recorder import Recorder
from forebay.observe.tracing.resolve import tell

__all__ = ["LIMIT", "MOST", "Trace", "stopping", "trace"]

MOST = 200_000  # entries; less than 200 bytes an operation
LIMIT = 5.0  # seconds for work that is still queued when a trace ends

_running: list[Trace] = []


class Trace:
    """One trace, from `start` to `stop`; `trace` is the same as a context manager. It may be started once.

    The last `most` entries are kept: operations, waits, events, ranges, memory. `stop` waits up to `limit` seconds for
    work that is not done. With `wait_until_completed` each operation is waited for when it is queued, so that they
    appear one by one. Without `intervals` the end of each operation is there, not its time; without `events` no event.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        most: int = MOST,
        limit: float = LIMIT,
        wait_until_completed: bool = False,
        intervals: bool = True,
        events: bool = True,
    ) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most < 1 << 63:
            raise ValueError(f"most is a number of entries from 1 to 2**63 - 1, not {most!r}")
        if not limit >= 0:
            raise ValueError(f"limit is a number of seconds, not {limit!r}")
        self.path = Path(path).absolute()
        self.operations = self.unfinished = self.lost = (
            0  # what was written: see `forebay.observe.tracing.model.Traced`
        )
        self._limit = limit
        self._what = {"intervals": intervals, "events": events}
        self._recorder = Recorder(most, wait_until_completed=wait_until_completed)
        self._state = "new"

    @property
    def running(self) -> bool:
        return self._state == "running"

    @property
    def written(self) -> bool:
        return self._state == "written"

    def start(self) -> None:
        """Record from now on. Opens no device.

        ModuleNotFoundError where the package that writes is not installed, OSError where the file cannot be written.
        """
        if self._state != "new":
            raise WrongState("this trace was started before: make another one")
        perfetto.check()
        check_writable(self.path, "a trace")
        self._state = "running"
        _running.append(self)
        self._recorder.begin()

    def stop(self) -> None:
        """Record no more, and write the file. Twice is once; nothing in a process forked meanwhile. OSError."""
        try:
            _running.remove(self)
        except ValueError:  # it was never started, or another thread stops it
            return
        self._state = "done"
        try:
            self._write()
        except Exception:
            self._recorder.drop()
            raise
        except BaseException:  # Ctrl-C, as it may take seconds: the next to stop it, or the program's end, tries again
            _running.append(self)
            raise
        self._state = "written"
        self._recorder.drop()

    def _write(self) -> None:
        self._recorder.finish(self._limit)
        told = tell(self._recorder, **self._what)
        self.operations, self.unfinished, self.lost = told.operations, told.unfinished, told.lost
        notes: dict[str, Any] = {
            "operations": told.operations,
            "not done": told.unfinished,
            "lost": told.lost,
            "program": " ".join(getattr(sys, "argv", ())),
            "forebay": version("forebay"),
        }
        if told.untimed:
            notes["timed by the host"] = ", ".join(sorted(told.untimed))
        with in_place_of(self.path) as file:
            perfetto.write(told, file, notes)

    def forget(self) -> None:
        """For the fork handler: it is the parent's."""
        self._state = "forked"
        self._recorder.forget()


@contextmanager
def trace(path: str | os.PathLike[str], **how: Any) -> Iterator[Trace]:
    """Write a trace of all that happens inside to the file; arguments as of `Trace`. After an error, too.

    >>> import forebay, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, trace(f"{folder}/fill.pftrace") as made:
    ...     ones = forebay.full((1000,), 1.0)
    >>> made.operations, made.unfinished, made.lost
    (1, 0, 0)
    """
    made = Trace(path, **how)
    made.start()
    with stopping(made.stop, f"the trace {made.path}"):
        yield made


@contextmanager
def stopping(stop: Callable[[], None], what: str, errors: type[Exception] = Exception) -> Iterator[None]:
    """`stop` at the end, after an error, too: those of its own `errors` are a note then, as that one matters."""
    try:
        yield
    except BaseException as error:
        try:
            stop()
        except errors as reason:
            error.add_note(f"and {what} could not be written: {reason}")
        raise
    stop()


@atexit.register
def _leave() -> None:
    for each in tuple(_running):
        try:
            each.stop()
        except Exception as error:  # noqa: BLE001 -- the program has ended, and the next one is to be written
            complain(f"the trace {each.path} could not be written when the program ended: {error}")


def _in_child() -> None:
    for each in _running:
        each.forget()
    _running.clear()


os.register_at_fork(after_in_child=_in_child)
