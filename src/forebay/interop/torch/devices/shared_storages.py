"""Storages of emulated devices that are sent to other processes, as `torch.multiprocessing` does.

# Note [Sent storages]
On a GPU, another process maps the segment of a storage, and the sender keeps the block until the receiver has returned
it. Both hold here: forebay's runtime sends the block of an emulated device as that of any device, and its address in
the receiver is that of a mapped segment. The values are apart from the block: the handle takes their storage with it,
which the pickler of multiprocessing moves to memory that both processes share. Rejected: a copy of the values, as
Hogwild training and actors with one learner write to the tensors that they share.
Test: tests/interop/torch/devices/test_shared_storages.py::test_processes_share_a_tensor_until_the_receiver_returns_it
"""

from __future__ import annotations

from typing import Any

import torch

from forebay._base.device_spec import Device
from forebay.backends.common.shared_slots import Lease
from forebay.errors import Unsupported
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import find_memory, storage_at
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.memory import ipc_memory
from forebay.runtime.memory.storage import Storage

__all__ = ["replace_sharing"]

_StorageBase: Any = torch._C.StorageBase
_WORDS = ("forebay.memory.set_allocator_settings", "torch.cuda.memory._set_allocator_settings")
_RECEIVED = (
    "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning "
    "before sending."
)


def replace_sharing(names: NameReplacements) -> None:
    """Replace the methods of storages that share their memory between processes."""
    names.replace(torch.UntypedStorage, "_share_cuda_", _share)
    names.replace(torch.UntypedStorage, "_new_shared_cuda", staticmethod(_receive))
    names.replace(torch.UntypedStorage, "_release_ipc_counter_cuda", staticmethod(_return))


class _SegmentHandle:
    """Handle of a segment, which takes a storage of values along, once. Equal to others of the same segment.

    PyTorch keeps handles in a table, also when the storages of which they are have been deleted.
    """

    __slots__ = ("segment", "values")

    def __init__(self, segment: bytes, values: torch.UntypedStorage | None) -> None:
        self.segment, self.values = segment, values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SegmentHandle) and self.segment == other.segment

    def __hash__(self) -> int:
        return hash(self.segment)

    def __reduce__(self) -> tuple[Any, ...]:
        return _SegmentHandle, (self.segment, self.take())

    def take(self) -> torch.UntypedStorage | None:
        """Return the values, which the handle then has no more."""
        found, self.values = self.values, None
        return found


def _share(self: torch.UntypedStorage, *arguments: Any) -> Any:
    """Return what `_receive` needs in another process, in PyTorch's order."""
    memory = find_memory(self)
    if memory is None:
        return _StorageBase._share_cuda_(self, *arguments)
    index = memory.opened.device.index or 0
    if not memory.nbytes:
        return index, None, 0, 0, b"", 0, b"", False
    if memory.block is None:
        raise RuntimeError(_RECEIVED)
    try:
        sent = ipc_memory.send(Storage(memory.opened, memory.nbytes, memory.block.address, memory.block))
    except Unsupported as error:
        raise RuntimeError(str(error).replace(*_WORDS)) from None
    shared = memory.values if values.is_computed() else None
    handle = _SegmentHandle(sent.handle or b"", shared)
    return index, handle, sent.nbytes, sent.offset, sent.lease, 0, sent.event, sent.event_sync_required


def _receive(
    device: int,
    handle: _SegmentHandle | None,
    nbytes: int,
    offset: int,
    lease: bytes,
    _lease_offset: int,
    event: int,
    event_sync_required: bool,
) -> torch.UntypedStorage:
    """Return a storage over the memory of the process that has sent it."""
    if handle is None:
        return torch.UntypedStorage(0, device=f"cuda:{device}")
    sent = ipc_memory.StorageHandle(
        Device("cuda", device), handle.segment, nbytes, offset, lease, event, event_sync_required
    )
    received = ipc_memory.receive(sent)
    over: Any = handle.take()
    if over is None:
        over = torch.UntypedStorage(nbytes, device="meta")
    over.forebay_received = received  # which is returned to the sender when the storage is deleted
    return storage_at(over, received.opened, received.address)


def _return(lease: bytes, _offset: int, **_: Any) -> None:
    """Return memory that was sent again while the first storage over it is alive."""
    found = Lease.open(lease, "cuda")
    if found.borrow():
        found.return_memory()
