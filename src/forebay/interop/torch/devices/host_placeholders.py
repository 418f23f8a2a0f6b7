"""Host memory that stands for values that are not computed: of tensors that are saved, and of those that are loaded.

Files have holes in its place: Note [Files without values].
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forebay.interop.torch.devices import host_values

__all__ = ["copy_without_values", "has_no_values", "is_saving", "make", "saving"]


class _Thread(threading.local):
    """The storages that a copy has left without values while this thread saves; None otherwise."""

    copies: dict[int, torch.UntypedStorage] | None = None


_thread = _Thread()


@contextmanager
def saving() -> Iterator[None]:
    """Context manager: copies of unknown values to the host leave memory without values, and raise no error."""
    before = _thread.copies
    # The storages are kept: another one at the address of one that was freed could have values.
    _thread.copies = {} if before is None else before
    try:
        yield
    finally:
        _thread.copies = before


def is_saving() -> bool:
    """Return True inside `saving`."""
    return _thread.copies is not None


def copy_without_values(target: torch.Tensor) -> None:
    """Note that the memory of a tensor of the host was to receive unknown values."""
    if _thread.copies is not None:
        storage = target.untyped_storage()
        _thread.copies[storage.data_ptr()] = storage


def make(nbytes: int) -> torch.UntypedStorage:
    """Return memory of the host without values. It reads as zeros, and takes no memory until it is written."""
    made = torch.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype=torch.uint8)
    host_values.defer(made, None, discards=False)
    return made.untyped_storage()


def has_no_values(storage: torch.UntypedStorage) -> bool:
    """Return True for memory of the host that stands for unknown values."""
    if storage.device.type != "cpu":
        return False
    if host_values.has_deferred(storage):
        return True
    return storage.data_ptr() in (_thread.copies or ())
