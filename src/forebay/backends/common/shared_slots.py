"""Slots in shared memory, one per shared event or lease; the layout is that of native/queue/shared_slot.hpp.

A process keeps its own slots in a few memory files. Another process that opens a slot maps the whole file, once.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from functools import cache
from typing import Any, ClassVar, Protocol, Self
from weakref import WeakValueDictionary

from forebay import _core
from forebay.backends.common._disposal import Disposable, move_all
from forebay.backends.common.cuda_errors import INVALID_CONTEXT
from forebay.backends.common.shared_file import Handle, SharedFile, invalid_handle
from forebay.errors import DeviceError, warn_unraisable
from forebay.spi import Queue

__all__ = ["ORPHANED", "SLICE", "Lease", "SharedEvent", "process_start_time"]

ORPHANED = 130  # failure code of work that waited for a process which ended before it reached the event

_SLOT = 64  # bytes
_SLOTS = 1024  # per file
SLICE = 50_000_000  # nanoseconds of waiting between two checks for Ctrl-C
_RECORDED, _REACHED, _BASE, _LEASE, _SINCE = range(0, 40, 8)  # offsets in a slot
_PROCESS_BITS, _PHASE_BITS = 22, 8
_PROCESS_MASK = (1 << _PROCESS_BITS) - 1
_SENT, _BORROWED = 1, 2  # phases of a lease
_PURPOSE = b"psSl"

_native = ctypes.CDLL(_core.__file__)
_word, _address = ctypes.c_uint64, ctypes.c_void_p
for _name, _result, _arguments in (
    ("record", _word, [_address, _word]),
    ("wait", ctypes.c_int, [_address, _word, ctypes.c_int64]),
    ("claim", ctypes.c_int, [_address, _word, _word]),
    ("new_request", _address, [_address, _word]),
    ("delete_request", None, [_address]),
    ("reach", ctypes.c_int, [_address]),
    ("return", ctypes.c_int, [_address]),
    ("process_start", _word, [_word]),
):
    _function = getattr(_native, f"forebay_{_name}")
    _function.restype, _function.argtypes = _result, _arguments
_REACH, _AWAIT, _RETURN = (
    ctypes.cast(getattr(_native, f"forebay_{name}"), _address).value or 0 for name in ("reach", "await", "return")
)


def process_start_time(process: int) -> int:
    """Return the start time of a process in the system's units; 0 if there is no such process or it is a zombie."""
    return int(_native.forebay_process_start(process))


@cache
def _own_start_time(process: int) -> int:
    return process_start_time(process)


class _NativeCalls(Protocol):
    """A queue that runs native functions.

    If they must not block, it has a method `call_blocking`, which lets later work wait for a function that does.
    """

    def call_native(self, function: int, argument: int) -> None: ...
    def idle(self) -> bool: ...


class _Page(Disposable):
    """A file of slots: this process's, which allocates them, or another's."""

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self.free: deque[int] = deque(range(0, file.nbytes, _SLOT) if file.is_own else ())
        self.dropped: deque[int] = deque()  # without an owner, but some process may still wait for them

    def sweep(self) -> None:
        """Free the dropped slots that are reached or whose process has ended."""
        for _ in range(len(self.dropped)):
            offset = self.dropped.popleft()
            address = self.file.address + offset
            word = _word.from_address(address + _RECORDED).value
            done = _word.from_address(address + _REACHED).value >= word >> _PROCESS_BITS
            (self.free if done or not process_start_time(word & _PROCESS_MASK) else self.dropped).append(offset)

    def _dispose(self) -> None:
        if hasattr(self, "file"):
            try:
                self.file.close()
                self.file.unmap()
            except OSError as error:
                if error.errno is None:  # of a signal handler: a TimeoutError is one, too
                    raise
                warn_unraisable(f"a page of shared events could not be unmapped: {error}")


class _Pages:
    """The files of this process, and those of other processes that it has opened."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Start without files, also in a forked child. The parent's memory stays mapped, as it may still be read."""
        parents: list[_Page] = getattr(self, "_own", [])
        for page in parents:
            page.file.close()
        self._parents = parents, getattr(self, "_opened", None)
        self._own: list[_Page] = []
        self._opened: WeakValueDictionary[bytes, _Page] = WeakValueDictionary()
        self._lock = threading.RLock()

    def allocate(self) -> tuple[_Page, int]:
        """Return a free slot: its file and offset."""
        with self._lock:
            for page in self._own:
                if not page.free:
                    page.sweep()
                if page.free:
                    return page, page.free.popleft()  # the slot that has been free the longest
            page = _Page(SharedFile.create(_SLOT * _SLOTS))
            self._own.insert(0, page)
            return page, page.free.popleft()

    def open(self, handle: Handle, device: str) -> _Page:
        with self._lock:
            page = self._opened.get(handle.name)
            if page is None:
                page = self._opened[handle.name] = _Page(SharedFile.open(handle, device))
            return page


_pages = _Pages()


class _Slot(Disposable):
    """A slot of this process or another one. This process's slots are freed with the last reference."""

    base: Any

    def __init__(self, page: _Page, offset: int, *, own: bool) -> None:
        self.page = page
        self._offset = offset
        self.process: int = os.getpid()
        self._owned: list[int] = [offset] if own else []  # the offset, until it is dropped
        self.owner: int = self.process  # that created the slot
        self.address: int = page.file.address + offset
        if own:  # the numbers continue, so that handles of the slot's previous use are stale
            self.base = _native.forebay_record(self.address, 0)
            _native.forebay_reach(_native.forebay_new_request(self.address, self.base))
            self._write(_BASE, self.base)

    def check(self, device: str = "") -> None:
        """Raise DeviceError if the process that created the slot has dropped it."""
        if self._read(_BASE) != self.base:
            raise invalid_handle("the process that created it has dropped it", device)

    def check_owner(self, device: str) -> None:
        """Raise DeviceError if the process that created the slot has ended."""
        if not process_start_time(self.owner):
            raise invalid_handle(f"process {self.owner}, which shared the memory, has ended", device)

    @property
    def handle(self) -> bytes:
        """Handle of 64 bytes with which another process opens the slot."""
        return self.page.file.handle(_PURPOSE, self._offset, self.base)

    def _read(self, at: int) -> int:
        return _word.from_address(self.address + at).value

    def _write(self, at: int, value: int) -> None:
        _word.from_address(self.address + at).value = value

    def _enqueue(self, queue: Queue, function: int, word: int, *, blocks: bool = False) -> None:
        request = _native.forebay_new_request(self.address, word)
        try:
            if blocks and (call_blocking := getattr(queue, "call_blocking", None)) is not None:
                call_blocking(function, request, self.page)
            else:
                _native_calls(queue).call_native(function, request)
        except BaseException:
            _native.forebay_delete_request(request)
            raise

    def _dispose(self) -> None:
        if getattr(self, "_owned", ()) and self.process == os.getpid():
            move_all(self._owned, self.page.dropped)


class SharedEvent(_Slot):
    """An event shared by several processes, in shared memory; implements `spi.SharedMark`.

    The queues that record it or wait for it have `call_native(function, argument)`, as those with the ability
    `spi.Launches`. If these functions must not block, they also have `call_blocking(function, argument, owner)`, which
    lets later work wait for a function that does, and keeps `owner` alive.

    Parameters
    ----------
    page : object
        File of the event; `create` and `open` pass it.
    offset : int
        Offset of the event in the file.
    own : bool
        Whether this process has created the event.
    """

    ORPHANED: ClassVar[int] = ORPHANED
    """Failure code of queued work that waited for a process which ended before it reached the event."""

    @classmethod
    def create(cls) -> Self:
        """Create an event that no other process has yet.

        Raises
        ------
        Unsupported
            If the system cannot share memory files.
        """
        return cls(*_pages.allocate(), own=True)

    @classmethod
    def open(cls, data: object, device: str) -> Self:
        """Open an event of another process.

        Parameters
        ----------
        data : bytes
            The event's handle.
        device : str
            Name of the device, for errors.

        Raises
        ------
        DeviceError
            If the handle is invalid, or the process has dropped the event or has ended.
        """
        handle = Handle.parse(data, _PURPOSE, device)
        if handle.process == os.getpid():
            message = "invalid device context: the handle was created by this process, which cannot open it"
            raise DeviceError(message, code=INVALID_CONTEXT, call="open", device=device)
        if handle.nbytes != _SLOT * _SLOTS or handle.offset % _SLOT or handle.offset >= handle.nbytes:
            raise invalid_handle("the handle is not valid for this call", device)
        slot = cls(_pages.open(handle, device), handle.offset, own=False)
        slot.base = handle.word
        slot.owner = handle.process
        slot.check(device)
        return slot

    def record(self, queue: Queue) -> int:
        """Record the event behind the work of a queue, and return the word of the record.

        Parameters
        ----------
        queue : Queue
            A queue of this process.
        """
        self.check()
        word: int = _native.forebay_record(self.address, os.getpid())
        try:
            self._enqueue(queue, _REACH, word)
        except BaseException:  # nothing else would reach it, and other processes may wait for it already
            _native.forebay_reach(_native.forebay_new_request(self.address, word))
            raise
        return word

    def last(self) -> int:
        """Return the word of the last record, by any process; 0 if there is none."""
        self.check()
        word = self._read(_RECORDED)
        return 0 if word == self.base else word

    def reached(self, word: int) -> bool:
        """Return True if a record has been reached, without blocking.

        Parameters
        ----------
        word : int
            Word of the record.
        """
        return self._read(_REACHED) >= word >> _PROCESS_BITS

    def wait(self, word: int) -> None:
        """Block the calling thread until a record has been reached.

        Parameters
        ----------
        word : int
            Word of the record.

        Raises
        ------
        DeviceError
            If the recording process ended before: code `ORPHANED`.
        """
        while word and (outcome := _native.forebay_wait(self.address, word, SLICE)):
            if outcome == ORPHANED:
                process = word & _PROCESS_MASK
                raise DeviceError(
                    f"process {process}, which recorded the event, ended before it reached the event",
                    code=ORPHANED,
                    call="wait",
                )

    def wait_for(self, queue: Queue, word: int) -> None:
        """Make all work that is queued later wait until a record has been reached.

        Parameters
        ----------
        queue : Queue
            A queue of this process.
        word : int
            Word of the record.
        """
        if word and not self.reached(word):
            self._enqueue(queue, _AWAIT, word, blocks=True)


class Lease(SharedEvent):
    """State of memory sent to one other process: sent, borrowed or returned. Also an event of the sending process."""

    def __init__(self, page: _Page, offset: int, *, own: bool) -> None:
        super().__init__(page, offset, own=own)
        if own:
            self._write(_SINCE, 0)
            self._write(_LEASE, (self.base << _PHASE_BITS) % (1 << 64) | _SENT)

    def borrow(self) -> bool:
        """Borrow the memory, in the receiving process. Return False if it was borrowed before."""
        return bool(_native.forebay_claim(self.address, self.base | self.process, _own_start_time(self.process)))

    def return_memory(self, queue: Queue | None = None) -> None:
        """Return the memory behind the work of `queue`, in the borrowing process; no effect in other processes."""
        if queue is None or queue.idle():
            _native.forebay_return(_native.forebay_new_request(self.address, self.base | self.process))
        else:
            self._enqueue(queue, _RETURN, self.base | self.process)

    def is_over(self) -> bool:
        """Return True, in the sending process, if the memory was returned or the borrowing process has ended."""
        state = self._read(_LEASE)
        phase, process = state & ((1 << _PHASE_BITS) - 1), state >> _PHASE_BITS & _PROCESS_MASK
        if phase != _BORROWED:
            return phase != _SENT
        started = self._read(_SINCE)
        return process_start_time(process) != started if started else not process_start_time(process)


def _native_calls(queue: Queue) -> _NativeCalls:
    return queue  # type: ignore[return-value]  # every port with slots has queues that run native functions
