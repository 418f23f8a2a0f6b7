"""Anonymous memory from the operating system, aligned; the only place that talks to libc about it."""

from __future__ import annotations

import ctypes
import errno
import mmap as constants
import os

__all__ = ["ALIGNMENT", "lock_memory", "map_memory", "unmap_memory"]

ALIGNMENT = 2 << 20  # what a port promises, and the size of a huge page

_HUGE = getattr(constants, "MADV_HUGEPAGE", None)  # Linux only

_libc = ctypes.CDLL(None, use_errno=True)  # lets the interpreter go meanwhile: unmapping gigabytes takes milliseconds
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
for _function in (_libc.munmap, _libc.mlock):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


def map_memory(nbytes: int) -> int:
    """The address of zeroed memory, aligned to ALIGNMENT; OSError where the system has none."""
    length = _pages(nbytes)
    # More than is wanted, then both ends go back: mmap itself promises no more than a page.
    slack = ALIGNMENT - constants.PAGESIZE
    protection = constants.PROT_READ | constants.PROT_WRITE
    flags = constants.MAP_PRIVATE | constants.MAP_ANONYMOUS
    base = _libc.mmap(None, length + slack, protection, flags, -1, 0) if length + slack < 1 << 63 else None
    if base is None or base == _FAILED:
        raise _os_error(errno.ENOMEM if base is None else ctypes.get_errno(), "mmap")
    address: int = -(-base // ALIGNMENT) * ALIGNMENT
    if address > base:
        unmap_memory(base, address - base)
    if (end := base + length + slack) > address + length:
        unmap_memory(address + length, end - address - length)
    if _HUGE is not None and nbytes >= ALIGNMENT:
        # NumPy asks for it too, for arrays of 4 MiB or more. A kernel without huge pages says no: as good.
        _libc.madvise(address, length, _HUGE)
    return address


def unmap_memory(address: int, nbytes: int) -> None:
    if _libc.munmap(address, _pages(nbytes)):
        raise _os_error(ctypes.get_errno(), "munmap")


def lock_memory(address: int, nbytes: int) -> None:
    """Keeps memory from being swapped out, until it is unmapped; OSError where the process may not."""
    if _libc.mlock(address, _pages(nbytes)):
        raise _os_error(ctypes.get_errno(), "mlock")


def _pages(nbytes: int) -> int:
    return -(-nbytes // constants.PAGESIZE) * constants.PAGESIZE


def _os_error(number: int, call: str) -> OSError:
    return OSError(number, os.strerror(number), call)
