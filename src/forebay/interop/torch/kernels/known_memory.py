"""Known values of one memory: in a storage of the host, or computed when they are read.

# Note [Values computed when they are read]
A mask of 64 million elements is made in each step of many programs, and nearly never read. So what operators make of
large known values is a record of the call, with the values of its arguments as they were: nothing is computed, and no
memory is used, until a read. A record is never changed: a write makes a new one. Storages that a record refers to
are copied before they are written. All large storages together have at most 256 MiB; what has no room is unknown.
Rejected: to compute them at once, which takes longer than the step without values; patterns for ranges and triangles,
of which each operator would need a rule.
Test: tests/interop/torch/kernels/test_known_memory.py::test_random_programs_know_the_values_of_pytorch_or_none
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from forebay.interop.torch.devices.emulated_memory import memory_of

__all__ = ["BUDGET", "SMALL", "Captured", "Known", "Layout", "captured", "has_room", "held_now", "layout_of"]

BUDGET = 256 << 20  # bytes of all large storages
SMALL = 32 << 10  # bytes of a memory whose values are computed at once
_MOST_RECORDS = 64  # of a chain, which is computed then
_kept: dict[int, weakref.ref[Known]] = {}  # those with a large storage


class Layout(NamedTuple):
    """The type and the place of the elements of a tensor in its memory."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor over a storage."""
        found = torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.shape, self.stride)
        if self.is_conj:
            found = found.conj()
        return torch._neg_view(found) if self.is_neg else found


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return the layout of a tensor."""
    return Layout(
        tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.is_conj(), tensor.is_neg()
    )


def has_room(nbytes: int) -> bool:
    """Return True if a storage of the size may be kept."""
    if nbytes <= SMALL:
        return True
    kept = [found.nbytes for each in [*_kept.values()] if (found := each()) is not None]
    return sum(kept) + nbytes <= BUDGET


class Known:
    """The values of a memory.

    Parameters
    ----------
    nbytes : int
        The size of the memory.
    storage : torch.UntypedStorage, optional
        The values.
    make : callable, optional
        Returns the storage; it is called once, when the values are read.
    records : int, default 0
        How many records `make` refers to.
    """

    __slots__ = ("__weakref__", "_elements", "_make", "is_shared", "nbytes", "records", "storage")

    def __init__(
        self,
        nbytes: int,
        storage: torch.UntypedStorage | None = None,
        make: Callable[[], torch.UntypedStorage] | None = None,
        records: int = 0,
    ) -> None:
        self.nbytes, self.storage, self.records = nbytes, storage, records
        self.is_shared = False
        self._make = make
        self._elements: dict[torch.dtype, Any] = {}
        if storage is not None:
            self._keep()

    def _keep(self) -> None:
        if self.nbytes > SMALL:
            key = id(self)
            _kept[key] = weakref.ref(self, lambda _: _kept.pop(key, None))

    def read(self) -> torch.UntypedStorage | None:
        """Return the values, or None if the host cannot compute them, or has no room."""
        if self.storage is None and self._make is not None:
            make, self._make = self._make, None
            if has_room(self.nbytes):
                try:
                    with torch.no_grad():
                        self.storage = make()
                except Exception:  # noqa: BLE001 -- of the CPU's kernel, as an index out of range
                    return None
                self.records = 0
                self._keep()
        return self.storage

    def is_chain_long(self) -> bool:
        """Return True if the values are to be computed now, before more records refer to them."""
        return self.records >= _MOST_RECORDS

    def writable(self) -> Known | None:
        """Return values of the same memory that may be written: others if records refer to these; None without room."""
        if self.storage is None:
            return None
        if self.is_shared:
            return Known(self.nbytes, self.storage.clone()) if has_room(self.nbytes) else None
        self._elements.clear()
        return self

    def elements(self, dtype: torch.dtype, find: Callable[[torch.Tensor], Any]) -> Any:
        """Return what `find` returns for all elements, which is kept until a write."""
        if dtype not in self._elements and self.storage is not None:
            self._elements[dtype] = find(torch.empty(0, dtype=dtype, device="cpu").set_(self.storage))
        return self._elements.get(dtype)


class Captured:
    """The values that a tensor has now, for a record that reads them later."""

    __slots__ = ("_read", "records")

    def __init__(self, read: Callable[[], torch.Tensor], records: int = 0) -> None:
        self._read, self.records = read, records

    def __call__(self) -> torch.Tensor:
        return self._read()


def captured(tensor: torch.Tensor, uniform: complex | None) -> Captured | None:
    """Return the known values of a tensor as they are now; None if they are unknown, or need too much memory.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor of the device or of the host.
    uniform : complex, optional
        The value of all its elements, if they have one value.
    """
    if not tensor.is_cuda:
        nbytes = tensor.numel() * tensor.itemsize
        if nbytes > SMALL and (tensor.is_floating_point() or tensor.is_complex()):
            return None
        is_repeated = 0 in tensor.stride()
        return _copied(tensor.detach()) if is_repeated or has_room(nbytes) else None
    known = memory_of(tensor).known
    layout = layout_of(tensor)
    if known is None:
        if uniform is None:
            return None
        return Captured(lambda: torch.tensor(uniform, dtype=layout.dtype, device="cpu").expand(layout.shape))
    if known.nbytes <= SMALL and known.storage is not None:
        return _copied(layout.over(known.storage))
    if known.is_chain_long() and known.read() is None:
        return None
    known.is_shared = True

    def read() -> torch.Tensor:
        storage = known.read()
        if storage is None:
            raise ValueError("the values are unknown")
        return layout.over(storage)

    return Captured(read, known.records)


def _copied(tensor: torch.Tensor) -> Captured:
    """Return a copy of a tensor of the host, of which repeated elements are copied once."""
    shape = tensor.shape
    for dim, stride in enumerate(tensor.stride()):
        if not stride and shape[dim]:
            tensor = tensor.narrow(dim, 0, 1)
    nbytes = tensor.numel() * tensor.itemsize
    copy = Known(nbytes, torch.UntypedStorage(nbytes, device="cpu"))
    made = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(copy.storage)[: tensor.numel()].view(tensor.shape)
    with torch.no_grad():
        made.copy_(tensor)
    return Captured(lambda: (copy, made.expand(shape))[1])  # the budget counts the copy while it is referred to


def held_now(tensor: torch.Tensor, known: Known | None, nbytes: int, uniform: complex | None) -> Captured | None:
    """Return the known values of the whole memory of a tensor as they are now, for a record; None if they are unknown.

    Parameters
    ----------
    tensor : torch.Tensor
        The tensor of the device.
    known : Known or None
        The values of its memory.
    nbytes : int
        The size of the memory.
    uniform : complex, optional
        The value of all elements, if they have one value.
    """
    if known is None:
        count, dtype = nbytes // tensor.itemsize, tensor.dtype
        if uniform is None or nbytes % tensor.itemsize:
            return None
        return Captured(lambda: torch.full((count,), uniform, dtype=dtype, device="cpu"))
    known.is_shared = True

    def read() -> torch.Tensor:
        storage = known.read()
        if storage is None:
            raise ValueError("the values are unknown")
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    return Captured(read, known.records)
