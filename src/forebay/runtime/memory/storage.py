"""Where a tensor's bytes are: a block of a device's allocator, or memory that somebody else owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay._core import Block
from forebay.runtime.allocator import oom_message
from forebay.runtime.allocator.pluggable_allocator import PluggedBlock
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base import observers
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.pinned.pinned_allocator import PinnedBlock
from forebay.runtime.settings import process_settings

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = ["AnyBlock", "InOrder", "Storage", "allocate_block", "array_at", "pinned_block", "record_use"]


AnyBlock = Block | UncachedBlock


def allocate_block(opened: OpenDevice, nbytes: int, queue: int) -> AnyBlock:
    if nbytes >= oom_message.MOST_BYTES:  # more than the core's ints hold, perhaps
        raise opened.allocator.beyond(nbytes)
    if opened.plugged is not None:
        return PluggedBlock(opened.plugged, opened, nbytes, queue)
    if process_settings.caching:
        return opened.allocator.allocate(nbytes, queue)
    return UncachedBlock(opened.allocator, nbytes, queue)


class InOrder(ABC):
    """An owner of memory whose end goes behind the work of the streams that use it, as a block's does."""

    @abstractmethod
    def used_on(self, queue: int) -> None:
        """Of the queue of that handle, too."""


class Storage:
    """`nbytes` at `address` on a device; as long as it lives, `owner` does. An empty one has neither."""

    __slots__ = ("__weakref__", "address", "nbytes", "opened", "owner")

    def __init__(self, opened: OpenDevice, nbytes: int, address: int, owner: object) -> None:
        self.opened = opened
        self.nbytes = nbytes
        self.address = address
        self.owner = owner

    @classmethod
    def allocate(cls, opened: OpenDevice, nbytes: int, queue: int) -> Storage:
        if nbytes == 0:
            return cls(opened, 0, 0, None)
        block = allocate_block(opened, nbytes, queue)
        made = cls(opened, nbytes, block.address, block)
        if observers.listeners:
            observers.allocated(made, queue)
        return made

    @property
    def block(self) -> AnyBlock | None:
        """The allocator's block, or None for borrowed or empty memory."""
        return self.owner if isinstance(self.owner, AnyBlock) else None

    @property
    def borrowed(self) -> bool:
        """Somebody else's memory, which goes when its owner does: work that is queued on it must keep that alive."""
        return self.owner is not None and not isinstance(self.owner, AnyBlock | InOrder)

    @property
    def host_visible(self) -> bool:
        return self.opened.port.props.host_visible

    @property
    def queue_visible(self) -> bool:
        """Functions that a queue runs may touch it."""
        props = self.opened.port.props
        return props.host_visible or props.queue_visible


class _At:
    """Tells NumPy of memory by its address; NumPy keeps it as the array's base, and so its owner."""

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, owner: object
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{itemsize}",  # raw bytes: every dtype can be viewed from them, ml_dtypes' too
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


def array_at(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], owner: object
) -> NDArray[Any]:
    """An array of what is at the address, strides in bytes. Nothing is read, so the address may be a device's."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_At(address, shape, strides, dtype.itemsize, owner)).view(dtype)


def pinned_block(memory: object) -> PinnedBlock | None:
    """The block of `forebay.empty_pinned` that an array lies in, if any."""
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return memory.owner if isinstance(memory, _At) and isinstance(memory.owner, PinnedBlock) else None


def record_use(storage: Storage, stream: Stream) -> None:
    """The stream uses it, too; ValueError for a stream of another device. Nothing where others own the memory."""
    if (pinned := pinned_block(owner := storage.owner)) is not None:
        pinned.used_on(stream.queue)
    elif isinstance(owner, AnyBlock | InOrder):
        if stream.device != storage.opened.device:
            raise ValueError(f"{stream!r} is not a stream of {storage.opened.device}, where this tensor is")
        owner.used_on(stream.handle)
        for listener in observers.listeners:
            listener.used(storage, stream)
