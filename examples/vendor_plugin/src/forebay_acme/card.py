"""Stands for what a vendor has already: the library that talks to the card.

It knows nothing of forebay. This card is made of the machine's memory, and of a Python thread for each
of its engines.
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
    """The library's own: a number, and words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def card_count() -> int:
    """How many cards the machine has: ACME_CARDS, or two. CardError where that is no number."""
    said = os.environ.get("ACME_CARDS", "2")
    if not said.isdecimal():
        raise CardError(errno.EINVAL, f"ACME_CARDS must be a number of cards, not {said!r}")
    return int(said)


class Card:
    """One card: so many bytes of memory."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._mappings: dict[int, tuple[mmap.mmap, int, bool]] = {}
        self._lock = threading.RLock()  # a destructor may free memory in between

    def allocate(self, nbytes: int, *, on_host: bool = False) -> int:
        """The address of that much memory; `on_host` it does not count as the card's."""
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
    """Does what it is given, in order. Fences among the work count from 1.

    `passed` is the last one that it came by.
    """

    def __init__(self) -> None:
        self.fences = 0
        self.passed = 0
        self._failure: BaseException | None = None  # the first that nobody has taken
        self.stopped = False
        self._todo: deque[Callable[[], object] | None] = deque()  # None is a fence
        self._busy = False
        self._bell = threading.Condition()  # rings whenever something of the above changes
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        self._add(work)

    def fence(self) -> int:
        with self._bell:
            self._add(None)
            self.fences += 1
            return self.fences

    def idle(self) -> bool:
        return not self._todo and not self._busy

    def wait(self, fence: int) -> bool:
        """Until it is passed; False where the engine stopped before."""
        with self._bell:
            self._bell.wait_for(lambda: self.passed >= fence or (self.stopped and self.idle()))
            return self.passed >= fence

    def stop(self, timeout: float | None = None) -> bool:
        """Takes no more, and waits for what there is. False: time was up, and the rest was dropped."""
        with self._bell:
            self.stopped = True
            self._bell.notify_all()
            if not self._bell.wait_for(self.idle, timeout):
                self._todo.clear()
                return False
            return True

    def take_failure(self) -> BaseException | None:
        """The first failure of its work since the last call of this."""
        with self._bell:
            failure, self._failure = self._failure, None
            return failure

    def _add(self, work: Callable[[], object] | None) -> None:
        with self._bell:
            if self.stopped:
                raise CardError(errno.ESHUTDOWN, "the engine was stopped")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="acme engine", daemon=True)
                self._thread.start()
            self._todo.append(work)
            self._bell.notify_all()

    def _run(self) -> None:
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._todo or self.stopped)
                if not self._todo:
                    return
                work, self._busy = self._todo.popleft(), True
            failure = None
            try:
                if work is not None:
                    work()
            except BaseException as error:  # noqa: BLE001 -- whatever it is, who waits is told
                failure = error
            with self._bell:
                self._failure = self._failure or failure
                self.passed += work is None
                self._busy = False
                self._bell.notify_all()
            del work, failure  # an idle engine keeps nothing alive
