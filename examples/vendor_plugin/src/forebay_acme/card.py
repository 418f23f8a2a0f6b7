"""Stand-in for the vendor's own library, which is independent of forebay.

A card is simulated with host memory, and each of its engines with a Python thread.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["ALIGNMENT", "Card", "CardError", "Engine", "card_count"]

ALIGNMENT = 2 << 20


class CardError(Exception):
    """Error of the library, with a code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def card_count() -> int:
    """Return the number of cards in the machine: the variable ACME_CARDS, by default 2."""
    value = os.environ.get("ACME_CARDS", "2")
    if not value.isdecimal():
        raise CardError(errno.EINVAL, f"ACME_CARDS must be a number of cards, not {value!r}")
    return int(value)


class Card:
    """A card with `capacity` bytes of memory."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._mappings: dict[int, tuple[mmap.mmap, int, bool]] = {}
        self._lock = threading.RLock()  # reentrant: a destructor may free memory

    def allocate(self, nbytes: int, *, on_host: bool = False) -> int:
        """Allocate memory and return its address. Memory `on_host` does not count as the card's."""
        with self._lock:
            if not on_host and nbytes > self.capacity - self.used:
                raise CardError(errno.ENOMEM, "out of memory")
            mapping = mmap.mmap(-1, nbytes + ALIGNMENT)
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            address = -(-start // ALIGNMENT) * ALIGNMENT
            self._mappings[address] = mapping, nbytes, on_host
            self.used += 0 if on_host else nbytes
            return address

    def free(self, address: int, *, on_host: bool = False) -> None:
        with self._lock:
            mapping, nbytes, was_on_host = self._mappings.get(address, (None, 0, on_host))
            if mapping is None or was_on_host != on_host:
                raise CardError(errno.EINVAL, f"nothing was allocated at {address:#x}")
            del self._mappings[address]
            self.used -= 0 if on_host else nbytes
            mapping.close()

    def free_all(self) -> None:
        with self._lock:
            for address, (_, _, on_host) in list(self._mappings.items()):
                self.free(address, on_host=on_host)


class Engine:
    """An engine that runs submitted work in order. Fences count from 1; `passed` is the last one reached."""

    def __init__(self) -> None:
        self.fences = 0
        self.passed = 0
        self._failure: BaseException | None = None  # the first one not yet taken
        self.stopped = False
        self._todo: deque[Callable[[], object] | None] = deque()  # None stands for a fence
        self._busy = False
        self._changed = threading.Condition()  # notified whenever any of the above changes
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        self._add(work)

    def fence(self) -> int:
        with self._changed:
            self._add(None)
            self.fences += 1
            return self.fences

    def idle(self) -> bool:
        return not self._todo and not self._busy

    def wait(self, fence: int) -> bool:
        """Wait until a fence is passed. Return False if the engine stopped before."""
        with self._changed:
            self._changed.wait_for(lambda: self.passed >= fence or (self.stopped and self.idle()))
            return self.passed >= fence

    def stop(self, timeout: float | None = None) -> bool:
        """Accept no more work and wait for the rest. Return False if it was dropped on timeout."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()
            if not self._changed.wait_for(self.idle, timeout):
                self._todo.clear()
                return False
            return True

    def take_failure(self) -> BaseException | None:
        """Return the first failure since the last call."""
        with self._changed:
            failure, self._failure = self._failure, None
            return failure

    def _add(self, work: Callable[[], object] | None) -> None:
        with self._changed:
            if self.stopped:
                raise CardError(errno.ESHUTDOWN, "the engine was stopped")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="acme engine", daemon=True)
                self._thread.start()
            self._todo.append(work)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self.stopped)
                if not self._todo:
                    return
                work, self._busy = self._todo.popleft(), True
            failure = None
            try:
                if work is not None:
                    work()
            except BaseException as error:  # noqa: BLE001 -- the next wait raises it
                failure = error
            with self._changed:
                self._failure = self._failure or failure
                self.passed += work is None
                self._busy = False
                self._changed.notify_all()
            del work, failure  # an idle engine keeps nothing alive
