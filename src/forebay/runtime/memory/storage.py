"""Memory of a tensor: a block of a device's allocator, or memory that belongs to another object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from forebay._base.device_spec import CPU
from forebay._core import MAX_REQUEST_BYTES, Block
from forebay.errors import ForebayError
from forebay.runtime.allocator.pluggable_allocator import PluggableBlock
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base import capture_state, observers
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.version_counter import VersionCounter
from forebay.runtime.pinned.pinned_allocator import PinnedBlock
from forebay.runtime.settings import process_settings
from forebay.runtime.streams.stream import Stream

__all__ = [
    "AnyBlock",
    "HostStorage",
    "Storage",
    "StreamOrderedOwner",
    "allocate_block",
    "allocate_raw_block",
    "array_at",
    "keep_alive",
    "pinned_block",
    "record_use",
]


AnyBlock = Block | UncachedBlock
_NOTHING = nullcontext()


def allocate_block(opened: OpenDevice, nbytes: int, queue: int) -> AnyBlock:
    """Allocate less than `MAX_REQUEST_BYTES`."""
    if opened.pluggable is not None:
        return PluggableBlock(opened.pluggable, opened.allocator, nbytes, queue)
    if process_settings.caching:
        return opened.allocator.allocate(nbytes, queue)
    return UncachedBlock(opened.allocator, nbytes, queue)


def allocate_raw_block(opened: OpenDevice, nbytes: int, queue: int) -> AnyBlock:
    """Allocate less than 2**63 bytes. Excessive sizes fail with the same text as others, unlike those of tensors."""
    if nbytes >= MAX_REQUEST_BYTES and opened.pluggable is None:
        return opened.allocator.allocate_oversize(nbytes, queue)
    return allocate_block(opened, nbytes, queue)


class StreamOrderedOwner(ABC):
    """Memory owner whose release is ordered after pending work on the streams that use it, like a Block's."""

    @abstractmethod
    def record_stream(self, queue: int) -> None:
        """Record that the queue with this handle uses the memory."""


class Storage:
    """`nbytes` of device memory at `address`, kept alive by `owner`.

    An empty storage has address 0 and no owner. Other memory without an owner is kept alive by its creator.
    """

    __slots__ = ("__weakref__", "_versions", "address", "nbytes", "opened", "owner")
    _versions: VersionCounter

    def __init__(self, opened: OpenDevice, nbytes: int, address: int, owner: object) -> None:
        self.opened: OpenDevice = opened
        self.nbytes: int = nbytes
        self.address: int = address
        self.owner: object = owner

    @classmethod
    def allocate(cls, opened: OpenDevice, nbytes: int, queue: int) -> Storage:
        if nbytes == 0:
            return cls(opened, 0, 0, None)
        block = allocate_block(opened, nbytes, queue)
        storage = cls(opened, nbytes, block.address, block)
        if observers.registered:
            observers.notify_allocated(storage, queue)
        return storage

    def forbid_access(self, message: str) -> None:
        """Make every access to the address raise ForebayError with the message, until `permit_access`."""
        _messages[self] = message
        self.__class__ = _InaccessibleStorage  # so that the others need not test for a message

    def permit_access(self) -> None:
        self.__class__ = Storage

    def version_counter(self) -> VersionCounter:
        """Return the counter of the tensors over this memory that have no other."""
        try:
            return self._versions
        except AttributeError:  # the slot is empty at first, because most memory needs no counter
            self._versions = VersionCounter()
            return self._versions

    @property
    def block(self) -> AnyBlock | None:
        """The allocator's block, or None for borrowed or empty memory."""
        return self.owner if isinstance(self.owner, AnyBlock) else None

    @property
    def borrowed(self) -> bool:
        """True if the owner frees the memory without waiting for streams: queued work must keep the owner alive."""
        return self.owner is not None and not isinstance(self.owner, AnyBlock | StreamOrderedOwner)

    @property
    def host_visible(self) -> bool:
        """True if the host may access the memory."""
        return self.opened.port.props.host_visible

    @property
    def queue_visible(self) -> bool:
        """True if functions that a queue runs may access the memory."""
        props = self.opened.port.props
        return props.host_visible or props.queue_visible


class HostStorage(Storage):
    """Memory of a NumPy array. Its device, the CPU, is opened only when it is used: a forked child can still do so."""

    __slots__ = ()
    host_visible = queue_visible = borrowed = True

    def __init__(self, nbytes: int, address: int, owner: object) -> None:
        self.nbytes = nbytes
        self.address = address
        self.owner = owner

    @property
    def opened(self) -> OpenDevice:  # type: ignore[override]  # a slot of the base class
        """The CPU device."""
        return open_device.open_device(CPU)


class _InaccessibleStorage(Storage):
    """Storage whose address must not be used."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name == "address":
            raise ForebayError(_messages[self])
        return object.__getattribute__(self, name)  # super() fails when another thread has permitted the access


_messages: WeakKeyDictionary[Storage, str] = WeakKeyDictionary()  # of inaccessible storages


class _ArrayInterface:
    """NumPy array interface of memory at an address; NumPy keeps it, and with it the owner, as the array's base."""

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, owner: object
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{itemsize}",  # raw bytes, which can be viewed as any dtype, also those of ml_dtypes
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


def array_at(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], owner: object
) -> NDArray[Any]:
    """Return an array over the memory at `address`, strides in bytes. Does not read it: it may be a device's."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_ArrayInterface(address, shape, strides, dtype.itemsize, owner)).view(dtype)


def pinned_block(memory: object) -> PinnedBlock | None:
    """Return the block of `forebay.empty_pinned` that contains the array, or None."""
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return memory.owner if isinstance(memory, _ArrayInterface) and isinstance(memory.owner, PinnedBlock) else None


def record_use(storage: Storage, stream: Stream) -> None:
    """Record that the stream uses the storage. Ignore borrowed memory."""
    if not isinstance(stream, Stream):
        raise RuntimeError("unknown parameter type")  # noqa: TRY004 -- PyTorch's
    if (pinned := pinned_block(owner := storage.owner)) is not None:
        pinned.record_stream(stream.queue)
    elif isinstance(owner, AnyBlock | StreamOrderedOwner):
        if stream.opened.device != (device := storage.opened.device):
            reason = f"{stream!r} is not a stream of {device}, where this tensor is"
            if stream.opened.device.kind == device.kind:
                raise ValueError(reason)
            backend = device.kind.upper()
            raise NotImplementedError(
                f"Could not run 'aten::record_stream' with arguments from the '{backend}' backend. {reason}"
            )
        owner.record_stream(stream.handle)
        for listener in observers.registered:
            listener.used(storage, stream)


def keep_alive(stream: Stream, *storages: Storage, non_blocking: bool = False) -> AbstractContextManager[object]:
    """Keep the storages' memory alive for the work that is queued inside the `with` block.

    The allocators order frees of their own blocks after that work; other owners are kept alive. The block's end waits
    for the host's own work on pinned memory, unless `non_blocking`: its allocator would not reuse it before.
    """
    borrowed = []
    waits = False
    if capture_state.active and stream.capture is not None:
        stream.capture.note_inputs(storages)
        return stream.opened.keep_alive(stream.queue, *(storage for storage in storages if storage.borrowed))
    for storage in storages:
        if storage.owner.__class__ is Block:  # most are: neither pinned nor borrowed
            continue
        if (pinned := pinned_block(storage.owner)) is not None:
            if not non_blocking:
                waits = True
            else:
                pinned.record_stream(stream.queue)
        elif storage.borrowed:
            borrowed.append(storage)
    if waits:
        return _WaitAtEnd(stream)
    return stream.opened.keep_alive(stream.queue, *borrowed) if borrowed else _NOTHING


class _WaitAtEnd:
    """Wait at the end of a `with` block for the work that is queued inside."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None:
        queue = self.stream.queue
        self.stream.opened.wait(queue, queue.signal())
