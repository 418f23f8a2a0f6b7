"""Values at the addresses that a package passes to its native library."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import sys
import threading

import torch

from forebay._base.byte_sizes import format_bytes
from forebay.errors import DeviceError
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices._storage_owners import EmulatedMemory
from forebay.interop.torch.devices.emulated_memory import memory_containing

__all__ = ["allocate_managed", "memory_of_address", "values_at"]

_NO_RESERVATION = 0x4000  # MAP_NORESERVE, which Python names since 3.13
_managed: dict[int, mmap.mmap] = {}  # managed memory, by the address
_starts: tuple[int, ...] = ()  # the addresses in order, replaced as a whole: other threads read them
_lock = threading.Lock()


def values_at(address: int | None, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor over the values at an address of an emulated device or of managed memory.

    It is contiguous, on the CPU or, if no values are computed, on the meta device. The address may be null for no
    elements. DeviceError is raised if an element is outside the memory of the devices, or the address is not a multiple
    of the element's size.
    """
    device = values.device()
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    if not nbytes:
        return torch.empty(shape, dtype=dtype, device=device)
    first = address or 0
    if first % dtype.itemsize:
        raise DeviceError(f"CUDA error: misaligned address: {first:#x} is not one of {dtype}", code=716)
    buffer = _managed_around(first, nbytes)
    if buffer is not None:
        if device == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.frombuffer(buffer, dtype=torch.uint8)[:nbytes].view(dtype).view(shape)
    memory, offset = memory_containing(first) or (None, 0)
    if memory is None or offset + nbytes > memory.nbytes:
        raise DeviceError(
            f"CUDA error: an illegal memory access was encountered: {nbytes} bytes at {first:#x} are not memory of an "
            "emulated device",
            code=700,
        )
    return torch.empty(0, dtype=dtype, device=device).set_(memory.values, offset // dtype.itemsize, shape)


def memory_of_address(address: int | None) -> EmulatedMemory | None:
    """Return the memory of an emulated device at an address; None for null and for managed memory."""
    if not address or _managed_around(address, 1) is not None:
        return None
    found = memory_containing(address)
    return None if found is None else found[0]


def allocate_managed(nbytes: int) -> int:
    """Allocate managed memory of CUDA, which is memory of the host, for the rest of the process.

    The memory takes room in the host as it is written, and none of the device. PyTorch does not count it either.
    MemoryError is raised if the host's address space has no room for it.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NO_RESERVATION if sys.platform == "linux" else 0)
    try:
        buffer = mmap.mmap(-1, max(1, nbytes), flags=flags)
    except (OSError, OverflowError):
        raise MemoryError(f"the host cannot map {format_bytes(nbytes)} of managed memory") from None
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    global _starts  # noqa: PLW0603 -- guarded by the lock
    with _lock:
        _managed[address] = buffer
        _starts = tuple(sorted(_managed))
    return address


def _managed_around(address: int, nbytes: int) -> memoryview | None:
    """Return the managed memory from an address on, or None if it has not that many bytes there."""
    starts = _starts
    at = bisect.bisect_right(starts, address) - 1
    if at < 0:
        return None
    offset, buffer = address - starts[at], _managed[starts[at]]
    return memoryview(buffer)[offset:] if offset + nbytes <= len(buffer) else None
