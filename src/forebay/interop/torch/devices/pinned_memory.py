"""Pinned CPU tensors of PyTorch, in forebay's cache of pinned memory.

PyTorch's factories, `pin_memory` and copies to the host ask an allocator for pinned memory, which calls `allocate`:
Note [Patched interfaces of PyTorch]. So its function objects stay themselves.
"""

from __future__ import annotations

import torch

from forebay._base.device_spec import Device
from forebay.errors import ForebayError
from forebay.interop.torch.devices._device_guard import pinned_blocks
from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.runtime.devices import current, open_device
from forebay.runtime.pinned import registered_memory
from forebay.runtime.pinned.pinned_allocator import PinnedBlock
from forebay.runtime.streams.stream import current_stream_for

__all__ = ["allocate", "is_pinned_address", "note_use"]

_blocks = pinned_blocks()


def allocate(nbytes: int) -> tuple[int, PinnedBlock] | None:
    """Pin memory, and return its address and owner; None if the host has none."""
    device = Device("cuda", current.current_index("cuda"))
    try:
        block = open_device.pinned_allocator(device).allocate(nbytes)
    except (ForebayError, ValueError):
        return None
    return block.address, block


def is_pinned_address(address: int) -> bool:
    """Return True if memory is pinned: a block, a part of one, or memory that `cudaHostRegister` has pinned."""
    return address in _blocks or registered_memory.contains(address) or _block_around(address) is not None


def _block_around(address: int) -> PinnedBlock | None:
    blocks = [*_blocks.items()]
    return next((block for start, block in blocks if start <= address < start + block.size), None)


def note_use(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Note a copy between a tensor of the host and one of a device, before whose end pinned memory is not reused."""
    if _blocks and tensor.device.type == "cpu" and tensor.layout is torch.strided:
        block = _blocks.get(tensor.untyped_storage().data_ptr())
        stream = None if block is None else current_stream_for(open_torch_device(other.device))
        if block is not None and stream is not None and not stream.is_capturing():
            block.record_stream(stream.queue)
