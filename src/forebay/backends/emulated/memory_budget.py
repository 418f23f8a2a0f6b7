"""Memory of emulated devices: a budget, as the machine may have less than they claim, and a guard against host access.

The tables are native (native/os/touched_pages.hpp, native/os/access_guard.hpp), one of each per process. This module
updates them through ctypes, only when memory is mapped, unmapped or written for the first time.

# Note [Budget of host memory]
An emulated H200 has 140 GiB on a machine with 16, and a program that writes them would make the machine swap, or end by
the kernel's OOM killer. Reserving is free, as pages are allocated on first access; writing is charged, in units of 2
MiB, before the work is queued. The limit is what the system would provide now, without a thirty-second of the usable
memory, minus what was charged and is not resident yet: queued work may be far behind, and the system still reports its
memory as available. Resident pages are counted (`mincore`) only if the request would otherwise be refused. A query
permits a sixteenth of the rest for 50 ms, as it reads files of the system. A graph is charged whole, or not at all,
when it is launched. Rejected: committing what is reserved, as a device could not have more memory than the machine; and
a limit computed once, as the use by other processes changes.
Test: tests/backends/emulated/test_memory_budget.py::test_memory_charged_by_pending_work_is_not_charged_twice
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, Protocol
from weakref import WeakSet

from forebay import _core
from forebay._base import system_memory
from forebay._base.byte_sizes import format_bytes
from forebay.backends.common.mmap import ALIGNMENT
from forebay.errors import OutOfMemory

__all__ = [
    "GuardReporter",
    "MemoryBudget",
    "MemoryOwner",
    "budget",
    "guard",
    "guard_reporter",
    "unbacked_ranges",
    "unguard",
]

_STANDARD_ERROR = 2
# A query of the system's free memory permits charges of this fraction (1/16) of it, for this many seconds.
_AHEAD = 16
_SECONDS = 0.05
_RESERVE = 32  # this fraction (1/32) of the memory stays unused, as the system's numbers are estimates

_native = ctypes.CDLL(_core.__file__)
_span = [ctypes.c_size_t, ctypes.c_size_t]
for _name, _result, _arguments in (
    ("touched_add", ctypes.c_bool, _span),
    ("touched_drop", None, _span),
    ("touched_fresh", ctypes.c_size_t, _span),
    ("touched_mark", None, _span),
    ("touched_total", ctypes.c_size_t, []),
    ("touched_resident", ctypes.c_size_t, _span),
    ("program_fresh", ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]),
    ("guard_add", ctypes.c_bool, [*_span, ctypes.c_size_t, ctypes.c_char_p]),
    ("guard_remove", ctypes.c_bool, _span),
    ("guard_watch", None, [ctypes.c_int]),
    ("guard_unwatch", ctypes.c_bool, []),
):
    _function = getattr(_native, f"forebay_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


class MemoryOwner(Protocol):
    """The part of a port that the budget uses."""

    @property
    def name(self) -> str: ...
    def mappings(self) -> Iterable[tuple[int, int]]: ...  # address and size of all its memory
    def __hash__(self) -> int: ...


class MemoryBudget:
    """The memory that emulated devices of this process may still touch, in units of 2 MiB.

    Memory is charged when work that writes it for the first time is queued.
    """

    def __init__(self) -> None:
        self._owners: WeakSet[MemoryOwner] = WeakSet()
        self._allowance = (0, 0.0)  # bytes that may be charged without a query, and until when
        self._resident = 0  # charged bytes known to be resident, which the system no longer reports as available
        self.reset_lock()

    def reset_lock(self) -> None:
        """Replace the lock, which another thread of the parent may have held when this process was forked."""
        self._lock = threading.RLock()  # a destructor may release memory while the lock is held

    def on_mapped(self, owner: MemoryOwner, address: int, nbytes: int) -> None:
        """Add memory of a device; charged parts stay charged. Raises MemoryError without any effect."""
        self._owners.add(owner)
        if not _native.forebay_touched_add(address, nbytes):
            raise MemoryError("no memory for the table of emulated memory")

    def on_unmapping(self, address: int, nbytes: int, *, part: bool = False) -> None:
        """Remove memory of a device: a whole mapping or a `part`, of which only whole units are removed."""
        with self._lock:
            before = self.touched
            if part:
                end = (address + nbytes) // ALIGNMENT * ALIGNMENT
                address = -(-address // ALIGNMENT) * ALIGNMENT
                nbytes = max(end - address, 0)
            _native.forebay_touched_drop(address, nbytes)
            self._resident = max(self._resident - (before - self.touched), 0)

    def charge(self, owner: MemoryOwner, call: str, *spans: tuple[int, int]) -> None:
        """Charge the memory that work is about to write. Raises OutOfMemory and charges nothing if it is too much."""
        units = [*_whole_units(spans)]
        with self._lock:
            wanted = sum(_native.forebay_touched_fresh(*unit) for unit in units)
            if not wanted:
                return
            allowance, until = self._allowance
            if wanted > allowance or time.monotonic() > until:
                left = self._left(wanted)
                if wanted > left:
                    raise self._out_of_memory(owner.name, call, wanted, left)
                allowance, until = left // _AHEAD + wanted, time.monotonic() + _SECONDS
            self._allowance = allowance - wanted, until
            for unit in units:
                _native.forebay_touched_mark(*unit)

    @property
    def touched(self) -> int:
        """Charged bytes: units that have been written, or will be by queued work."""
        total: int = _native.forebay_touched_total()
        return total

    def _left(self, wanted: int) -> int:
        """Return the bytes that may still be charged.

        Queued work may not have written its memory yet, so if memory is short, resident pages are counted.
        """
        left = self._available() - self.touched + self._resident
        if wanted > left:
            spans = [span for owner in tuple(self._owners) for span in owner.mappings()]
            self._resident = min(sum(_native.forebay_touched_resident(*span) for span in spans), self.touched)
            # Query again: pages that became resident during the count would count twice.
            left = self._available() - self.touched + self._resident
        return left

    def _available(self) -> int:
        """Return the bytes that the system would provide now, beyond the resident ones."""
        usable, available = system_memory.usable_memory(), system_memory.available_memory()
        if available is None:
            available = usable - self._resident
        return available - usable // _RESERVE

    def _out_of_memory(self, device: str, call: str, wanted: int, left: int) -> OutOfMemory:
        usable = system_memory.usable_memory()
        return OutOfMemory(
            f"{device} is emulated, and the machine has not enough memory for this {call}: it would touch "
            f"{format_bytes(wanted)} for the first time, and {format_bytes(max(left, 0))} are left of the "
            f"{format_bytes(usable)} that this process may use. Emulated devices have touched "
            f"{format_bytes(self.touched)} so far. Use smaller tensors, or emulate less: another profile=, or memory=",
            wanted=wanted,
            free=max(left, 0),
            reserved=self.touched,
            capacity=usable,
            call=call,
            device=device,
        )


budget: Final = MemoryBudget()


def _whole_units(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges rounded outwards to whole units, without overlaps."""
    first = end = 0
    for address, nbytes in sorted(spans):
        start, stop = address // ALIGNMENT * ALIGNMENT, -(-(address + nbytes) // ALIGNMENT) * ALIGNMENT
        if start > end:
            if end > first:
                yield first, end - first
            first = start
        end = max(end, stop)
    if end > first:
        yield first, end - first


def unbacked_ranges(program: bytes) -> list[tuple[int, int]]:
    """Return the uncharged ranges that a program would write."""
    count = _native.forebay_program_fresh(program, len(program), None, 0)
    if not count:
        return []
    found = (ctypes.c_size_t * (2 * count))()
    count = min(count, _native.forebay_program_fresh(program, len(program), found, count))
    return [*zip(found[: 2 * count : 2], found[1 : 2 * count : 2], strict=True)]


def guard(address: int, nbytes: int, segment: int, device: str) -> None:
    """Forbid host access to a range. Raises MemoryError if the table is full."""
    if not _native.forebay_guard_add(address, nbytes, segment, device.encode()):
        raise MemoryError("no memory for the table of guarded memory")


def unguard(address: int, nbytes: int) -> None:
    """Remove a range from the guard."""
    if not _native.forebay_guard_remove(address, nbytes):
        raise MemoryError("no memory for the table of guarded memory")


class GuardReporter:
    """Signal handler that reports forbidden accesses while any port is guarded.

    It writes one line, and faulthandler writes the Python stacks.
    """

    def __init__(self) -> None:
        self.descriptor = _STANDARD_ERROR
        self._ports = 0
        self._enabled = False  # faulthandler was enabled here
        self.reset_lock()

    def reset_lock(self) -> None:
        """Replace the lock, as `MemoryBudget.reset_lock`."""
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Install the handler with the first port."""
        with self._lock:
            self._ports += 1
            if not faulthandler.is_enabled():
                faulthandler.enable(self.descriptor)
                self._enabled = True
            _native.forebay_guard_watch(self.descriptor)

    def end(self) -> None:
        """Remove the handler with the last port."""
        with self._lock:
            self._ports -= 1
            # If another handler was installed since, it may chain to this one, and this one to faulthandler.
            if not self._ports and _native.forebay_guard_unwatch() and self._enabled:
                faulthandler.disable()
                self._enabled = False


guard_reporter: Final = GuardReporter()

for _each in (budget, guard_reporter):
    os.register_at_fork(after_in_child=_each.reset_lock)
