"""Looks after pinned blocks that wait for a queue, so that no allocation has to (pinned_use_background_threads)."""

from __future__ import annotations

import threading
import time
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, complain

if TYPE_CHECKING:
    from penstock.runtime.pinned_allocator import PinnedAllocator

__all__ = ["Poller"]

_PERIOD = 1e-4  # seconds, PyTorch's
_PATIENCE = 1.0  # seconds: for the thread to end


class Poller:
    """One thread, which sleeps while nothing waits, ends with the allocator, and never stops a program from leaving."""

    def __init__(self, allocator: PinnedAllocator) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._calls: SimpleQueue[bool] = SimpleQueue()  # its `put` may be called by a destructor at any moment
        calls = self._calls
        self._allocator = weakref.ref(allocator, lambda _: calls.put(False))

    @property
    def started(self) -> bool:
        return bool(self._threads)

    def start(self) -> None:
        """Once."""
        if not self._threads:
            thread = threading.Thread(
                target=_run, args=(self._allocator, self._calls), name="penstock pinned memory", daemon=True
            )
            if self._threads.setdefault("one", thread) is thread:  # atomic: of two only the first one gets in
                thread.start()
                self.call()

    def call(self) -> None:
        """Something waits now."""
        if self._threads:
            self._calls.put(True)

    def stop(self) -> None:
        """It looks no more when this returns, unless a queue keeps it."""
        thread = self._threads.get("one")
        if thread is not None:
            self._calls.put(False)
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)


def _run(to: weakref.ref[PinnedAllocator], calls: SimpleQueue[bool]) -> None:
    while calls.get():
        while _look(to()):
            if not calls.empty() and not calls.get():
                return
            time.sleep(_PERIOD)


def _look(allocator: PinnedAllocator | None) -> bool:
    """Whether anything still waits."""
    try:
        return allocator is not None and allocator.process()
    except PenstockError as error:
        complain(f"pinned memory could not be given back: {error}")
        return True
