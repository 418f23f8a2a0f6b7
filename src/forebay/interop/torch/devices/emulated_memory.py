"""Memory of PyTorch's CUDA tensors on emulated devices: a block of forebay's allocator beside the tensor's values.

The address that PyTorch sees is the block's, which is never read or written. The values are a storage of PyTorch's on
the CPU or, in the mode that computes none, on its meta device. A capsule of DLPack makes a storage of the device `cuda`
from the address; its owner is deleted with the storage, and frees the block: see Note [Storages are deleted in one
step].
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from forebay._base.byte_sizes import format_bytes
from forebay._base.device_spec import Device
from forebay.errors import ForebayError, OutOfMemory, Unsupported, WrongState
from forebay.interop.torch.devices._storage_owners import (
    EmulatedMemory,
    MemoryOwner,
    allocation_trace,
    block_addresses,
    ended_memory,
    exchange_memory,
    memory_at,
    memory_of_storage,
    memory_of_values,
    replace_memory,
)
from forebay.interop.torch.devices.oom_text import pytorch_error
from forebay.interop.torch.devices.values import device as device_of_values
from forebay.runtime.devices import current, open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory._dlpack import export_memory
from forebay.runtime.memory.storage import AnyBlock, allocate_block
from forebay.runtime.streams.stream import current_stream_for

__all__ = [
    "accessed_memory", "adopt", "alias", "allocate_bytes",
    "check_host", "ended_tensor", "explain_host_error",
    "find_memory",
    "is_replaying",
    "logged",
    "memory_containing",
    "memory_of",
    "mixed_devices",
    "needed_bytes",
    "open_torch_device",
    "over_storage",
    "part_of_storage",
    "replaying", "resize_storage", "set_observer",
    "shadow",
    "storage_at",
    "swap_memory",
    "without_block",
]  # fmt: skip

_CUDA = 2  # kDLCUDA
_HOST_ERROR = re.compile(r"DefaultCPUAllocator: .* you tried to allocate ([0-9]+) bytes")
_BYTE = (1, 8)
_ELEMENTS: dict[torch.dtype, tuple[int, int]] = {
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: _BYTE, torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16),
    torch.complex64: (5, 64), torch.complex128: (5, 128), torch.bool: (6, 8),
}  # fmt: skip
_AS_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_as_strided = torch.ops.aten.as_strided.default.redispatch
# Without an object for the storage: PyTorch's engine adds gradients in place only if nothing else refers to it.
_storage_id = torch._C._storage_id
_view_dtype = torch.ops.aten.view.dtype.redispatch

_StorageBase: Any = torch._C.StorageBase
_swap: Any = getattr(_StorageBase, "_swap_data_ptr_", None)  # of PyTorch 2.13, at the latest
_observer: Callable[[EmulatedMemory], None] | None = None
_on_block: Callable[[OpenDevice, AnyBlock, int], None] | None = None


def set_observer(
    observer: Callable[[EmulatedMemory], None] | None,
    on_block: Callable[[OpenDevice, AnyBlock, int], None] | None = None,
) -> None:
    """Call a function with each memory that is allocated from now on; None for no function.

    The function may set `record` and `freed` of the memory, to learn of its end. `on_block` is called after each block
    that PyTorch would take, workspaces included, before it belongs to a tensor, with the block and the requested bytes.
    """
    global _observer, _on_block
    _observer, _on_block = observer, on_block


def resize_storage(storage: torch.UntypedStorage, memory: EmulatedMemory, nbytes: int) -> None:
    """Give a storage a new block, at another address, and keep its values as far as they fit."""
    block = None if is_replaying() else allocate_bytes(memory.opened, nbytes)
    empty = _bytes_over(EmulatedMemory(memory.values, None, memory.opened, 0))
    new = _bytes_over(EmulatedMemory(memory.values, block, memory.opened, nbytes))
    resize = partial(_StorageBase.resize_, memory.values, nbytes)
    replace_memory(_swap, storage, empty.untyped_storage(), new.untyped_storage(), resize)


def swap_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages, as `UntypedStorage._swap_data_ptr_`."""
    if find_memory(one) is None or find_memory(other) is None:  # PyTorch refuses two devices
        _swap(one, other)
    else:
        exchange_memory(_swap, one, other)


def part_of_storage(storage: torch.UntypedStorage, memory: EmulatedMemory, begin: int, end: int) -> Any:
    """Return a storage over a part of the memory of another one, which it keeps."""
    part: Any
    if memory.values.device.type == "cpu":
        part = _StorageBase.__getitem__(memory.values, slice(begin, end))
    else:
        part = torch.UntypedStorage(end - begin, device=memory.values.device)
    part.forebay_whole = storage
    memory.known = memory.assumed = None  # of which writes to the part are not seen
    return storage_at(part, memory.opened, storage.data_ptr() + begin)


def storage_at(values: torch.UntypedStorage, opened: OpenDevice, address: int) -> torch.UntypedStorage:
    """Return a storage of the device with the values, over memory at an address that is not its own."""
    return _bytes_over(EmulatedMemory(values, None, opened, values.nbytes()), address).untyped_storage()


def open_torch_device(device: torch.device | int | None) -> OpenDevice:
    """Open the emulated device that PyTorch's device denotes, by default the current one."""
    index = device.index if isinstance(device, torch.device) else device
    try:
        return open_device.open_device(Device("cuda", current.current_index("cuda") if index is None else index))
    except ForebayError:
        if open_device.device_count("cuda"):
            raise
        raise ended_tensor("CUDA devices") from None


def mixed_devices(one: torch.device, other: torch.device) -> RuntimeError:
    """Return PyTorch's error for an operator with tensors on two devices."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!"
    )


def allocate_bytes(opened: OpenDevice, nbytes: int) -> AnyBlock | None:
    """Allocate memory for the current stream. Raises torch.OutOfMemoryError with PyTorch's text."""
    if not nbytes:
        return None
    try:
        block = allocate_block(opened, nbytes, current_stream_for(opened).handle)
    except OutOfMemory as error:
        raise pytorch_error(error) from None
    if _on_block is not None:
        _on_block(opened, block, nbytes)
    if (trace := allocation_trace()) is not None:
        trace(block.address)
    return block


def explain_host_error(error: RuntimeError, device: torch.device | None) -> None:
    """Raise another error if values did not fit into the host: that of the device if it has no room for them either."""
    found = _HOST_ERROR.search(str(error))
    if found is not None:
        nbytes = int(found[1])
        traceback.clear_frames(error.__traceback__)  # which may have the block already
        allocate_bytes(open_torch_device(device), nbytes)
        raise MemoryError(
            f"the host has no memory for {format_bytes(nbytes)} of values: compute only shapes, with --shapes-only "
            "(mode='shapes')"
        ) from error


class _Thread(threading.local):
    log: list[EmulatedMemory] | None = None  # what this thread adopts
    results: Iterator[torch.UntypedStorage] | None = None  # the values that this thread's new results replace


_thread = _Thread()


@contextmanager
def logged() -> Iterator[list[EmulatedMemory]]:
    """List the memory of all results that this thread adopts."""
    before, _thread.log = _thread.log, []
    try:
        yield _thread.log
    finally:
        _thread.log = before


@contextmanager
def replaying(results: Sequence[torch.UntypedStorage]) -> Iterator[None]:
    """Copy what this thread adopts into given values, in order, without an allocation."""
    _thread.results = iter(results)
    try:
        yield
    finally:
        _thread.results = None


def is_replaying() -> bool:
    """Return True while this thread repeats kernels of a graph, whose memory is allocated."""
    return _thread.results is not None


def without_block(values: torch.Tensor, opened: OpenDevice) -> torch.Tensor:
    """Return a tensor of the device with the values, for which no memory of the device is allocated."""
    storage = values.untyped_storage()
    return _tensor_over(values, EmulatedMemory(storage, None, opened, storage.nbytes()))


def shadow(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the values of another one, for which no memory of the device is allocated."""
    memory = memory_of(tensor)
    made = _tensor_over(alias(tensor), EmulatedMemory(memory.values, None, memory.opened, memory.nbytes))
    if tensor.requires_grad:
        made.requires_grad_()
    return made


def adopt(values: torch.Tensor, opened: OpenDevice, block: AnyBlock | None = None) -> torch.Tensor:
    """Return a tensor of the device with the values, for which `block` or a new block is allocated."""
    if values.is_conj() or values.is_neg():
        values = values.resolve_conj().resolve_neg()
    storage = values.untyped_storage()
    nbytes: int = storage.nbytes()
    if _thread.results is not None:
        kept = next(_thread.results)
        if kept.nbytes() == nbytes:  # else a later operator of the graph has resized it, and writes it
            kept.copy_(storage)
        return _tensor_over(over_storage(values, kept), EmulatedMemory(kept, None, opened, nbytes))
    known = memory_of_values(storage._cdata)
    if known is not None and known.nbytes == nbytes:  # an operator returned a view of an argument
        raise AssertionError("the storage of the values belongs to another tensor")
    memory = EmulatedMemory(storage, block or allocate_bytes(opened, nbytes), opened, nbytes)
    if _thread.log is not None:
        _thread.log.append(memory)
    return _tensor_over(values, memory)


def _tensor_over(values: torch.Tensor, memory: EmulatedMemory) -> torch.Tensor:
    """Return a tensor of the device with the layout of `values`."""
    element = _ELEMENTS.get(values.dtype)
    if element is not None and not values.storage_offset() and memory.nbytes == _extent(values):
        return _from_dlpack(memory, values.shape, values.stride(), element)
    tensor = _bytes_over(memory)
    if values.dtype != torch.uint8:
        tensor = _retype(tensor, values.dtype)
    return _as_strided(_AS_CPU, tensor, values.shape, values.stride(), values.storage_offset())


def over_storage(values: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor with the type, the shape and the strides of `values` over another storage."""
    made = torch.empty(0, dtype=values.dtype, device=storage.device)
    return made.set_(storage, values.storage_offset(), values.shape, values.stride())


def _retype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _view_dtype(_AS_CPU, tensor, dtype)


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first to the last element."""
    if not tensor.numel():
        return 0
    last: int = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    itemsize: int = tensor.element_size()
    return (last + 1) * itemsize


def needed_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a storage up to the last element of a tensor; 0 without elements."""
    count = tensor.numel()
    if tensor.is_nested or tensor.is_contiguous():
        nbytes: int = count * tensor.element_size()
    else:
        nbytes = _extent(tensor)
    if count and not tensor.is_nested:
        nbytes += tensor.storage_offset() * tensor.element_size()
    return nbytes


def _bytes_over(memory: EmulatedMemory, address: int = 0) -> torch.Tensor:
    return _from_dlpack(memory, (memory.nbytes,), (1,), _BYTE, address)


def _from_dlpack(
    memory: EmulatedMemory, shape: tuple[int, ...], strides: tuple[int, ...], element: tuple[int, int], address: int = 0
) -> torch.Tensor:
    owner = MemoryOwner(memory)
    if _observer is not None:
        _observer(memory)
    if memory.block is not None:
        address = memory.block.address
    place = _CUDA, memory.opened.device.index or 0
    capsule = export_memory(
        address, shape, strides, element, place, owner, versioned=False, read_only=False, copied=False
    )
    tensor: torch.Tensor = torch._C._from_dlpack(capsule)
    owner.attach(_storage_id(tensor))
    return tensor


def memory_of(tensor: torch.Tensor) -> EmulatedMemory:
    """Return the memory of a tensor on an emulated device.

    Raises WrongState after the end of its emulation, and Forked in a child of the process that opened the device.
    """
    key = _storage_id(tensor)
    memory = memory_of_storage(key)
    if memory is None:
        if (ended := ended_memory(key)) is not None:
            raise ended_tensor(ended.opened.device)
        memory = memory_at(address := tensor.untyped_storage().data_ptr())  # C++ code made another storage from it
        if memory is None:
            memory = _empty_memory(tensor, address)
    if memory.opened.unusable:
        if memory.opened.unusable == "ended":
            raise ended_tensor(memory.opened.device)
        memory.opened.check()
    return memory


def _empty_memory(tensor: torch.Tensor, address: int) -> EmulatedMemory:
    """Return memory of no bytes, for a storage that C++ code made from the address of another one without any."""
    opened = open_torch_device(tensor.device)
    if tensor.untyped_storage().nbytes():
        raise Unsupported(f"the memory at {address:#x} belongs to no tensor of an emulated device")
    return EmulatedMemory(torch.UntypedStorage(0, device=device_of_values()), None, opened, 0)


def accessed_memory(tensor: torch.Tensor) -> EmulatedMemory:
    """Return the memory of a tensor whose elements are read or written.

    Raises the errors of `memory_of`, and WrongState if the storage was resized and has no room for the elements.
    """
    memory = memory_of(tensor)
    if memory.nbytes < (nbytes := needed_bytes(tensor)):
        raise _no_room(nbytes, memory.nbytes)
    return memory


def check_host(tensor: torch.Tensor) -> None:
    """Raise WrongState for a tensor of the CPU whose memory has been released: PyTorch's kernels would end the process.

    A zero tensor of autograd has no memory either, and is not read.
    """
    if tensor.layout is torch.strided and not tensor.is_nested and not tensor._is_zerotensor() and tensor.numel():
        nbytes = tensor.untyped_storage().nbytes()
        if nbytes < (needed := needed_bytes(tensor)):
            raise _no_room(needed, nbytes)


def _no_room(needed: int, nbytes: int) -> WrongState:
    return WrongState(
        "The tensor has a non-zero number of elements, but its data is not allocated yet: the elements need "
        f"{needed:,} bytes, and the storage has {nbytes:,}. Resize it before their use, with "
        f"tensor.untyped_storage().resize_({needed})"
    )


def ended_tensor(device: object) -> WrongState:
    """Return the error for a tensor that is used after the end of its emulation."""
    return WrongState(
        f"the emulation of {device}, or patch(), has ended: copy tensors to the CPU before the end, with tensor.cpu(), "
        "or create them again in a new one"
    )


def memory_containing(address: int) -> tuple[EmulatedMemory, int] | None:
    """Return the memory that contains an address, and the offset in bytes from its start; None if none does."""
    memory = memory_at(address)
    if memory is not None:
        return memory, 0
    for start in block_addresses():  # of a view: few libraries use addresses, so nothing sorts them
        memory = memory_at(start)
        if memory is not None and start < address < start + memory.nbytes:
            return memory, address - start
    return None


def find_memory(storage: torch.UntypedStorage) -> EmulatedMemory | None:
    """Return the memory of a storage, or None if it is not on an emulated device. Raises WrongState after its end."""
    memory = memory_of_storage(key := storage._cdata)
    if memory is None and (ended := ended_memory(key)) is not None:
        raise ended_tensor(ended.opened.device)
    return memory


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the values of a tensor on an emulated device, conjugated or negated as that one."""
    made = over_storage(tensor, accessed_memory(tensor).values)
    if tensor.is_conj():
        made = made.conj()
    return torch._neg_view(made) if tensor.is_neg() else made
