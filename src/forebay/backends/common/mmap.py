"""Aligned anonymous memory mappings, through libc's mmap family of calls."""

from __future__ import annotations

import ctypes
import mmap as constants
import os
import sys
from collections.abc import Iterator

import numpy as np

from forebay.backends.common._segments import ALIGNMENT, map_aligned

__all__ = [
    "ALIGNMENT",
    "commit_pages",
    "decommit_pages",
    "is_writable",
    "lock_memory",
    "map_memory",
    "map_shared",
    "move_mapping",
    "reserve_pages",
    "touched_ranges",
    "unlock_memory",
    "unmap_memory",
]

_HUGE = getattr(constants, "MADV_HUGEPAGE", None)  # Linux only
_DONTNEED = getattr(constants, "MADV_DONTNEED", None) if sys.platform == "linux" else None  # only a hint elsewhere
_NO_ACCESS = getattr(constants, "PROT_NONE", 0)  # Python may lack these two, which are the same on all systems
_FIXED = getattr(constants, "MAP_FIXED", 0x10)
_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40  # MAP_NORESERVE, which Python lacks
_READ_WRITE = constants.PROT_READ | constants.PROT_WRITE
_PRIVATE = constants.MAP_PRIVATE | constants.MAP_ANONYMOUS

_libc = ctypes.CDLL(None, use_errno=True)  # releases the GIL: unmapping gigabytes takes milliseconds
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
for _function in (_libc.munmap, _libc.mlock, _libc.munlock):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for _function in (_libc.madvise, _libc.mprotect):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if hasattr(_libc, "mremap"):  # Linux
    _libc.mremap.restype = ctypes.c_void_p
    _libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
for _name in ("process_vm_readv", "process_vm_writev"):  # Linux
    if hasattr(_libc, _name):
        getattr(_libc, _name).restype = ctypes.c_ssize_t
        getattr(_libc, _name).argtypes = [ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong]
_MOVE_FIXED = 1 | 2  # MREMAP_MAYMOVE, MREMAP_FIXED
_FAILED = ctypes.c_void_p(-1).value


def map_memory(nbytes: int, *, charged: bool = True) -> int:
    """Map zeroed memory, aligned to ALIGNMENT, and return its address. Raises OSError if there is none.

    Memory that is not `charged` is mapped with MAP_NORESERVE: it may exceed the machine's memory, and the process may
    run out of memory when it touches the pages.
    """
    return map_aligned(nbytes, writable=True, charged=charged)


def reserve_pages(nbytes: int, *, charged: bool = True) -> int:
    """Reserve a range of the process's addresses, aligned to 2 MiB, without memory: an access is an error.

    Parameters
    ----------
    nbytes : int
        Size in bytes.
    charged : bool, default True
        Whether memory that is later mapped to the range counts against what the system has promised. (Pages without
        access do not; this decides whether `commit_pages` detects a shortage: see `map_memory`.)

    Raises
    ------
    OSError
        If the process has no such range.
    """
    return map_aligned(nbytes, writable=False, charged=charged)


def commit_pages(address: int, nbytes: int) -> None:
    """Commit zeroed memory to reserved pages; committed pages keep their contents.

    Raises OSError if there is no memory, possibly after some of the pages.
    """
    if _libc.mprotect(address, nbytes, _READ_WRITE):
        raise _os_error(ctypes.get_errno(), "mprotect")
    _advise_huge(address, nbytes)


def decommit_pages(address: int, nbytes: int, *, charged: bool = True) -> None:
    """Return the memory of pages to the system at once and keep the address space. Raises OSError without any effect.

    Maps anew instead of MADV_DONTNEED with mprotect, which would leave the pages in the system's commit charge.
    """
    flags = _PRIVATE | _FIXED | (0 if charged else _NORESERVE)
    if _libc.mmap(address, nbytes, _NO_ACCESS, flags, -1, 0) != _FAILED:
        return
    error = _os_error(ctypes.get_errno(), "mmap")
    # A process at its limit of mappings can still return the memory, though the pages stay accessible.
    if _DONTNEED is None or _libc.madvise(address, nbytes, _DONTNEED):
        raise error


def unmap_memory(address: int, nbytes: int) -> None:
    """Return a mapped or reserved range of addresses to the system.

    Parameters
    ----------
    address : int
        Address of the range.
    nbytes : int
        Size in bytes.

    Raises
    ------
    OSError
        If the system refuses.
    """
    if _libc.munmap(address, _pages(nbytes)):
        raise _os_error(ctypes.get_errno(), "munmap")


def is_writable(address: int, nbytes: int) -> bool:
    """Return True if the process can write to a range. Only Linux can tell; elsewhere only small addresses are refused.

    The system copies the range to itself, and returns an error where an access would end the process.
    """
    if not 4096 <= address < 1 << 63:
        return False
    if not hasattr(_libc, "process_vm_writev"):
        return True
    copy = ctypes.create_string_buffer(nbytes)
    own, range_ = (_IoVector(at, nbytes) for at in (ctypes.addressof(copy), address))
    vectors = ctypes.byref(own), 1, ctypes.byref(range_), 1, 0
    return bool(
        _libc.process_vm_readv(os.getpid(), *vectors) == nbytes
        and _libc.process_vm_writev(os.getpid(), *vectors) == nbytes
    )


class _IoVector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def map_shared(number: int, nbytes: int) -> int:
    """Map a file descriptor shared (MAP_SHARED) and return the address. Raises OSError."""
    address: int | None = _libc.mmap(None, _pages(nbytes), _READ_WRITE, constants.MAP_SHARED, number, 0)
    if address is None or address == _FAILED:
        raise _os_error(ctypes.get_errno(), "mmap")
    return address


def move_mapping(source: int, nbytes: int, target: int) -> None:
    """Move a mapping to `target`, replacing what is mapped there. Raises OSError without any effect."""
    if _libc.mremap(source, _pages(nbytes), _pages(nbytes), _MOVE_FIXED, target) == _FAILED:
        raise _os_error(ctypes.get_errno(), "mremap")


def touched_ranges(address: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield address and size of each range that may be nonzero. Reading other pages would allocate them."""
    first, pages = address // constants.PAGESIZE, _pages(nbytes) // constants.PAGESIZE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as entries:  # noqa: PTH123 -- not a user's path
            for at in range(0, pages, _ENTRIES):
                entries.seek(8 * (first + at))
                found = np.frombuffer(entries.read(8 * min(_ENTRIES, pages - at)), np.uint64) >> np.uint64(62) != 0
                edges = np.flatnonzero(np.diff(np.concatenate(([False], found, [False])))).tolist()
                for begin, end in zip(edges[::2], edges[1::2], strict=True):
                    yield address + (at + begin) * constants.PAGESIZE, (end - begin) * constants.PAGESIZE
    except OSError:
        yield address, nbytes


_ENTRIES = 1 << 17  # of 8 bytes, read at once


def lock_memory(address: int, nbytes: int) -> None:
    """Lock pages in memory until they are unmapped. Raises OSError, for example beyond RLIMIT_MEMLOCK."""
    start, length = _page_range(address, nbytes)
    if _libc.mlock(start, length):
        raise _os_error(ctypes.get_errno(), "mlock")


def unlock_memory(address: int, nbytes: int) -> None:
    """Unlock all pages that overlap a range. Raises OSError."""
    start, length = _page_range(address, nbytes)
    if _libc.munlock(start, length):
        raise _os_error(ctypes.get_errno(), "munlock")


def _advise_huge(address: int, length: int) -> None:
    """Request huge pages, as NumPy does for arrays of 4 MiB or more. A failure does not matter."""
    if _HUGE is not None:
        _libc.madvise(address, length, _HUGE)


def _pages(nbytes: int) -> int:
    return -(-nbytes // constants.PAGESIZE) * constants.PAGESIZE


def _page_range(address: int, nbytes: int) -> tuple[int, int]:
    """Return the smallest range of whole pages that covers a range."""
    start = address // constants.PAGESIZE * constants.PAGESIZE
    return start, _pages(address + nbytes - start)


def _os_error(number: int, call: str) -> OSError:
    return OSError(number, os.strerror(number), call)
