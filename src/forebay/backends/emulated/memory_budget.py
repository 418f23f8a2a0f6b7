"""The memory of emulated devices: the machine may have less than they, and the host must not touch it.

The tables are native (`native/os/touched_pages.hpp`, `native/os/access_guard.hpp`), one of each for the process.
They are asked and told
here, through ctypes: only where memory comes or goes, or is written for the first time.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Protocol
from weakref import WeakSet

from forebay import _core, config
from forebay.backends.common.mmap import ALIGNMENT
from forebay.byte_sizes import format_bytes
from forebay.errors import OutOfMemory

__all__ = ["Holder", "Room", "Watch", "fresh_in", "guard", "room", "unguard", "watch"]

_STANDARD_ERROR = 2
_AHEAD = 16  # after a look, one part in so many of what is left may be touched without another one,
_SECONDS = 0.05  # for so long
_RESERVE = 32  # one part in so many of the memory is left alone: the system's figures are estimates

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


class Holder(Protocol):
    """A port, as the room sees it."""

    @property
    def name(self) -> str: ...
    def mappings(self) -> Iterable[tuple[int, int]]: ...  # addresses and sizes of all that it has
    def __hash__(self) -> int: ...


class Room:
    """How much memory the emulated devices of this process may still touch, in steps of 2 MiB."""

    def __init__(self) -> None:
        self._holders: WeakSet[Holder] = WeakSet()
        self._ahead = (0, 0.0)  # bytes, and until when
        self._settled = 0  # bytes of touched memory that the system has certainly given, and no longer offers
        self.forget_lock()

    def forget_lock(self) -> None:
        """In a forked child another thread of the parent may have held the old one."""
        self._lock = threading.RLock()  # a destructor may release memory inside

    def came(self, holder: Holder, address: int, nbytes: int) -> None:
        """The device has this memory now; what it had of it already stays counted. MemoryError: nothing happened."""
        self._holders.add(holder)
        if not _native.forebay_touched_add(address, nbytes):
            raise MemoryError("no memory for the table of emulated memory")

    def going(self, address: int, nbytes: int, *, part: bool = False) -> None:
        """The device loses this memory, which is all of a mapping or a `part`: then a step goes as a whole only."""
        with self._lock:
            before = self.touched
            if part:
                end = (address + nbytes) // ALIGNMENT * ALIGNMENT
                address = -(-address // ALIGNMENT) * ALIGNMENT
                nbytes = max(end - address, 0)
            _native.forebay_touched_drop(address, nbytes)
            self._settled = max(self._settled - (before - self.touched), 0)

    def count(self, holder: Holder, call: str, *spans: tuple[int, int]) -> None:
        """Work is about to write there. OutOfMemory, and nothing is counted, where the machine has not got so much."""
        pieces = [*_whole_steps(spans)]
        with self._lock:
            wanted = sum(_native.forebay_touched_fresh(*piece) for piece in pieces)
            if not wanted:
                return
            ahead, until = self._ahead
            if wanted > ahead or time.monotonic() > until:
                left = self._left(wanted)
                if wanted > left:
                    raise self._refusal(holder.name, call, wanted, left)
                ahead, until = left // _AHEAD + wanted, time.monotonic() + _SECONDS
            self._ahead = ahead - wanted, until
            for piece in pieces:
                _native.forebay_touched_mark(*piece)

    @property
    def touched(self) -> int:
        """Bytes of steps that have been written, or will be by what is queued."""
        total: int = _native.forebay_touched_total()
        return total

    def _left(self, wanted: int) -> int:
        """How much more may be touched. What is queued may not have its memory yet, so that is looked at when tight."""
        left = self._offered() - self.touched + self._settled
        if wanted > left:
            spans = [span for holder in tuple(self._holders) for span in holder.mappings()]
            self._settled = min(sum(_native.forebay_touched_resident(*span) for span in spans), self.touched)
            left = self._offered() - self.touched + self._settled  # asked again: what came meanwhile counts twice
        return left

    def _offered(self) -> int:
        """How much the system would give now, beyond what is settled."""
        usable, available = config.usable_memory(), config.available_memory()
        if available is None:
            available = usable - self._settled
        return available - usable // _RESERVE

    def _refusal(self, device: str, call: str, wanted: int, left: int) -> OutOfMemory:
        usable = config.usable_memory()
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


room = Room()


def _whole_steps(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same rounded to whole steps, and none of them twice."""
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


def fresh_in(program: bytes) -> list[tuple[int, int]]:
    """Where a program would write memory that is not counted yet."""
    count = _native.forebay_program_fresh(program, len(program), None, 0)
    if not count:
        return []
    found = (ctypes.c_size_t * (2 * count))()
    count = min(count, _native.forebay_program_fresh(program, len(program), found, count))
    return [*zip(found[: 2 * count : 2], found[1 : 2 * count : 2], strict=True)]


def guard(address: int, nbytes: int, segment: int, device: str) -> None:
    """The host may not touch this any more; MemoryError where it cannot be noted."""
    if not _native.forebay_guard_add(address, nbytes, segment, device.encode()):
        raise MemoryError("no memory for the table of guarded memory")


def unguard(address: int, nbytes: int) -> None:
    if not _native.forebay_guard_remove(address, nbytes):
        raise MemoryError("no memory for the table of guarded memory")


class Watch:
    """Who tells of a touch, as long as any port is guarded: our line and, from faulthandler, Python's stacks."""

    def __init__(self) -> None:
        self.descriptor = _STANDARD_ERROR
        self._ports = 0
        self._enabled = False  # faulthandler, by us
        self.forget_lock()

    def forget_lock(self) -> None:
        """As `Room.forget_lock`."""
        self._lock = threading.RLock()

    def begin(self) -> None:
        with self._lock:
            self._ports += 1
            if not faulthandler.is_enabled():
                faulthandler.enable(self.descriptor)
                self._enabled = True
            _native.forebay_guard_watch(self.descriptor)

    def end(self) -> None:
        with self._lock:
            self._ports -= 1
            # Where somebody else took the signal since, he may call us, and we faulthandler.
            if not self._ports and _native.forebay_guard_unwatch() and self._enabled:
                faulthandler.disable()
                self._enabled = False


watch = Watch()

for _each in (room, watch):
    os.register_at_fork(after_in_child=_each.forget_lock)
