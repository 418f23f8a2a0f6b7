"""The class UntypedStorage: the bytes of memory that a tensor shares with its views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from forebay._base.device_spec import Device
from forebay._core import MAX_REQUEST_BYTES
from forebay.errors import ForebayError
from forebay.runtime.memory.storage import Storage
from forebay.runtime.memory.untyped_storage import StorageBase
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.storage_conversions import StorageConversions

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["UntypedStorage", "check_host_memory"]

_BYTE = np.dtype("uint8")


class UntypedStorage(StorageConversions, StorageBase):
    """The bytes of memory that a tensor shares with its views.

    As `torch.UntypedStorage`. All tensors over the same memory have the same storage object. Methods whose
    names end in an underscore change the storage and return it.

    Parameters
    ----------
    size : int, default 0
        Bytes.
    device : device or str or int, optional
        The device; the CPU by default.

    Examples
    --------
    >>> import forebay
    >>> numbers = forebay.zeros(4, 3)
    >>> numbers[1:].nbytes, numbers[1:].untyped_storage().nbytes()
    (36, 48)
    >>> storage = numbers.untyped_storage()
    >>> numbers[1:].untyped_storage() is storage
    True
    """

    __slots__ = ()
    is_sparse = is_hpu = False
    filename = None
    tensor_type: ClassVar[type[Tensor]]  # set by forebay._wiring: the module of Tensor imports this one

    @property
    def elements(self) -> Tensor:
        """All bytes, as a tensor of uint8 whose changes no version counts."""
        return self.tensor_type(self.for_tensor(), _BYTE, (self.nbytes(),), (1,)).data

    def new(self) -> UntypedStorage:
        """Return an empty storage on the current device of the same kind."""
        return UntypedStorage(0, device=self.device.kind)

    def is_pinned(self, device: Device | str | int | None = None) -> bool:
        """Return True for pinned (page-locked) host memory.

        Parameters
        ----------
        device : device or str or int, optional
            As for `Tensor.is_pinned`.
        """
        return self.elements.is_pinned(device)

    def pin_memory(self, device: Device | str | int | None = None) -> UntypedStorage:
        """Return this storage of the CPU in pinned memory; itself if it is there.

        As `torch.UntypedStorage.pin_memory`.

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
        return self.elements.pin_memory(device).untyped_storage()

    def is_shared(self) -> bool:
        """Return True for memory of a CUDA device, which processes can share."""
        return self.is_cuda

    def resize_(self, size: int) -> UntypedStorage:
        """Change the size: allocate other memory, copy the bytes that remain, and free the previous memory.

        As `torch.UntypedStorage.resize_`. A tensor that needs more than the new size raises ForebayError when it is
        used, until the storage is large enough again; in PyTorch it uses memory that is not its own.

        Parameters
        ----------
        size : int
            The number of bytes; new bytes are uninitialised.

        Raises
        ------
        ForebayError
            If the size is not an int or negative, or the device's allocator did not provide the memory.
        ValueError
            If the size is 2**63 or more.
        OutOfMemory
            If the memory cannot be allocated; the storage remains as it was.

        Examples
        --------
        >>> import forebay
        >>> weights = forebay.ones(4)
        >>> _ = weights.untyped_storage().resize_(0)
        >>> weights.tolist()
        Traceback (most recent call last):
        ...
        forebay.errors.ForebayError: the tensor's storage has 0 bytes of 16: enlarge it first (resize_)
        >>> _ = weights.untyped_storage().resize_(16)
        >>> weights.fill_(2).tolist()
        [2.0, 2.0, 2.0, 2.0]
        """
        if size.__class__ is bool or not isinstance(size, int):
            raise ForebayError(f"resize_ expects an int, but got {type(size).__name__}")
        if not -(1 << 63) <= size < 1 << 63:
            raise ValueError("Overflow when unpacking long long")
        if size < 0:
            raise ForebayError(f"Requested storage size ({size}) cannot be represented as a size_t")
        if not self.resizable():
            raise ForebayError("Trying to resize storage that is not resizable")
        if size >= MAX_REQUEST_BYTES:
            raise self.opened.allocator.too_large_error(size)
        made = Storage.allocate(self.opened, size, current_stream_for(self.opened).handle)
        kept = (min(size, self.nbytes()),)
        if kept != (0,):
            self.tensor_type(made, _BYTE, kept, (1,)).copy_(self.tensor_type(self.for_tensor(), _BYTE, kept, (1,)))
        self.replace_memory(made)
        return self

    def tolist(self) -> list[int]:
        """Return the bytes as ints, after waiting for the current stream."""
        return list(self.elements.tolist())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> UntypedStorage: ...
    def __getitem__(self, index: int | slice) -> int | UntypedStorage:
        """Return a byte, or the storage of adjacent bytes, which shares and keeps the memory."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.nbytes())
            if step != 1:
                raise ForebayError(f"Trying to slice with a step of {step}, but only a step of 1 is supported")
            return self.part(start, max(stop - start, 0))
        if not isinstance(index, int):
            raise TypeError(f"can't index a forebay.UntypedStorage with {type(index).__name__}")
        position = index + self.nbytes() if index < 0 else index
        if not 0 <= position < self.nbytes():
            raise IndexError(f"index {position} out of range for storage of size {self.nbytes()}")
        return int(self.elements[position].item())

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def fill_(self, value: int) -> UntypedStorage:
        """Set every byte.

        Parameters
        ----------
        value : int
            The value of each byte.
        """
        self.elements.fill_(value)
        return self

    def copy_(self, source: UntypedStorage, non_blocking: bool = False) -> UntypedStorage:
        """Copy the bytes of another storage.

        Parameters
        ----------
        source : UntypedStorage
            A storage of the same size.
        non_blocking : bool, optional
            As for `Tensor.copy_`.

        Raises
        ------
        ForebayError
            If the sizes differ.
        """
        if self.nbytes() != source.nbytes():
            raise ForebayError(
                f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes"
            )
        self.elements.copy_(source.elements, non_blocking)
        return self

    def clone(self) -> UntypedStorage:
        """Return a copy on the same device."""
        return self.elements.clone().untyped_storage()

    def __deepcopy__(self, memo: dict[Any, Any]) -> UntypedStorage:
        copies = memo.setdefault("forebay", {})
        if self._cdata not in copies:
            copies[self._cdata] = self.clone()
        found: UntypedStorage = copies[self._cdata]
        return found

    def cpu(self) -> UntypedStorage:
        """Return this storage if it is on the CPU, else a copy there."""
        return self.elements.cpu().untyped_storage()

    def cuda(self, device: Device | str | int | None = None, non_blocking: bool = False) -> UntypedStorage:
        """Return this storage if it is on the CUDA device, else a copy there.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.
        non_blocking : bool, optional
            As for `Tensor.copy_`.
        """
        return self.elements.cuda(device, non_blocking).untyped_storage()

    def to(self, *, device: Device | str | int, non_blocking: bool = False) -> UntypedStorage:
        """Return the storage on another device; itself if it is there, else a copy.

        Parameters
        ----------
        device : device or str or int
            The device.
        non_blocking : bool, optional
            As for `Tensor.copy_`.
        """
        return self.elements.to(device=device, non_blocking=non_blocking).untyped_storage()

    def __repr__(self) -> str:
        rows = "".join(f" {value}\n" for value in self.tolist())
        return f"{rows}[forebay.storage.UntypedStorage(device={self.device}) of size {self.nbytes()}]"

    # Conversions: each byte is one number. Last in the class, because the names hide Python's in later annotations.

    def type(self) -> str:
        """Return `"forebay.storage.UntypedStorage"`."""
        return "forebay.storage.UntypedStorage"


def check_host_memory(device: Device) -> None:
    """Raise TypeError, with PyTorch's text, unless the device is the CPU: memory of others cannot be pinned."""
    if device.kind != "cpu":
        raise TypeError("cannot pin 'forebay.storage.UntypedStorage' only CPU memory can be pinned")


UntypedStorage.__module__ = "forebay.storage"
