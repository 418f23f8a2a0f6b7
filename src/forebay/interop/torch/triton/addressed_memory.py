"""Memory that a kernel reads and writes by addresses of the device: where its values are, and what is outside.

# Note [Addresses in interpreted kernels]
An interpreted kernel computes with the addresses that the program sees, those of the blocks on the emulated device, so
that their alignment and addresses that a program stores in tensors are the device's. At each access they are
translated to those of the values. The handle of a pointer carries the memory of the argument that it came from, so that
an access beyond that memory's block is known also where another block follows; a pointer that was read from memory may
be of any block. What is outside reads as zero and is not written: on a GPU it would read or destroy something else, or
end the program. It is reported with the kernel, the line and the program. Rejected: the addresses of the values as
pointers, as an access outside would destroy memory of this process.
Test: tests/interop/torch/triton/test_interpreter.py::test_access_outside_a_block_is_reported_and_does_nothing
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from forebay.interop.torch.devices._storage_owners import EmulatedMemory, block_addresses, memory_at
from forebay.interop.torch.devices.emulated_memory import memory_of

__all__ = ["AddressedMemory", "memory_of_argument", "translate"]


class AddressedMemory(NamedTuple):
    """The memory of an argument.

    Attributes
    ----------
    name : str
        The name of the argument.
    start : int
        The address on the device.
    nbytes : int
        The bytes that have values.
    room : int
        The bytes of the block.
    values : torch.UntypedStorage
        The values.
    """

    name: str
    start: int
    nbytes: int
    room: int
    values: torch.UntypedStorage


def memory_of_argument(tensor: torch.Tensor, name: str) -> AddressedMemory | None:
    """Return the memory of a tensor; None if the device cannot access it. Raises WrongState after its emulation."""
    if tensor.is_cuda:
        return _addressed(memory_of(tensor), tensor.untyped_storage().data_ptr(), name)
    storage = tensor.untyped_storage()
    if tensor.device.type == "cpu" and tensor.is_pinned():
        return AddressedMemory(name, storage.data_ptr(), storage.nbytes(), storage.nbytes(), storage)
    return None


def _addressed(memory: EmulatedMemory, start: int, name: str) -> AddressedMemory:
    room = memory.nbytes if memory.block is None else memory.block.size
    return AddressedMemory(name, start, memory.nbytes, room, memory.values)


def translate(
    addresses: np.ndarray, mask: np.ndarray, size: int, memory: AddressedMemory | None,
    arguments: Sequence[AddressedMemory],
) -> tuple[np.ndarray, np.ndarray, int | None]:  # fmt: skip
    """Return the addresses of the values, the mask of those that have values, and an address outside or None.

    Parameters
    ----------
    addresses, mask : numpy.ndarray
        Addresses on the device, and which of them are accessed.
    size : int
        The bytes of an element.
    memory : AddressedMemory or None
        The memory from which the addresses were computed, if it is known.
    arguments : sequence of AddressedMemory
        The memory of the kernel's arguments, which may be freed on the device already.
    """
    addresses, mask = np.broadcast_arrays(addresses, mask)
    accessed = addresses if mask.all() else addresses[mask]
    if not accessed.size:
        return addresses, mask, None
    first, last = int(accessed.min()), int(accessed.max())
    if memory is None:
        memory = next((each for each in arguments if each.start <= first and last < each.start + each.room), None)
    if memory is None:
        return _translate_each(addresses, mask, size, arguments)
    moved = addresses - np.uint64(memory.start) + np.uint64(memory.values.data_ptr())
    if first >= memory.start and last + size <= memory.start + memory.nbytes:
        return moved, mask, None
    offsets = addresses.astype(np.int64) - memory.start
    outside = mask & ((offsets < 0) | (offsets + size > memory.room))
    found = int(addresses[outside][0]) if outside.any() else None
    return moved, mask & (offsets >= 0) & (offsets + size <= memory.nbytes), found


def _translate_each(
    addresses: np.ndarray, mask: np.ndarray, size: int, arguments: Sequence[AddressedMemory]
) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Translate addresses that may be in any memory of the devices."""
    tables = {each.start: each for each in arguments}
    starts = sorted({*block_addresses(), *tables})
    moved, inside = addresses.copy(), np.zeros(mask.shape, dtype=bool)
    outside: int | None = None
    for index in zip(*np.nonzero(mask), strict=True):
        address = int(addresses[index])
        start = starts[at] if (at := bisect_right(starts, address) - 1) >= 0 else 0
        memory = tables.get(start)
        if memory is None and (found := memory_at(start)) is not None:
            memory = tables[start] = _addressed(found, start, "")
        if memory is None or address + size > start + memory.room:
            outside = address if outside is None else outside
        elif address + size <= start + memory.nbytes:
            moved[index] = address - start + memory.values.data_ptr()
            inside[index] = True
    return moved, inside, outside
