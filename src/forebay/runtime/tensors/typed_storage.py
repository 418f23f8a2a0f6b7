"""The class TypedStorage: the memory of a tensor as elements of one type."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

from forebay._base.device_spec import Device, DeviceLike
from forebay._base.dtypes import DType
from forebay.errors import ForebayError
from forebay.runtime.tensors.storage_conversions import StorageConversions
from forebay.runtime.tensors.untyped_storage import UntypedStorage, check_host_memory

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["TypedStorage", "warn_that_storages_are_deprecated"]

_MESSAGE = (
    "TypedStorage is deprecated. It will be removed in the future and UntypedStorage will be the only storage class. "
    "This should only matter to you if you are using storages directly.  To access UntypedStorage directly, use "
    "tensor.untyped_storage() instead of tensor.storage()"
)
_warned = False


def warn_that_storages_are_deprecated() -> None:
    """Issue PyTorch's deprecation warning once per process."""
    global _warned  # noqa: PLW0603 -- once per process
    if not _warned:
        _warned = True
        warnings.warn(_MESSAGE, UserWarning, stacklevel=3)


_NAMES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "complex128": "ComplexDouble",
    "complex64": "ComplexFloat", "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
    "bool": "Bool",
}  # fmt: skip


class TypedStorage(StorageConversions):
    """The memory of a tensor as elements of one type.

    As `torch.TypedStorage`. Deprecated: use tensors, or `Tensor.untyped_storage`. Methods whose
    names end in an underscore change the storage and return it.

    Parameters
    ----------
    elements : Tensor
        All elements, in one dimension. Programs use `Tensor.storage` instead of this constructor.
    """

    is_sparse = is_hpu = False

    def __init__(self, elements: Tensor) -> None:
        self.elements: Tensor = elements

    @classmethod
    def from_tensor(cls, elements: Tensor) -> Self:
        """Return a storage over a tensor, whose memory it shares.

        Parameters
        ----------
        elements : Tensor
            A one-dimensional tensor.
        """
        made = cls.__new__(cls)
        made.elements = elements
        return made

    # Properties

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.elements.dtype

    @property
    def device(self) -> Device:
        """Device of the memory."""
        return self.elements.device

    @property
    def is_cuda(self) -> bool:
        """True for a CUDA device."""
        return self.elements.is_cuda

    @property
    def filename(self) -> str | None:
        """None: no file backs the storage."""
        return None

    @property
    def _cdata(self) -> int:
        return self.untyped()._cdata  # noqa: SLF001 -- PyTorch's name

    @property
    def _untyped_storage(self) -> UntypedStorage:
        return self.untyped()

    def get_device(self) -> int | None:
        """Return the index of the device; None for the CPU."""
        return self.device.index

    def size(self) -> int:
        """Return the number of elements."""
        return self.elements.numel()

    __len__ = size

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.elements.nbytes

    def element_size(self) -> int:
        """Return the size of one element in bytes."""
        return self.elements.itemsize

    def data_ptr(self) -> int:
        """Return the address of the first element; 0 without memory."""
        return self.elements.data_ptr()

    def resizable(self) -> bool:
        """Return True if the device's allocator provided the memory."""
        return self.untyped().resizable()

    def is_pinned(self, device: DeviceLike | None = None) -> bool:
        """Return True for pinned (page-locked) host memory.

        Parameters
        ----------
        device : device or str or int, optional
            As for `Tensor.is_pinned`.
        """
        return self.untyped().is_pinned(device)

    def pin_memory(self, device: DeviceLike | None = None) -> TypedStorage:
        """Return this storage of the CPU in pinned memory; itself if it is there.

        Parameters
        ----------
        device : device or str or int, optional
            As for `Tensor.pin_memory`.

        Raises
        ------
        TypeError
            If the storage is not on the CPU.
        """
        check_host_memory(self.device)
        return self._over(self.elements.pin_memory(device))

    def is_shared(self) -> bool:
        """Return True for memory of a CUDA device, which processes can share."""
        return self.is_cuda

    def untyped(self) -> UntypedStorage:
        """Return the bytes of this memory."""
        return self.elements.untyped_storage()

    def pickle_storage_type(self) -> str:
        """Return the name of the legacy class of this element type, such as `"FloatStorage"`."""
        return f"{_NAMES[self.elements.numpy_dtype.name]}Storage"

    def type(self) -> Any:
        """Return the full name of the legacy class, such as `"forebay.cuda.FloatStorage"`."""
        kind = self.device.kind
        return f"forebay.{'' if kind == 'cpu' else f'{kind}.'}{self.pickle_storage_type()}"

    def __repr__(self) -> str:
        rows = "".join(f" {value}\n" for value in self.elements.tolist())
        described = f"dtype={self.elements.dtype}, device={self.device}"
        return f"{rows}[{type(self).__module__}.{type(self).__name__}({described}) of size {len(self)}]"

    # Elements

    def __getitem__(self, idx: int) -> Any:
        if isinstance(idx, slice):
            raise ForebayError("slices are only supported in UntypedStorage.__getitem__")
        if not isinstance(idx, int):
            raise ForebayError(f"can't index a {type(self)} with {type(idx)}")
        if not -len(self) <= idx < len(self):
            raise IndexError(f"index {idx} out of range for storage of size {len(self)}")
        return self.elements[idx].item()

    def __setitem__(self, idx: int | slice, value: Any) -> None:
        if not isinstance(idx, (int, slice)):
            raise ForebayError(f"can't index a {type(self)} with {type(idx)}")
        if isinstance(value, TypedStorage):
            raise ForebayError(f"cannot set item with value type {type(value)}")
        self.elements[idx] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements.tolist())

    def tolist(self) -> list[Any]:
        """Return the elements as Python numbers, after waiting for the work that writes them."""
        return list(self.elements.tolist())

    def fill_(self, value: complex) -> Self:
        """Set every element.

        Parameters
        ----------
        value : complex
            The value.
        """
        self.elements.fill_(value)
        return self

    def copy_(self, source: TypedStorage, non_blocking: bool | None = None) -> Self:  # noqa: ARG002 -- PyTorch's
        """Copy the bytes of another storage.

        Parameters
        ----------
        source : TypedStorage
            A storage of the same size in bytes.
        non_blocking : bool, optional
            Ignored.

        Raises
        ------
        ForebayError
            If the sizes differ.
        """
        self.untyped().copy_(source.untyped())
        return self

    def clone(self) -> Self:
        """Return a copy on the same device."""
        return self.from_tensor(self.elements.clone())

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        return self.from_tensor(deepcopy(self.elements, memo))

    # Copies on other devices

    def to(self, *, device: DeviceLike, non_blocking: bool = False) -> TypedStorage:
        """Return the storage on another device; itself if it is there, else a copy.

        Parameters
        ----------
        device : device or str
            The device.
        non_blocking : bool, default False
            As for `Tensor.copy_`.
        """
        return self._over(self.elements.to(device=device, non_blocking=non_blocking))

    def cpu(self) -> TypedStorage:
        """Return this storage if it is on the CPU, else a copy there."""
        return self.to(device="cpu")

    def cuda(self, device: DeviceLike | None = None, non_blocking: bool = False) -> TypedStorage:
        """Return the storage on a CUDA device; itself if it is there, else a copy.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.
        non_blocking : bool, default False
            As for `Tensor.copy_`.
        """
        return self._over(self.elements.cuda(device, non_blocking))

    def resize_(self, size: int) -> None:
        """Change the number of elements.

        As `UntypedStorage.resize_`.

        Parameters
        ----------
        size : int
            The new number; elements beyond it are dropped, new elements are uninitialised.
        """
        elements = self.untyped().resize_(size * self.element_size()).elements
        self.elements = elements.view(self.elements.numpy_dtype)

    def _over(self, moved: Tensor) -> TypedStorage:
        if moved is self.elements:
            return self
        same_kind = moved.device.kind == self.device.kind  # subclasses are of one kind
        return self.from_tensor(moved) if same_kind else TypedStorage(moved)


TypedStorage.__module__ = "forebay.storage"
