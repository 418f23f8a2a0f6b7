"""Slots in shared memory: one for each shared event or each lease of shared memory (native/queue/shared_slot.hpp).

The slots of a process lie in a few files of its own. Who opens one maps the whole file, once.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from functools import cache
from typing import Protocol, Self
from weakref import WeakValueDictionary

from forebay import _core
from forebay.backends.common.cuda_errors import INVALID_CONTEXT
from forebay.backends.common.shared_file import Handle, SharedFile, invalid_handle
from forebay.errors import DeviceError, complain
from forebay.spi import Queue

__all__ = ["ORPHANED", "SLICE", "Lease", "SharedEvent", "since"]

ORPHANED = 130  # what a queue's work fails with when the process it waited for ended before it got there

_SLOT = 64  # bytes
_SLOTS = 1024  # of a file
SLICE = 50_000_000  # nanoseconds that a wait goes on before Python looks for Ctrl-C
_RECORDED, _REACHED, _BASE, _LEASE, _SINCE = range(0, 40, 8)  # where in a slot
_PROCESS_BITS, _PHASE_BITS = 22, 8
_PROCESSES = (1 << _PROCESS_BITS) - 1
_SENT, _BORROWED = 1, 2  # phases of a lease
_PURPOSE = b"psSl"

_native = ctypes.CDLL(_core.__file__)
_word, _address = ctypes.c_uint64, ctypes.c_void_p
for _name, _result, _arguments in (
    ("record", _word, [_address, _word]),
    ("wait", ctypes.c_int, [_address, _word, ctypes.c_int64]),
    ("claim", ctypes.c_int, [_address, _word, _word]),
    ("errand", _address, [_address, _word]),
    ("drop_errand", None, [_address]),
    ("reach", ctypes.c_int, [_address]),
    ("give_back", ctypes.c_int, [_address]),
    ("since", _word, [_word]),
):
    _function = getattr(_native, f"forebay_{_name}")
    _function.restype, _function.argtypes = _result, _arguments
_REACH, _AWAIT, _GIVE_BACK = (
    ctypes.cast(getattr(_native, f"forebay_{name}"), _address).value or 0 for name in ("reach", "await", "give_back")
)


def since(process: int) -> int:
    """When the process started, as the system counts; 0 for one that has ended, be it a zombie, or never was."""
    return int(_native.forebay_since(process))


@cache
def _own_since(process: int) -> int:
    return since(process)


class _Runs(Protocol):
    """A queue that runs native functions."""

    def call_native(self, function: int, argument: int) -> None: ...
    def idle(self) -> bool: ...


class _Page:
    """A file of slots: this process's, which lends and takes back, or another's."""

    _leaving = staticmethod(sys.is_finalizing)

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self.free = deque(range(0, file.nbytes, _SLOT) if file.mine else ())
        self.dropped: deque[int] = deque()  # nobody has them any more, but something may still wait for them

    def sweep(self) -> None:
        """What was dropped, and is reached, is free."""
        for _ in range(len(self.dropped)):
            offset = self.dropped.popleft()
            address = self.file.address + offset
            word = _word.from_address(address + _RECORDED).value
            done = _word.from_address(address + _REACHED).value >= word >> _PROCESS_BITS
            (self.free if done or not since(word & _PROCESSES) else self.dropped).append(offset)

    def __del__(self) -> None:
        if self._leaving():
            return
        try:
            self.file.close()
            self.file.unmap()
        except OSError as error:
            complain(f"a page of shared events could not be unmapped: {error}")


class _Pages:
    """Those of this process, and those that it has opened."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """In a forked child: the parent's slots are the parent's. Their memory stays, as somebody may look at it."""
        parents: list[_Page] = getattr(self, "_own", [])
        for page in parents:
            page.file.close()
        self._parents = parents, getattr(self, "_opened", None)
        self._own: list[_Page] = []
        self._opened: WeakValueDictionary[bytes, _Page] = WeakValueDictionary()
        self._lock = threading.RLock()

    def take(self) -> tuple[_Page, int]:
        """A slot that nobody has, and its offset."""
        with self._lock:
            for page in self._own:
                if not page.free:
                    page.sweep()
                if page.free:
                    return page, page.free.popleft()  # the one that was free longest
            page = _Page(SharedFile.made(_SLOT * _SLOTS))
            self._own.insert(0, page)
            return page, page.free.popleft()

    def open(self, handle: Handle, device: str) -> _Page:
        with self._lock:
            page = self._opened.get(handle.name)
            if page is None:
                page = self._opened[handle.name] = _Page(SharedFile.opened(handle, device))
            return page


_pages = _Pages()


class _Slot:
    """A slot of this process's, or another's. What this process made goes back with the last reference."""

    _leaving = staticmethod(sys.is_finalizing)

    def __init__(self, page: _Page, offset: int, *, own: bool) -> None:
        self.page = page
        self._offset = offset
        self._own = own
        self.process = os.getpid()
        self.address = page.file.address + offset
        if own:  # numbers go on, so whoever knew the slot before finds that its handle is stale
            self.base = _native.forebay_record(self.address, 0)
            _native.forebay_reach(_native.forebay_errand(self.address, self.base))
            self._write(_BASE, self.base)

    @classmethod
    def made(cls) -> Self:
        return cls(*_pages.take(), own=True)

    @classmethod
    def opened(cls, data: object, device: str) -> Self:
        """DeviceError that says why it cannot be."""
        handle = Handle.read(data, _PURPOSE, device)
        if handle.process == os.getpid():
            message = "invalid device context: this process made the handle itself, and has no need of it"
            raise DeviceError(message, code=INVALID_CONTEXT, call="open", device=device)
        if handle.nbytes != _SLOT * _SLOTS or handle.offset % _SLOT or handle.offset >= handle.nbytes:
            raise invalid_handle("these bytes are no handle of that", device)
        slot = cls(_pages.open(handle, device), handle.offset, own=False)
        slot.base = handle.word
        slot.check(device)
        return slot

    def check(self, device: str = "") -> None:
        """DeviceError where the process that made it has dropped it."""
        if self._read(_BASE) != self.base:
            raise invalid_handle("the process that made it has dropped it", device)

    @property
    def handle(self) -> bytes:
        """64 bytes, by which another process finds it."""
        return self.page.file.handle(_PURPOSE, self._offset, self.base)

    def _read(self, at: int) -> int:
        return _word.from_address(self.address + at).value

    def _write(self, at: int, value: int) -> None:
        _word.from_address(self.address + at).value = value

    def _queue(self, queue: Queue, function: int, word: int) -> None:
        errand = _native.forebay_errand(self.address, word)
        try:
            _runs(queue).call_native(function, errand)
        except BaseException:
            _native.forebay_drop_errand(errand)
            raise

    def __del__(self) -> None:
        if not self._leaving() and getattr(self, "_own", False) and self.process == os.getpid():
            self.page.dropped.append(self._offset)


class SharedEvent(_Slot):
    """A point on a queue of any of the processes that have it. A word names one record of it; see `spi.SharedMark`."""

    def record(self, queue: Queue) -> int:
        self.check()
        word: int = _native.forebay_record(self.address, os.getpid())
        self._queue(queue, _REACH, word)
        return word

    def last(self) -> int:
        self.check()
        word = self._read(_RECORDED)
        return 0 if word == self.base else word

    def reached(self, word: int) -> bool:
        return self._read(_REACHED) >= word >> _PROCESS_BITS

    def wait(self, word: int) -> None:
        while word and (outcome := _native.forebay_wait(self.address, word, SLICE)):
            if outcome == ORPHANED:
                process = word & _PROCESSES
                raise DeviceError(
                    f"process {process}, which recorded the event, ended before it got there",
                    code=ORPHANED,
                    call="wait",
                )

    def wait_for(self, queue: Queue, word: int) -> None:
        if word and not self.reached(word):
            self._queue(queue, _AWAIT, word)


class Lease(SharedEvent):
    """Memory that a process lends once: sent, borrowed by another, given back. The lender's event comes with it."""

    def __init__(self, page: _Page, offset: int, *, own: bool) -> None:
        super().__init__(page, offset, own=own)
        if own:
            self._write(_SINCE, 0)
            self._write(_LEASE, (self.base << _PHASE_BITS) % (1 << 64) | _SENT)

    def borrow(self) -> bool:
        """For the borrower: False where somebody has, or had, what was sent once."""
        return bool(_native.forebay_claim(self.address, self.base | self.process, _own_since(self.process)))

    def give_back(self, queue: Queue | None = None) -> None:
        """For the borrower, when the queue has done what it has. Who is not, or not any more, changes nothing."""
        if queue is None or queue.idle():
            _native.forebay_give_back(_native.forebay_errand(self.address, self.base | self.process))
        else:
            self._queue(queue, _GIVE_BACK, self.base | self.process)

    def over(self) -> bool:
        """For the lender: whether nobody can use it any more, as it came back or its borrower is gone."""
        state = self._read(_LEASE)
        phase, process = state & ((1 << _PHASE_BITS) - 1), state >> _PHASE_BITS & _PROCESSES
        if phase != _BORROWED:
            return phase != _SENT
        started = self._read(_SINCE)
        return since(process) != started if started else not since(process)


def _runs(queue: Queue) -> _Runs:
    return queue  # type: ignore[return-value]  # the queues of the ports that have slots do
