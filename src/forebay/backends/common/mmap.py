"""Anonymous memory from the operating system, aligned; the only place that talks to libc about it."""

from __future__ import annotations

import ctypes
import errno
import mmap as constants
import os
import sys
from collections.abc import Iterator

import numpy as np

__all__ = [
    "ALIGNMENT",
    "close_pages",
    "lock_memory",
    "map_memory",
    "map_shared",
    "map_space",
    "open_pages",
    "put_in_place",
    "touched_runs",
    "unlock_memory",
    "unmap_memory",
]

ALIGNMENT = 2 << 20  # what a port promises, and the size of a huge page

_HUGE = getattr(constants, "MADV_HUGEPAGE", None)  # Linux only
_EMPTIED = getattr(constants, "MADV_DONTNEED", None) if sys.platform == "linux" else None  # elsewhere it is a hint
_NOTHING = getattr(constants, "PROT_NONE", 0)  # of these two Python may not tell, and they are the same everywhere
_FIXED = getattr(constants, "MAP_FIXED", 0x10)
_UNPROMISED = 0x4000 if sys.platform == "linux" else 0x40  # MAP_NORESERVE, of which Python does not tell either
_USABLE = constants.PROT_READ | constants.PROT_WRITE
_OWN = constants.MAP_PRIVATE | constants.MAP_ANONYMOUS

_libc = ctypes.CDLL(None, use_errno=True)  # lets the interpreter go meanwhile: unmapping gigabytes takes milliseconds
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
for _function in (_libc.munmap, _libc.mlock, _libc.munlock):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for _function in (_libc.madvise, _libc.mprotect):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if hasattr(_libc, "mremap"):  # Linux
    _libc.mremap.restype = ctypes.c_void_p
    _libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_MOVE_THERE = 1 | 2  # MREMAP_MAYMOVE, MREMAP_FIXED
_FAILED = ctypes.c_void_p(-1).value


def map_memory(nbytes: int, *, promised: bool = True) -> int:
    """The address of zeroed memory, aligned to ALIGNMENT; OSError where the system has none.

    What it has not promised it may lack when it is touched; but then there may be more of it than there is memory.
    """
    address = _map_aligned(_pages(nbytes), _USABLE, 0 if promised else _UNPROMISED)
    if nbytes >= ALIGNMENT:
        _advise_huge(address, _pages(nbytes))
    return address


def map_space(nbytes: int) -> int:
    """The same without memory: to touch it is an error until `open_pages`.

    The system promises no memory for it. MAP_NORESERVE would change nothing here, but keep the system from refusing
    later what it has not got.
    """
    return _map_aligned(_pages(nbytes), _NOTHING)


def open_pages(address: int, nbytes: int) -> None:
    """Zeroed memory comes into address space, or stays as it is; OSError, perhaps half way, where there is none."""
    if _libc.mprotect(address, nbytes, _USABLE):
        raise _os_error(ctypes.get_errno(), "mprotect")
    _advise_huge(address, nbytes)


def close_pages(address: int, nbytes: int) -> None:
    """The memory goes back to the system at once, the address space stays; OSError, and nothing happened, if not.

    A new mapping over the old one: to advise the pages away, and forbid them, would leave them counted as promised.
    """
    if _libc.mmap(address, nbytes, _NOTHING, _OWN | _FIXED, -1, 0) != _FAILED:
        return
    refused = _os_error(ctypes.get_errno(), "mmap")
    # A process that has all the mappings it may have can still give up memory, though not the right to touch it.
    if _EMPTIED is None or _libc.madvise(address, nbytes, _EMPTIED):
        raise refused


def unmap_memory(address: int, nbytes: int) -> None:
    if _libc.munmap(address, _pages(nbytes)):
        raise _os_error(ctypes.get_errno(), "munmap")


def map_shared(number: int, nbytes: int) -> int:
    """The file's memory, which all who map it see alike; OSError."""
    address: int | None = _libc.mmap(None, _pages(nbytes), _USABLE, constants.MAP_SHARED, number, 0)
    if address is None or address == _FAILED:
        raise _os_error(ctypes.get_errno(), "mmap")
    return address


def put_in_place(source: int, nbytes: int, target: int) -> None:
    """The mapping moves to the target, in place of what is there; OSError, and nothing happened, if not."""
    if _libc.mremap(source, _pages(nbytes), _pages(nbytes), _MOVE_THERE, target) == _FAILED:
        raise _os_error(ctypes.get_errno(), "mremap")


def touched_runs(address: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Addresses and sizes of what of this memory may be other than zero. Reading the rest would give it pages."""
    first, pages = address // constants.PAGESIZE, _pages(nbytes) // constants.PAGESIZE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as entries:  # noqa: PTH123 -- it is no path of a user's
            for at in range(0, pages, _ENTRIES):
                entries.seek(8 * (first + at))
                found = np.frombuffer(entries.read(8 * min(_ENTRIES, pages - at)), np.uint64) >> np.uint64(62) != 0
                edges = np.flatnonzero(np.diff(np.concatenate(([False], found, [False])))).tolist()
                for begin, end in zip(edges[::2], edges[1::2], strict=True):
                    yield address + (at + begin) * constants.PAGESIZE, (end - begin) * constants.PAGESIZE
    except OSError:
        yield address, nbytes


_ENTRIES = 1 << 17  # of 8 bytes, read at a time


def lock_memory(address: int, nbytes: int) -> None:
    """Keeps memory from being swapped out, until it is unmapped; OSError where the process may not."""
    start, length = _covering(address, nbytes)
    if _libc.mlock(start, length):
        raise _os_error(ctypes.get_errno(), "mlock")


def unlock_memory(address: int, nbytes: int) -> None:
    """All pages that it touches may be swapped out again."""
    start, length = _covering(address, nbytes)
    if _libc.munlock(start, length):
        raise _os_error(ctypes.get_errno(), "munlock")


def _map_aligned(length: int, protection: int, flags: int = 0) -> int:
    # More than is wanted, then both ends go back: mmap itself promises no more than a page.
    slack = ALIGNMENT - constants.PAGESIZE
    base = _libc.mmap(None, length + slack, protection, _OWN | flags, -1, 0) if length + slack < 1 << 63 else None
    if base is None or base == _FAILED:
        raise _os_error(errno.ENOMEM if base is None else ctypes.get_errno(), "mmap")
    address: int = -(-base // ALIGNMENT) * ALIGNMENT
    if address > base:
        unmap_memory(base, address - base)
    if (end := base + length + slack) > address + length:
        unmap_memory(address + length, end - address - length)
    return address


def _advise_huge(address: int, length: int) -> None:
    """NumPy asks for it too, for arrays of 4 MiB or more. A kernel without huge pages says no: as good."""
    if _HUGE is not None:
        _libc.madvise(address, length, _HUGE)


def _pages(nbytes: int) -> int:
    return -(-nbytes // constants.PAGESIZE) * constants.PAGESIZE


def _covering(address: int, nbytes: int) -> tuple[int, int]:
    """Whole pages that cover it."""
    start = address // constants.PAGESIZE * constants.PAGESIZE
    return start, _pages(address + nbytes - start)


def _os_error(number: int, call: str) -> OSError:
    return OSError(number, os.strerror(number), call)
