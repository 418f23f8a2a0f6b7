"""The thread that returns a device's idle memory to the system: Note [Idle memory]."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from forebay._base.signal_mask import signals_blocked
from forebay.errors import warn_unraisable

if TYPE_CHECKING:
    from forebay.runtime.allocator.idle_memory import IdleMemory

__all__ = ["SECONDS", "IdleRelease"]

SECONDS = 1.0  # between two passes; a segment that is free in both is released


class IdleRelease:
    """A thread that releases unused segments, while the device has more memory than it keeps when idle.

    Set `start` as the memory's `watch`: a program that reserves little has no thread. A forked child starts its own at
    its next reservation.
    """

    def __init__(self, idle: IdleMemory) -> None:
        self._idle = weakref.ref(idle)
        self._closed = False
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Forget the parent's thread, which may have held the event's lock."""
        self._thread: threading.Thread | None = None
        self._exists = threading.Lock()  # held while a thread exists or starts
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread, unless there is one or `stop` was called.

        If the system has no more threads, memory is returned by later reservations only.
        """
        if self._closed or not self._exists.acquire(blocking=False):
            return
        started, thread = False, None
        try:
            # Also while the last thread's object is dropped: a set of all threads that Python keeps has a callback for
            # it, in which the exception of a signal handler would be lost.
            with signals_blocked():
                self._thread = None
                self._thread = thread = threading.Thread(target=self._run, name="forebay-idle-memory", daemon=True)
                thread.start()
            started = True
        except RuntimeError:  # the limit of threads, or the interpreter shuts down
            pass
        finally:
            if not started and (thread is None or thread.ident is None):
                self._exists.release()

    def stop(self) -> None:
        """End the thread, waiting for its current pass. It cannot be started again."""
        self._closed = True
        if self._thread_runs() and self._thread is not None:
            self._stopped.set()
            self._thread.join(SECONDS)

    def _thread_runs(self) -> bool:
        return self._thread is not None and self._thread.ident is not None

    def _run(self) -> None:
        try:
            while self._pass():
                pass
        finally:
            self._exists.release()
        idle = self._idle()
        if idle is not None and idle.exceeds_kept():  # memory was reserved before it could be seen that this one ends
            self.start()

    def _pass(self) -> bool:
        """Wait, and release what is unused. Return False if the thread should end."""
        if self._stopped.wait(SECONDS):
            return False
        idle = self._idle()
        if idle is None:
            return False
        try:
            idle.release_unused()
        except Exception as error:  # noqa: BLE001 - a thread has no caller
            warn_unraisable(f"idle memory could not be returned: {error}")
            self._closed = True
            return False
        return idle.exceeds_kept()
