"""Outputs that the environment variables of MPS request: lines on standard error, and a trace of the whole program."""

from __future__ import annotations

import atexit
import sys
from collections import Counter, deque
from contextlib import suppress

from forebay._base import config
from forebay._base.byte_sizes import format_bytes
from forebay._core import MAX_SMALL_BYTES
from forebay.errors import ForebayError
from forebay.observe.tracing import profiler_session
from forebay.observe.tracing.signposts import signposts
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.base import observers
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.spi import Queue

__all__ = ["AllocatorLog", "OperationLog", "follow"]

_SUMMARY, _ALLOCATIONS, _FREES, _RESERVED, _LARGE_ONLY = 1, 2, 4, 8, 16  # of PYTORCH_DEBUG_MPS_ALLOCATOR
_OPERATIONS, _COPIES, _ALL_TOTALS, _OPERATION_TOTALS, _COPY_TOTALS = 1, 2, 8, 16, 32  # of PYTORCH_MPS_LOG_PROFILE_INFO
_EVENTS, _INTERVALS, _WAIT = 1 | 16, 2 | 32, 4  # of PYTORCH_MPS_TRACE_SIGNPOSTS


def follow(opened: OpenDevice) -> None:
    """Do for a device that was opened what the variables request."""
    if options := config.MPS_ALLOCATOR_LOG.value():
        observers.add(log := AllocatorLog(opened, options))
        atexit.register(log.at_exit)
    if options := config.MPS_OPERATION_LOG.value():
        observers.add_tracer(operations := OperationLog(opened, options))
        atexit.register(operations.at_exit)
    if options := config.MPS_SIGNPOSTS.value():
        _start_trace(options)


def _start_trace(options: int) -> None:
    events, intervals = bool(options & _EVENTS), bool(options & _INTERVALS)
    if not events and not intervals:
        events = intervals = True
    try:
        tracer = signposts(intervals=intervals, events=events)
        file = profiler_session.requested_file() or profiler_session.default_file()
        waits = bool(options & _WAIT)
        profiler_session.begin("mps", file, intervals=intervals, events=events, wait_until_completed=waits)
    except (ForebayError, ImportError) as error:
        _print(f"no trace is recorded: {error}")
        return
    if tracer is not None:
        observers.add_tracer(tracer)
    atexit.register(_stop_trace)


def _stop_trace() -> None:
    try:
        profiler_session.end("mps")
    except OSError as error:
        _print(f"the trace cannot be written: {error}")


class AllocatorLog(observers.Observer):
    """Lines about the memory of one device. A free is printed at the next allocation or synchronization."""

    def __init__(self, opened: OpenDevice, options: int) -> None:
        self._opened = opened
        self._options = options
        self._sizes: dict[int, int] = {}  # by address
        self._freed = deque[int]()
        self._reserved = 0

    def allocated(self, storage: Storage, queue: int) -> None:
        if storage.opened is not self._opened or not storage.nbytes:
            return
        self._flush()
        self._sizes[storage.address] = storage.nbytes
        if self._options & _ALLOCATIONS and self._is_shown(storage.nbytes):
            self._print(f"allocated {format_bytes(storage.nbytes)} at {storage.address:#x} on queue {queue}")

    def freed(self, opened: OpenDevice, address: int) -> None:
        if opened is self._opened:
            self._freed.append(address)

    def device_synchronized(self, opened: OpenDevice) -> None:
        if opened is self._opened:
            self._flush()

    def at_exit(self) -> None:
        """Print what is left, and the summary."""
        self._flush()
        if self._options & _SUMMARY:
            self._print("summary")

    def _flush(self) -> None:
        while self._freed:
            address = self._freed.popleft()
            nbytes = self._sizes.pop(address, 0)
            if nbytes and self._options & _FREES and self._is_shown(nbytes):
                self._print(f"freed {format_bytes(nbytes)} at {address:#x}")
        reserved = self._opened.allocator.current(RESERVED_BYTES)
        if reserved != self._reserved and self._options & _RESERVED:
            self._print(f"reserved {format_bytes(reserved)}, before {format_bytes(self._reserved)}")
        self._reserved = reserved

    def _is_shown(self, nbytes: int) -> bool:
        return not self._options & _LARGE_ONLY or nbytes > MAX_SMALL_BYTES

    def _print(self, text: str) -> None:
        allocator = self._opened.allocator
        totals = [format_bytes(allocator.current(each)) for each in (ALLOCATED_BYTES, RESERVED_BYTES)]
        _print(f"{text}; {totals[0]} allocated, {totals[1]} reserved")


class OperationLog(observers.Tracer):
    """Lines about the operations of one device's queues, and their totals."""

    def __init__(self, opened: OpenDevice, options: int) -> None:
        self._opened = opened
        self._options = options
        self._counts: Counter[str] = Counter()  # by name of the operation
        self._bytes: Counter[str] = Counter()

    def queueing(self, queue: Queue) -> None: ...

    def queued(
        self,
        queue: Queue,
        begun: None,  # noqa: ARG002 -- the operation's times are in a trace
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,  # noqa: ARG002 -- a wait is an operation like others
    ) -> None:
        if self._opened.queues.get(queue.handle) is not queue:
            return
        key = f"{what} {name}"
        self._counts[key] += 1
        self._bytes[key] += nbytes
        if self._options & (_COPIES if what == "copy" else _OPERATIONS):
            _print(f"{key}, {format_bytes(nbytes)}, on queue {queue.handle}")

    def at_exit(self) -> None:
        """Print the totals."""
        for key, number in self._counts.most_common():
            wanted = _COPY_TOTALS if key.startswith("copy ") else _OPERATION_TOTALS
            if self._options & (wanted | _ALL_TOTALS):
                _print(f"total of {key}: {number}, {format_bytes(self._bytes[key])}")


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed
        sys.stderr.write(f"MPS: {text}\n")
