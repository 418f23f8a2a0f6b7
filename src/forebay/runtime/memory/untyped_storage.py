"""The memory of tensors as an object of the program: bytes without a type or a shape.

Tensors share a `Storage`. The first use of its `StorageBase` creates that object, which then exists as long as one
of the tensors or the program refers to it, and keeps the memory alive. PyTorch's private functions know a storage by a
number, its `_cdata`, which is never used again.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import Any, Self, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from forebay._base.device_spec import CPU, Device, DeviceLike
from forebay.errors import ForebayError
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock, Storage
from forebay.runtime.streams.stream import current_stream

__all__ = ["StorageBase", "storage_at"]

_numbers = itertools.count(0x5500_0000_0040, 0x40)  # like addresses of objects
_by_number: WeakValueDictionary[int, StorageBase] = WeakValueDictionary()
_of_tensors: WeakKeyDictionary[Storage, StorageBase] = WeakKeyDictionary()


class StorageBase:
    """The memory of tensors: bytes without a type or a shape. `UntypedStorage` adds access to the bytes.

    As `torch._C.StorageBase`.

    Parameters
    ----------
    size : int, default 0
        Bytes.
    device : device or str or int, optional
        The device; the CPU by default.
    """

    owned: bool

    __slots__ = ("__weakref__", "_address", "_cdata", "_in_use", "_message", "_nbytes", "_opened", "_owner", "owned")

    def __init__(self, size: int = 0, *, device: DeviceLike | None = None) -> None:
        if not isinstance(size, int):
            raise TypeError(f"the size of a storage must be an int, not {type(size).__name__}")
        if size < 0:
            raise ForebayError(f"the size of a storage must not be negative: {size}")
        stream = current_stream(CPU if device is None else device)
        made = Storage.allocate(stream.opened, size, stream.handle)
        self._begin(made.opened, made.nbytes, made.address, made.owner, owned=True)

    def _begin(self, opened: OpenDevice, nbytes: int, address: int, owner: object, *, owned: bool) -> None:
        self._opened, self._nbytes, self._address, self._owner = opened, nbytes, address, owner
        self.owned = owned  # the device's allocator provided the memory, and takes it back. Internal to the runtime
        self._message: str | None = None  # of `forbid_access`
        self._in_use: list[tuple[weakref.ref[Storage], int]] = []  # of the tensors, and the size that these may use
        self._cdata = next(_numbers)
        _by_number[self._cdata] = self

    @classmethod
    def of(cls, storage: Storage) -> Self:
        """Return the program's object for a tensor's storage, which is always of one class. Used by the runtime.

        It is the object that the program has, or a new one. ForebayError is raised if the tensor lost its storage.
        """
        found = _of_tensors.get(storage)
        if found is None:
            address = storage.address
            owned = isinstance(storage.owner, AnyBlock) or (storage.owner is None and storage.nbytes == 0)
            made = cls.__new__(cls)
            made._begin(storage.opened, storage.nbytes, address, storage.owner, owned=owned)  # noqa: SLF001 -- as above
            found = _attach(storage, made)
        return cast("Self", found)

    @classmethod
    def borrowed(cls, opened: OpenDevice, nbytes: int, address: int) -> Self:
        """Return a storage of memory that the caller keeps alive. Used by the runtime."""
        made = cls.__new__(cls)
        made._begin(opened, nbytes, address, None, owned=False)  # noqa: SLF001 -- the constructor's second half
        return made

    def part(self, start: int, nbytes: int) -> Self:
        """Return a storage of some of the bytes, which cannot be resized. Used by the runtime.

        It keeps this memory alive.
        """
        made = type(self).__new__(type(self))
        made._begin(self._opened, nbytes, self.data_ptr() + start, self._owner, owned=False)  # noqa: SLF001 -- as above
        return made

    # Properties

    def data_ptr(self) -> int:
        """Return the address; 0 for an empty storage."""
        if self._message is not None:
            raise ForebayError(self._message)
        return self._address

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self._nbytes

    def size(self) -> int:
        """Return the size in bytes."""
        return self._nbytes

    def __len__(self) -> int:
        return self._nbytes

    @staticmethod
    def element_size() -> int:
        """Return 1."""
        return 1

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self._opened.device

    @property
    def is_cuda(self) -> bool:
        """True on a CUDA device."""
        return self._opened.device.kind == "cuda"

    def get_device(self) -> int | None:
        """Return the index of the device; None for the CPU."""
        return self._opened.device.index

    def resizable(self) -> bool:
        """Return True if the device's allocator provided the memory."""
        return self.owned

    def untyped(self) -> StorageBase:
        """Return this storage."""
        return self

    # For the runtime

    @property
    def opened(self) -> OpenDevice:
        """The device."""
        return self._opened

    @property
    def address(self) -> int:
        """The address, also if access is forbidden."""
        return self._address

    @property
    def owner(self) -> object:
        """The object that keeps the memory alive; None if the caller keeps it alive."""
        return self._owner

    def for_tensor(self) -> Storage:
        """Return the storage that all tensors share which are made while this memory has its present size."""
        for reference, nbytes in self._in_use:
            if nbytes == self._nbytes and (found := reference()) is not None:
                return found
        found = Storage(self._opened, self._nbytes, self._address, self._owner)
        _attach(found, self)
        self._update()
        return found

    def replace_memory(self, made: Storage) -> None:
        """Use other memory. Tensors that were made while there was more cannot use it until it has that size again."""
        self._nbytes, self._address, self._owner, self.owned = made.nbytes, made.address, made.owner, True
        self._update()

    def own(self, block: AnyBlock) -> None:
        """Keep a block of the device's allocator alive, whose memory this is."""
        self._owner, self.owned = block, True
        self._update()

    def disown(self) -> Any:
        """Stop keeping the memory alive, and return its previous owner."""
        owner, self._owner, self.owned = self._owner, None, False
        self._update()
        return owner

    def forbid_access(self, message: str | None) -> None:
        """Make every access to the address raise ForebayError, here and in all tensors; None permits it again."""
        self._message = message
        self._update()

    @property
    def is_accessible(self) -> bool:
        """True unless access is forbidden."""
        return self._message is None

    def use_count(self) -> int:
        """Return the number of tensors over this memory, and 1 for this object.

        Other references to the memory, such as NumPy arrays and queued work, are counted, too.
        """
        return 1 + sum(max(_count_references(reference) - _OWN_REFERENCES, 0) for reference, _ in self._in_use)

    def _update(self) -> None:
        self._in_use = [pair for pair in self._in_use if pair[0]() is not None]
        for reference, nbytes in self._in_use:
            if (storage := reference()) is not None:
                storage.nbytes, storage.address, storage.owner = self._nbytes, self._address, self._owner
                message = self._message
                if message is None and nbytes > self._nbytes:
                    message = f"the tensor's storage has {self._nbytes} bytes of {nbytes}: enlarge it first (resize_)"
                if message is None:
                    storage.permit_access()
                else:
                    storage.forbid_access(message)

    # PyTorch's private methods

    def _swap_data_ptr_(self, other: StorageBase) -> None:
        """Exchange the memory of two storages of one device and equal size, or one of which is empty."""
        if not isinstance(other, StorageBase):
            raise ForebayError(f"_swap_data_ptr_ expects an UntypedStorage, but got {type(other).__name__}")
        if self.device != other.device:
            message = f"storages must be on the same device, got {self.device} and {other.device}"
            raise ForebayError(f"_swap_data_ptr_: {message}")
        if self._nbytes and other._nbytes and self._nbytes != other._nbytes:
            message = f"storages must have the same nbytes or one must have 0, got {self._nbytes} and {other._nbytes}"
            raise ForebayError(f"_swap_data_ptr_: {message}")
        mine = self._nbytes, self._address, self._owner, self.owned
        self._nbytes, self._address, self._owner, self.owned = other._nbytes, other._address, other._owner, other.owned
        other._nbytes, other._address, other._owner, other.owned = mine
        self._update()
        other._update()

    def _weak_ref(self) -> int:
        """Return the number of this storage, which does not keep it alive."""
        return self._cdata

    @staticmethod
    def _new_with_weak_ptr(number: int) -> StorageBase | None:
        """Return the storage with that number; None if it does not exist any more."""
        return _by_number.get(number)

    @staticmethod
    def _expired(number: int) -> bool:
        """Return True if the storage with that number does not exist any more."""
        return number not in _by_number

    @staticmethod
    def _free_weak_ref(number: int) -> None:
        """Do nothing: a number needs no memory."""

    def _fix_weakref(self) -> None:
        """Do nothing: a number needs no memory."""


def storage_at(number: int) -> StorageBase:
    """Return the storage with that number. Raises ForebayError if it does not exist."""
    found = _by_number.get(number)
    if found is None:
        raise ForebayError(f"no storage has the number {number:#x}, or it does not exist any more")
    return found


def _attach(storage: Storage, untyped: StorageBase) -> StorageBase:
    found = _of_tensors.setdefault(storage, untyped)
    if found is untyped:
        untyped._in_use.append((weakref.ref(storage), storage.nbytes))  # noqa: SLF001 -- of this module
    return found


def _count_references(reference: weakref.ref[Storage]) -> int:
    storage = reference()
    return 0 if storage is None else sys.getrefcount(storage)


def _count_own_references() -> int:
    """Return how many of the references that `_count_references` counts are its own."""
    held = [Storage.__new__(Storage)]
    return _count_references(weakref.ref(held[0])) - 1


_OWN_REFERENCES = _count_own_references()
