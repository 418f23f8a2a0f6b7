"""Detector of races: two streams access the same memory, at least one writes, and no synchronization orders them.

Accesses are checked when the operation is queued, so no wrong result is needed to find a race. Waits for events and
streams, host synchronization, and `record_stream` (for memory freed while another stream uses it) establish order.
Accesses to disjoint bytes of a tensor do not race. (`torch.cuda._sanitizer`)
"""

from __future__ import annotations

import inspect
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.observe.races.report import Access, AccessType, CUDASanitizerErrors, UnsynchronizedAccessError
from forebay.observe.races.vector_clocks import StreamSynchronizations
from forebay.runtime.base import observers
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage, array_at
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream
from forebay.runtime.tensors.tensor import Tensor
from forebay.spi import Queue

__all__ = ["Detector", "detected"]

_StreamKey = tuple[OpenDevice, int]  # device and stream handle
_MAX_ACCESSES = 256  # per allocation; the oldest are dropped
_MAX_FREED = 4096  # freed allocations that may still be in use


@dataclass(eq=False)
class _TrackedAccess:
    """An access, with the bytes that it touches."""

    access: Access
    stream: _StreamKey
    array: NDArray[Any]
    low: int
    high: int
    freed: bool = False  # the memory was freed after this access

    @property
    def writes(self) -> bool:
        return self.access.type is AccessType.WRITE

    def overlaps(self, other: _TrackedAccess) -> bool:
        if self.high <= other.low or other.high <= self.low:
            return False
        try:
            return bool(np.shares_memory(self.array, other.array, max_work=1000))  # type: ignore[arg-type]  # the stub is too strict
        except np.exceptions.TooHardError:
            return True

    def covers(self, other: _TrackedAccess) -> bool:
        return self.low <= other.low and other.high <= self.high and bool(self.array.flags.c_contiguous)


@dataclass(eq=False)
class _Allocation:
    """The memory of one storage, with the accesses that later ones are compared with."""

    address: int
    nbytes: int
    owner: _StreamKey | None = None  # the stream that it was allocated on
    stack: traceback.StackSummary | None = None
    accesses: list[_TrackedAccess] = field(default_factory=list)
    waited_for: set[_StreamKey] = field(default_factory=set)  # streams that the allocator waits for before reuse

    def add(self, new: _TrackedAccess) -> None:
        """Add an access, and drop those that it supersedes: work ordered after it is ordered after them."""
        kept = [
            old
            for old in self.accesses
            if not (new.covers(old) and (new.writes or (not old.writes and old.stream == new.stream)))
        ]
        self.accesses = [*kept[-_MAX_ACCESSES + 1 :], new]


class Detector(observers.Observer):
    """Race detector, an observer that may be added and removed at any time.

    A racing operation is queued; then each race is printed to stderr and CUDASanitizerErrors is raised. Work inside a
    graph capture is not checked.

    Parameters
    ----------
    kind : str, optional
        The device kind whose tensors are checked; all kinds by default.
    """

    def __init__(self, kind: str | None = None) -> None:
        self._kind = kind
        self._clocks: StreamSynchronizations[_StreamKey, int] = StreamSynchronizations()
        self._allocations: dict[tuple[OpenDevice, int], _Allocation] = {}
        self._freed: deque[_Allocation] = deque(maxlen=_MAX_FREED)
        self._pending_frees: deque[tuple[OpenDevice, int]] = deque()
        self._number = 0
        self._lock = threading.RLock()

    def launched(self, stream: Stream, name: str, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> None:
        """Check an operation that was queued.

        Parameters
        ----------
        stream : Stream
            The operation's stream.
        name : str
            The operation.
        reads : tuple of Tensor
            Its inputs.
        writes : tuple of Tensor
            Its outputs.

        Raises
        ------
        CUDASanitizerErrors
            If the operation races with earlier ones.
        """
        accesses = [(each, AccessType.WRITE) for each in writes]
        accesses += [(each, AccessType.READ) for each in reads if not any(each is other for other in writes)]
        accesses = [(each, type_) for each, type_ in accesses if each.numel() and self._checks(each.raw_storage.opened)]
        if not accesses or stream.is_capturing():
            return
        key = _key(stream)
        errors: list[UnsynchronizedAccessError] = []
        with self._lock:
            self._process_pending_frees()
            self._number += 1
            self._clocks.update_seq_num(key, self._number)
            stack = _stack()
            for tensor, type_ in accesses:
                is_output = type_ is AccessType.WRITE
                aliases = ["self"] if is_output else ["src"]
                access = Access(type_, self._number, stream.handle, name, aliases, is_output, stack)
                errors += self._races(tensor, _tracked(tensor, access, key))
        if errors:
            for error in errors:
                print(error, file=sys.stderr)  # noqa: T201 -- as PyTorch: the handler may be far away
            raise CUDASanitizerErrors(errors)

    def _races(self, tensor: Tensor, new: _TrackedAccess) -> Iterator[UnsynchronizedAccessError]:
        """Yield the races of an access, then add it to its allocation."""
        storage = tensor.raw_storage
        key = storage.opened, storage.address
        allocation = self._allocations.get(key)
        if allocation is None:  # allocated before the detector was added
            allocation = self._allocations[key] = _Allocation(storage.address, storage.nbytes)
        for old in allocation.accesses:
            if (old.writes or new.writes) and not self._ordered(old, new.stream) and new.overlaps(old):
                yield UnsynchronizedAccessError(
                    tensor.data_ptr(), allocation.stack, new.access, old.access, freed_between=old.freed
                )
        allocation.add(new)

    def _ordered(self, old: _TrackedAccess, stream: _StreamKey) -> bool:
        return self._clocks.is_ordered_after(stream, old.access.seq_num, old.stream)

    # Allocations

    def allocated(self, storage: Storage, queue: int) -> None:
        """Track an allocation; unordered accesses to freed memory that it reuses are carried over.

        Parameters
        ----------
        storage : Storage
            The memory.
        queue : int
            Handle of the stream that it was allocated on.
        """
        if not self._checks(storage.opened):
            return
        with self._lock:
            self._process_pending_frees()
            owner, low, high = (storage.opened, queue), storage.address, storage.address + storage.nbytes
            new = _Allocation(low, storage.nbytes, owner, _stack())
            for old in tuple(self._freed):
                same_device = old.owner is not None and old.owner[0] is storage.opened
                if same_device and old.address < high and low < old.address + old.nbytes:
                    self._freed.remove(old)
                    if old.owner == owner:  # else it was released to the device in between, which waits
                        new.accesses += [each for each in old.accesses if not self._ordered(each, owner)]
            self._allocations[storage.opened, low] = new

    def freed(self, opened: OpenDevice, address: int) -> None:
        """Queue a free, processed by the next call: a destructor may run while the lock is held.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        address : int
            The memory's address.
        """
        self._pending_frees.append((opened, address))

    def _process_pending_frees(self) -> None:
        while self._pending_frees:
            allocation = self._allocations.pop(self._pending_frees.popleft(), None)
            if allocation is not None and allocation.owner is not None:
                allocation.accesses = [
                    each
                    for each in allocation.accesses
                    if each.stream not in allocation.waited_for and not self._ordered(each, allocation.owner)
                ]
                for each in allocation.accesses:
                    each.freed = True
                if allocation.accesses:
                    self._freed.append(allocation)

    def used(self, storage: Storage, stream: Stream) -> None:
        """Track `record_stream`.

        Parameters
        ----------
        storage : Storage
            The memory.
        stream : Stream
            The stream that uses it.
        """
        with self._lock:
            allocation = self._allocations.get((storage.opened, storage.address))
            if allocation is not None:
                allocation.waited_for.add(_key(stream))

    # Synchronization

    def stream_created(self, opened: OpenDevice, queue: Queue) -> None:
        """Track a new stream.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        queue : Queue
            The stream's queue.
        """
        with self._lock:
            self._clocks.create_stream((opened, queue.handle))

    def stream_waited(self, stream: Stream, other: Stream) -> None:
        """Order a stream after another.

        Parameters
        ----------
        stream : Stream
            The waiting stream.
        other : Stream
            The stream whose work it waits for.
        """
        with self._lock:
            self._clocks.stream_wait_for_stream(_key(stream), _key(other))

    def stream_synchronized(self, stream: Stream) -> None:
        """Order all streams after one that the host waited for.

        Parameters
        ----------
        stream : Stream
            The stream.
        """
        with self._lock:
            self._clocks.all_streams_wait_for_stream(_key(stream))

    def device_synchronized(self, opened: OpenDevice) -> None:
        """Order all streams after a device that the host waited for.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        """
        with self._lock:
            for handle in (*opened.queues, *opened.external_queues):
                self._clocks.all_streams_wait_for_stream((opened, handle))

    def event_recorded(self, event: Event, stream: Stream) -> None:
        """Track the record of an event.

        Parameters
        ----------
        event : Event
            The event.
        stream : Stream
            The stream that it was recorded on.
        """
        with self._lock:
            self._clocks.record_state(id(event), _key(stream))

    def event_deleted(self, opened: OpenDevice, number: int) -> None:
        """Do nothing: the `id` may belong to a new event already, whose first record replaces the state.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        number : int
            The `id` of the event.
        """

    def event_waited(self, event: Event, stream: Stream) -> None:
        """Order a stream after an event.

        Parameters
        ----------
        event : Event
            The event.
        stream : Stream
            The waiting stream.
        """
        with self._lock:
            self._clocks.stream_wait_for_event(_key(stream), id(event))

    def event_synchronized(self, event: Event) -> None:
        """Order all streams after an event that the host waited for.

        Parameters
        ----------
        event : Event
            The event.
        """
        with self._lock:
            self._clocks.all_streams_wait_for_event(id(event))

    def _checks(self, opened: OpenDevice) -> bool:
        return self._kind in (None, opened.device.kind)


@contextmanager
def detected(kind: str | None = None) -> Iterator[Detector]:
    """Context manager that detects races inside the block.

    A racing operation raises CUDASanitizerErrors. Streams have no recorded order before the block.

    Parameters
    ----------
    kind : str, optional
        The device kind whose tensors are checked; all kinds by default.

    Examples
    --------
    >>> import forebay
    >>> with forebay.emulate("cuda"), detected("cuda"):
    ...     ones = forebay.full((3,), 1.0, device="cuda:0")
    ...     side = forebay.Stream("cuda:0")
    ...     side.wait_stream(forebay.current_stream("cuda:0"))  # without this wait, the copy is a race
    ...     with side:
    ...         copy = ones.clone()
    """
    detector = Detector(kind)
    with observers.observing(detector):
        yield detector


def _key(stream: Stream) -> _StreamKey:
    return stream.opened, stream.handle


def _tracked(tensor: Tensor, access: Access, key: _StreamKey) -> _TrackedAccess:
    array = array_at(tensor.data_ptr(), tensor.shape, tensor.byte_strides, tensor.numpy_dtype, None)
    low, high = np.lib.array_utils.byte_bounds(array)
    return _TrackedAccess(access, key, array, low, high)


def _stack() -> traceback.StackSummary:
    """Return the calling thread's Python stack, the innermost frame last."""
    stack = traceback.StackSummary.extract(traceback.walk_stack(inspect.currentframe()), lookup_lines=False)
    stack.reverse()
    return stack
