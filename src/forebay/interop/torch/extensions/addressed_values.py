"""Values at the addresses that a package passes to its native library."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

from forebay.errors import DeviceError
from forebay.interop.torch.devices.emulated_memory import EmulatedMemory, memory_around

__all__ = ["allocate_managed", "memory_of_address", "values_at"]

_NO_RESERVATION = 0x4000  # MAP_NORESERVE, which Python names since 3.13
_managed: dict[int, mmap.mmap] = {}  # by the address


def values_at(address: int | None, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor on the CPU over the values at an address of an emulated device or of managed memory.

    Parameters
    ----------
    address : int or None
        The address. It may be null for no elements.
    dtype : torch.dtype
        Type of the elements.
    *shape : int
        Shape of the tensor.

    Returns
    -------
    torch.Tensor
        The contiguous tensor.

    Raises
    ------
    DeviceError
        If the address, or the last element, is outside the memory of the devices.
    """
    made = torch.empty(0, dtype=dtype)
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    if not nbytes:
        return made.reshape(shape)
    first = address or 0
    found = memory_around(first)
    if found is not None and found[1] + nbytes <= found[0].nbytes:
        return made.set_(found[0].values, found[1] // dtype.itemsize, shape)
    for begin, buffer in _managed.items():
        if begin <= first <= begin + len(buffer) - nbytes:
            return torch.frombuffer(buffer, dtype=torch.uint8)[first - begin :][:nbytes].view(dtype).view(shape)
    raise DeviceError(
        f"CUDA error: an illegal memory access was encountered: {nbytes} bytes at {first:#x} are not memory of "
        "an emulated device",
        code=700,
    )


def memory_of_address(address: int | None) -> EmulatedMemory | None:
    """Return the memory of an emulated device at an address; None for null and for managed memory."""
    found = memory_around(address) if address else None
    return None if found is None else found[0]


def allocate_managed(nbytes: int) -> int:
    """Allocate managed memory of CUDA, which is memory of the host, for the rest of the process.

    Parameters
    ----------
    nbytes : int
        Size in bytes.

    Returns
    -------
    int
        The address.

    Notes
    -----
    The memory takes room in the host as it is written, and none of the device. PyTorch does not count it either.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NO_RESERVATION if sys.platform == "linux" else 0)
    buffer = mmap.mmap(-1, max(1, nbytes), flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    _managed[address] = buffer
    return address
