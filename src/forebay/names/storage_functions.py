"""PyTorch's private functions for storages, by the number `UntypedStorage._cdata`, and for tensors over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay._base.device_spec import Device
from forebay._base.dtypes import as_dtype
from forebay._base.layouts import Size
from forebay.errors import ForebayError
from forebay.names.kind import DeviceKind
from forebay.runtime.devices import current
from forebay.runtime.memory.storage import AnyBlock, Storage
from forebay.runtime.memory.untyped_storage import StorageBase, storage_at
from forebay.runtime.tensors.tensor import Tensor
from forebay.runtime.tensors.untyped_storage import UntypedStorage

__all__ = [
    "StorageFunctions",
    "clear_data_ptr_access_error",
    "construct_storage",
    "data_ptrs_equal",
    "is_access_forbidden",
    "is_mutable_access_forbidden",
    "set_data_ptr_access_error",
    "set_tensor_access_error",
    "use_count",
]


class StorageFunctions:
    """Functions for the storages of one kind of device."""

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind

    def has_standard_deleter(self, storage_ptr: int) -> bool:
        """Return True if the storage owns memory of a device of the kind. (`_has_Standard_Deleter`)"""
        storage = _storage(storage_ptr)
        return storage.owned and storage.device.kind == self._kind.name

    def free_and_remove_deleter(self, storage_ptr: int) -> None:
        """Free the storage's memory, although tensors may still use it. (`_free_And_Remove_DeleterFn`)"""
        if not self.has_standard_deleter(storage_ptr):
            raise ForebayError("Expected standard deleter")
        block = _storage(storage_ptr).disown()
        if isinstance(block, AnyBlock):
            block.free()

    def construct_tensor(self, metadata: dict[str, Any], storage: UntypedStorage) -> Tensor:
        """Return a tensor over a storage. (`_construct_CUDA_Tensor_From_Storage_And_Metadata`)

        `metadata` has its "dtype", and its "size", "stride" and "storage_offset" in elements, which are not checked.
        """
        if not isinstance(metadata, dict) or not isinstance(storage, UntypedStorage):
            raise TypeError("expected a dict and a storage")
        dtype = as_dtype(metadata["dtype"])
        size, stride = Size(metadata["size"]), tuple(step * dtype.itemsize for step in metadata["stride"])
        offset = metadata["storage_offset"] * dtype.itemsize
        return Tensor(storage.for_tensor(), dtype, size, stride, offset)


def construct_storage(data_ptr: int, device: Device, size_bytes: int) -> UntypedStorage:
    """Return a storage of memory at an address that it does not own. (`_construct_storage_from_data_pointer`)"""
    if not (isinstance(data_ptr, int) and isinstance(device, Device) and isinstance(size_bytes, int)):
        raise TypeError("expected an address, a device and a size in bytes")
    if size_bytes < 0:
        raise TypeError(f"the size must not be negative: {size_bytes}")
    return UntypedStorage.borrowed(current.opened_for(device), size_bytes, data_ptr)


def use_count(storage_ptr: int) -> int:
    """Return the number of tensors that use a storage, plus 1; 0 if it does not exist. (`_storage_Use_Count`)"""
    found = UntypedStorage._new_with_weak_ptr(_number(storage_ptr))  # noqa: SLF001 -- PyTorch's name
    return 0 if found is None else found.use_count()


def set_data_ptr_access_error(storage_ptr: int, s: str) -> None:
    """Make accesses to the storage's address raise. (`_set_storage_data_ptr_access_error_msg`)"""
    message = _message(s)
    _storage(storage_ptr).forbid_access(message)


def clear_data_ptr_access_error(storage_ptr: int) -> None:
    """Permit accesses to the storage's address again. (`_clear_storage_data_ptr_access_error_msg`)"""
    _storage(storage_ptr).forbid_access(None)


def is_access_forbidden(storage_ptr: int) -> bool:
    """Return True if accesses to the storage's address raise. (`_storage_throw_on_immutable_data_ptr`)"""
    return not _storage(storage_ptr).is_accessible


def is_mutable_access_forbidden(storage_ptr: int) -> bool:
    """Return False: no storage permits reads only. (`_storage_throw_on_mutable_data_ptr`)"""
    _storage(storage_ptr)
    return False


def set_tensor_access_error(t: Tensor, s: str) -> None:
    """Release the tensor's memory and make accesses to its address raise. (`_set_storage_access_error_msg`)"""
    if not isinstance(t, Tensor):
        raise TypeError(f"expected a tensor, not {type(t).__name__}")
    released = Storage(t.raw_storage.opened, 0, 0, None)
    released.forbid_access(_message(s))
    t.raw_storage = released


def data_ptrs_equal(tensors: list[Any], ptrs: list[int | None], indices: Sequence[int]) -> bool:
    """Return True if the tensors at the indices begin at these addresses. (`_tensors_data_ptrs_at_indices_equal`)"""
    if not (isinstance(tensors, list) and isinstance(ptrs, list) and isinstance(indices, list)):
        raise TypeError("expected three lists: tensors, addresses and indices")
    for index in indices:
        tensor, address = tensors[index], ptrs[index]
        if not isinstance(tensor, Tensor) or not isinstance(address, int):
            raise ForebayError(f"expected a tensor and an address at index {index}")
        if tensor.data_ptr() != address:
            return False
    return True


def _number(storage_ptr: Any) -> int:
    if not isinstance(storage_ptr, int) or storage_ptr < 0:
        raise TypeError(f"expected a storage by its _cdata, not {storage_ptr!r}")
    return storage_ptr


def _storage(storage_ptr: Any) -> StorageBase:
    return storage_at(_number(storage_ptr))


def _message(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the message must be a str, not {type(text).__name__}")
    return text
