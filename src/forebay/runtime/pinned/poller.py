"""Looks after pinned blocks that wait for a queue, so that no allocation has to (pinned_use_background_threads)."""

from __future__ import annotations

import _thread
import sys
import time
import weakref
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from forebay.errors import complain

if TYPE_CHECKING:
    from forebay.runtime.pinned.pinned_allocator import PinnedAllocator

__all__ = ["Poller"]

_PERIOD = 1e-4  # seconds, PyTorch's
_PATIENCE = 1.0  # seconds: for the thread to end


class Poller:
    """One thread, which sleeps while nothing waits, ends with the allocator, and never stops a program from leaving.

    A destructor may call it at any moment, so nothing here takes a lock: not `put`, and no Thread of threading's.
    """

    def __init__(self, allocator: PinnedAllocator) -> None:
        calls: SimpleQueue[bool] = SimpleQueue()
        self._calls = calls
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._claims: dict[str, object] = {}  # whose claim is there, starts it
        self._allocator = weakref.ref(allocator, lambda _: calls.put(False))
        self.running = False

    def start(self) -> bool:
        """Whether there is a thread now."""
        claim = object()
        if not self.running and not sys.is_finalizing() and self._claims.setdefault("thread", claim) is claim:
            try:
                _thread.start_new_thread(self._run, (self._allocator, self._calls, self._ended))
            except RuntimeError:  # the system has no more
                self._claims.pop("thread", None)
                return False
            self.running = True
            self.call()
        return bool(self._claims)

    def call(self) -> None:
        """Something waits now."""
        if self.running:
            self._calls.put(True)

    def stop(self) -> None:
        """It looks no more when this returns, unless a queue keeps it."""
        if self.running:
            self._calls.put(False)
            try:
                self._ended.get(timeout=_PATIENCE)
            except Empty:
                return
            self.running = False

    @staticmethod  # as a method it would keep the poller, and that is the allocator's
    def _run(to: weakref.ref[PinnedAllocator], calls: SimpleQueue[bool], ended: SimpleQueue[None]) -> None:
        try:
            while calls.get():
                while _look(to()):
                    if not calls.empty() and not calls.get():
                        return
                    time.sleep(_PERIOD)
        finally:
            ended.put(None)


def _look(allocator: PinnedAllocator | None) -> bool:
    """Whether anything still waits."""
    try:
        return allocator is not None and allocator.process()
    except Exception as error:  # noqa: BLE001 -- a thread has nobody to raise to, and shall go on
        complain(f"pinned memory could not be given back: {error}")
        return True
