"""The thread that returns a device's idle memory to the system."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, warn_unraisable

if TYPE_CHECKING:
    from forebay.runtime.allocator.idle_memory import IdleMemory

__all__ = ["SECONDS", "IdleRelease"]

SECONDS = 1.0  # between two passes; a segment that is free in both is released


class IdleRelease:
    """A thread that releases unused segments, while the device has more memory than it keeps when idle.

    Set `start` as the memory's `watch`: a program that reserves little has no thread, and a forked child gets its own.
    """

    def __init__(self, idle: IdleMemory) -> None:
        self._idle = weakref.ref(idle)
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread, unless it runs. Never raises: without the thread, memory is returned by later requests."""
        if self._thread is not None and self._thread.is_alive():  # it is not in a forked child
            return
        self._stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._stopped,), name="forebay-idle-memory", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # the limit of threads, or the interpreter shuts down
            self._thread = None

    def stop(self) -> None:
        """End the thread, waiting for its current pass."""
        self._stopped.set()
        if (thread := self._thread) is not None and thread.is_alive():
            thread.join(SECONDS)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(SECONDS):
            idle = self._idle()
            if idle is None:
                return
            try:
                idle.release_unused()
            except ForebayError as error:
                warn_unraisable(f"idle memory could not be returned: {error}")
                return
            if not idle.exceeds_kept():
                self._thread = None
                if idle.exceeds_kept():  # another thread reserved memory before it could see that this one ends
                    self.start()
                return
            del idle
