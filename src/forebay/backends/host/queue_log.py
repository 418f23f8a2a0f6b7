"""Log of the times at which a host queue ran its recent work; see `spi.ExecutionLog`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import index

from forebay import _core
from forebay.backends.common._disposal import Disposable, call_with_all

__all__ = ["HostLog"]

_functions = ctypes.CDLL(_core.__file__)
_functions.forebay_log.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_functions.forebay_log.restype = ctypes.c_void_p
_functions.forebay_log_drop.argtypes = [ctypes.c_void_p]
_functions.forebay_log_drop.restype = None
_drop = _functions.forebay_log_drop
# PyDLL keeps the GIL: the function takes no lock, and reacquiring the GIL could cost a switch interval (5 ms).
_times = ctypes.PyDLL(_core.__file__).forebay_log_times
_times.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int64)]
_times.restype = None
_Times = ctypes.c_int64 * 2


class HostLog(Disposable):
    """Log of a host queue. Raises MemoryError if it cannot be allocated or, in a forked child, has no queue."""

    _native = 0

    def __init__(self, queue: _core.Queue, most: int) -> None:
        if (most := index(most)) < 1:
            raise ValueError(f"a log must hold at least 1 piece of work, not {most}")
        if not most >> 63:
            self._native = _functions.forebay_log(queue.native(), most) or 0
        self._owned = [self._native] if self._native else []
        if not self._native:
            raise MemoryError(f"a log of {most} pieces of work could not be allocated")

    def __call__(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the begin and end times of pieces of work."""
        return [self._times(number) for number in numbers]

    def _times(self, number: int) -> tuple[int, int]:
        if (number := index(number)) < 0 or number >> 63:
            raise ValueError(f"the number of a piece of work must be from 0 to 2**63 - 1, not {number}")
        found = _Times()
        _times(self._native, number, found)
        begin, end = found
        return begin, end

    def _dispose(self) -> None:
        call_with_all(_drop, getattr(self, "_owned", []))
