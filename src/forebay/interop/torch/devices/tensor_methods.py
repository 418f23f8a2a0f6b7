"""Methods of PyTorch's tensors and storages that need a driver, for emulated devices."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.overrides
import torch.utils.dlpack

from forebay.interop.torch.devices import host_values
from forebay.interop.torch.devices.emulated_memory import (
    find_memory,
    memory_of,
    part_of_storage,
    resize_storage,
    swap_memory,
)  # fmt: skip
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.devices.values import is_computed, needs_values
from forebay.runtime.memory.storage import AnyBlock

__all__ = ["replace_methods"]

_TensorBase = torch._C.TensorBase
_StorageBase = torch._C.StorageBase


def replace_methods(names: NameReplacements) -> None:
    """Replace the methods."""
    names.replace(torch.Tensor, "record_stream", _record_stream)
    names.replace(torch.Tensor, "__dlpack__", _dlpack(torch.Tensor.__dlpack__))
    for module in (torch, torch._C, torch.utils.dlpack):
        for name in ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack"):
            if hasattr(module, name):
                names.replace(module, name, _dlpack(getattr(module, name)))
    names.replace(torch.Tensor, "__cuda_array_interface__", property(_array_interface))
    names.replace(torch.UntypedStorage, "__new__", staticmethod(_new_storage))
    names.replace(torch.UntypedStorage, "resize_", _resize)
    names.replace(torch.UntypedStorage, "nbytes", _nbytes)
    names.replace(torch.UntypedStorage, "size", _nbytes)
    names.replace(torch.UntypedStorage, "new", _new_empty)
    names.replace(torch.UntypedStorage, "__getitem__", _get_item(torch.UntypedStorage.__getitem__))
    names.replace(torch.UntypedStorage, "_byteswap", _byteswap)
    if hasattr(_StorageBase, "_swap_data_ptr_"):
        names.replace(torch.UntypedStorage, "_swap_data_ptr_", swap_memory)


def _record_stream(self: torch.Tensor, stream: Any) -> None:
    if torch.overrides.has_torch_function_unary(self):
        torch.overrides.handle_torch_function(torch.Tensor.record_stream, (self,), self, stream)
        return
    if not self.is_cuda:  # PyTorch's error, which the replaced method would have raised
        kind = self.device.type.upper()
        raise NotImplementedError(f"Could not run 'aten::record_stream' with arguments from the '{kind}' backend.")
    block = memory_of(self).block
    if isinstance(block, AnyBlock):
        block.record_stream(stream.queue.handle)


def _dlpack(original: Any) -> Any:
    def export(self: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        if self.is_cuda:
            raise BufferError("memory of an emulated device cannot be exported: copy the tensor to the CPU first")
        return original(self, *args, **keywords)

    return export


def _array_interface(self: torch.Tensor) -> NoReturn:
    raise AttributeError("tensors of emulated devices have no __cuda_array_interface__: copy them to the CPU first")


def _new_storage(cls: type, *args: Any, device: Any = None, **keywords: Any) -> Any:
    if device is None or torch.device(device).type != "cuda":
        if device is not None:
            keywords["device"] = device
        return _StorageBase.__new__(cls, *args, **keywords)
    return torch.empty(args[0] if args else 0, dtype=torch.uint8, device=device).untyped_storage()


def _resize(self: torch.UntypedStorage, *args: Any, **keywords: Any) -> torch.UntypedStorage:
    memory = find_memory(self)
    if memory is None:
        return _StorageBase.resize_(self, *args, **keywords)
    size = args[0] if len(args) == 1 and not keywords else None
    if type(size) is not int or size >> 63 not in (0, -1):  # PyTorch's error, or a number of another library
        size = _StorageBase.resize_(torch.UntypedStorage(0, device="meta"), *args, **keywords).nbytes()
    if size < 0:
        raise RuntimeError(f"Requested storage size ({size}) cannot be represented as a size_t")
    resize_storage(self, memory, size)
    return self


def _nbytes(self: torch.UntypedStorage) -> int:
    memory = find_memory(self)
    size: int = _StorageBase.nbytes(self) if memory is None else memory.nbytes
    return size


# These methods of PyTorch read the address of the memory, or make a storage of CUDA's allocator, which there is not.


def _new_empty(self: torch.UntypedStorage) -> Any:
    return _StorageBase.new(self) if find_memory(self) is None else _new_storage(type(self), 0, device=self.device)


def _get_item(original: Any) -> Any:
    def get(self: torch.UntypedStorage, index: Any) -> Any:
        memory = find_memory(self)
        if memory is None or not isinstance(index, slice):
            part = original(self, index)
            if isinstance(part, torch.UntypedStorage):
                host_values.note_part(self, part)
            return part
        begin, end, step = index.indices(memory.nbytes)
        if step != 1:
            raise RuntimeError(f"Trying to slice with a step of {step}, but only a step of 1 is supported")
        return part_of_storage(self, memory, begin, max(begin, end))

    return get


def _byteswap(self: torch.UntypedStorage, size: int) -> None:
    memory = find_memory(self)
    if memory is not None and not is_computed():
        raise needs_values("byteswap() of a storage")
    _StorageBase._byteswap(self if memory is None else memory.values, size)
