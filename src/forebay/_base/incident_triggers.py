"""Moments at which a program's state is written: the interpreter's exit, and SIGUSR1."""

from __future__ import annotations

import atexit
import os
import queue
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from forebay.errors import warn_unraisable

__all__ = ["REASONS", "IncidentTriggers", "check_reasons"]

REASONS = ("oom", "exit", "signal")  # when recorders of a program write files; "oom" is not a trigger of this module

_STOP_SECONDS = 60.0  # time for a file that is being written


def check_reasons(on: Collection[str]) -> frozenset[str]:
    """Return `on` as a set. Raises ValueError if it has a word that is not in `REASONS`."""
    if isinstance(on, str) or (unknown := {*on} - {*REASONS}):
        wrong = on if isinstance(on, str) else min(unknown)
        raise ValueError(f"on must be a collection of {', '.join(map(repr, REASONS))}, and has {wrong!r}")
    return frozenset(on)


class IncidentTriggers:
    """Calls of `act("exit")` when the interpreter exits and of `act("signal")` after SIGUSR1.

    A thread of its own acts after a signal, as the signal handler may run while the main thread holds a lock. The
    handler that SIGUSR1 had runs, too. A forked child does not act. An Exception of `act` is a warning: the process may
    exit because its devices failed, and the next signal must have an effect.
    """

    def __init__(self, act: Callable[[str], object], on: Collection[str]) -> None:
        self._act, self._on = act, on
        self._process = 0  # that started; 0: stopped
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()  # its put() may interrupt itself
        self._thread: threading.Thread | None = None
        self._handler: Callable[[int, FrameType | None], None] = self._on_signal  # one object, to be recognised
        self._handler_before: Any = signal.SIG_DFL  # None if it was not set from Python

    @property
    def started(self) -> bool:
        return self._process != 0

    def start(self) -> None:
        """Begin to act. Raises RuntimeError after a start, and ValueError for "signal" outside the main thread."""
        if self._process:
            raise RuntimeError("it was started already: stop it first")
        if "signal" in self._on:
            if threading.current_thread() is not threading.main_thread():
                raise ValueError('on="signal" needs a start in the main thread: only that one can set signal handlers')
            self._handler_before = signal.signal(signal.SIGUSR1, self._handler)
            self._thread = threading.Thread(target=self._serve, name="forebay-incidents", daemon=True)
            self._thread.start()
        if "exit" in self._on:
            atexit.register(self._at_exit)
        self._process = os.getpid()

    def stop(self) -> None:
        """Act no more, after what was requested. A second call has no effect."""
        if not self._process:
            return
        own, self._process = self._process == os.getpid(), 0
        atexit.unregister(self._at_exit)
        if self._thread is None:
            return
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGUSR1) is self._handler  # else the program has set another
        ):
            signal.signal(signal.SIGUSR1, self._handler_before or signal.SIG_DFL)
        if own:  # a forked child does not have the thread
            self._requests.put("stop")
            self._thread.join(_STOP_SECONDS)
        self._thread = None

    def _at_exit(self) -> None:
        if os.getpid() == self._process:
            self._try("exit")
            self.stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self._requests.put("signal")
        if callable(self._handler_before):
            self._handler_before(number, frame)

    def _serve(self) -> None:
        while self._requests.get() != "stop":
            self._try("signal")

    def _try(self, reason: str) -> None:
        try:
            self._act(reason)
        except Exception as error:  # noqa: BLE001 -- nothing can handle it
            warn_unraisable(f"no files were written ({reason}): {type(error).__name__}: {error}")
