"""Races between streams: memory that two streams use, one of them writing, with nothing between them that orders it.

Every operation on tensors is looked at when it is queued; none has to go wrong for it to be found. What orders is what
a program says: waiting for events and streams, synchronizing, `record_stream` for memory that is freed while another
stream uses it. Parts of a tensor that have no byte in common do not race. (`torch.cuda._sanitizer`)
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

_Key = tuple[OpenDevice, int]  # a stream, by its device and handle
_MOST_KEPT = 256  # accesses of one memory; of more the oldest are forgotten
_MOST_FREED = 4096  # memories that were freed while somebody may have used them


@dataclass(eq=False)
class _Use:
    """One access, of these bytes."""

    access: Access
    stream: _Key
    array: NDArray[Any]
    low: int
    high: int
    freed: bool = False  # its memory, since

    @property
    def writes(self) -> bool:
        return self.access.type is AccessType.WRITE

    def meets(self, other: _Use) -> bool:
        if self.high <= other.low or other.high <= self.low:
            return False
        try:
            return bool(np.shares_memory(self.array, other.array, max_work=1000))  # type: ignore[arg-type]  # the stub is too strict
        except np.exceptions.TooHardError:
            return True

    def covers(self, other: _Use) -> bool:
        return self.low <= other.low and other.high <= self.high and bool(self.array.flags.c_contiguous)


@dataclass(eq=False)
class _Memory:
    address: int
    nbytes: int
    owner: _Key | None = None  # the stream that it was allocated for
    stack: traceback.StackSummary | None = None
    uses: list[_Use] = field(default_factory=list)
    waited_for: set[_Key] = field(default_factory=set)  # by the allocator, before it is used again

    def add(self, new: _Use) -> None:
        """What the new one makes superfluous goes: whoever is in order with that is so with this."""
        kept = [
            old
            for old in self.uses
            if not (new.covers(old) and (new.writes or (not old.writes and old.stream == new.stream)))
        ]
        self.uses = [*kept[-_MOST_KEPT + 1 :], new]


class Detector(observers.Listener):
    """Looks at the tensors of one kind of device, or of all. It may begin and end at any time.

    An operation that races is queued all the same; then each race is printed, and CUDASanitizerErrors raised.
    """

    def __init__(self, kind: str | None = None) -> None:
        self._kind = kind
        self._orders: StreamSynchronizations[_Key, int] = StreamSynchronizations()
        self._memory: dict[tuple[OpenDevice, int], _Memory] = {}
        self._freed: deque[_Memory] = deque(maxlen=_MOST_FREED)
        self._going: deque[tuple[OpenDevice, int]] = deque()  # freed, perhaps in the middle of something else here
        self._number = 0
        self._lock = threading.RLock()

    def launched(self, stream: Stream, name: str, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> None:
        uses = [(each, AccessType.WRITE) for each in writes]
        uses += [(each, AccessType.READ) for each in reads if not any(each is other for other in writes)]
        uses = [(each, how) for each, how in uses if each.numel() and self._cares(each.storage.opened)]
        if not uses or stream.is_capturing():
            return
        key = _key(stream)
        errors: list[UnsynchronizedAccessError] = []
        with self._lock:
            self._let_go()
            self._number += 1
            self._orders.update_seq_num(key, self._number)
            stack = _stack()
            for tensor, how in uses:
                aliases = ["self"] if how is AccessType.WRITE else ["src"]
                access = Access(how, self._number, stream.handle, name, aliases, how is AccessType.WRITE, stack)
                errors += self._used(tensor, _use(tensor, access, key))
        if errors:
            for error in errors:
                print(error, file=sys.stderr)  # noqa: T201 -- as PyTorch: it may be far from where the error is caught
            raise CUDASanitizerErrors(errors)

    def _used(self, tensor: Tensor, new: _Use) -> Iterator[UnsynchronizedAccessError]:
        storage = tensor.storage
        at = storage.opened, storage.address
        memory = self._memory.get(at)
        if memory is None:  # it was there before us
            memory = self._memory[at] = _Memory(storage.address, storage.nbytes)
        for old in memory.uses:
            if (old.writes or new.writes) and not self._ordered(old, new.stream) and new.meets(old):
                yield UnsynchronizedAccessError(
                    tensor.data_ptr(), memory.stack, new.access, old.access, freed_between=old.freed
                )
        memory.add(new)

    def _ordered(self, old: _Use, stream: _Key) -> bool:
        return self._orders.is_ordered_after(stream, old.access.seq_num, old.stream)

    # Memory comes and goes.

    def allocated(self, storage: Storage, queue: int) -> None:
        if not self._cares(storage.opened):
            return
        with self._lock:
            self._let_go()
            owner, low, high = (storage.opened, queue), storage.address, storage.address + storage.nbytes
            new = _Memory(low, storage.nbytes, owner, _stack())
            for old in tuple(self._freed):
                here = old.owner is not None and old.owner[0] is storage.opened
                if here and old.address < high and low < old.address + old.nbytes:
                    self._freed.remove(old)
                    if old.owner == owner:  # else it went back to the device in between, which waits
                        new.uses += [use for use in old.uses if not self._ordered(use, owner)]
            self._memory[storage.opened, low] = new

    def freed(self, opened: OpenDevice, address: int) -> None:
        self._going.append((opened, address))

    def _let_go(self) -> None:
        while self._going:
            memory = self._memory.pop(self._going.popleft(), None)
            if memory is not None and memory.owner is not None:
                memory.uses = [
                    use
                    for use in memory.uses
                    if use.stream not in memory.waited_for and not self._ordered(use, memory.owner)
                ]
                for use in memory.uses:
                    use.freed = True
                if memory.uses:
                    self._freed.append(memory)

    def used(self, storage: Storage, stream: Stream) -> None:
        with self._lock:
            memory = self._memory.get((storage.opened, storage.address))
            if memory is not None:
                memory.waited_for.add(_key(stream))

    # What orders.

    def stream_created(self, opened: OpenDevice, queue: Queue) -> None:
        with self._lock:
            self._orders.create_stream((opened, queue.handle))

    def stream_waited(self, stream: Stream, other: Stream) -> None:
        with self._lock:
            self._orders.stream_wait_for_stream(_key(stream), _key(other))

    def stream_synchronized(self, stream: Stream) -> None:
        with self._lock:
            self._orders.all_streams_wait_for_stream(_key(stream))

    def device_synchronized(self, opened: OpenDevice) -> None:
        with self._lock:
            for handle in tuple(opened.queues):
                self._orders.all_streams_wait_for_stream((opened, handle))

    def event_recorded(self, event: Event, stream: Stream) -> None:
        with self._lock:
            self._orders.record_state(id(event), _key(stream))

    def event_deleted(self, opened: OpenDevice, number: int) -> None:
        """Nothing: its number may be another's by now, and whoever records that begins anew."""

    def event_waited(self, event: Event, stream: Stream) -> None:
        with self._lock:
            self._orders.stream_wait_for_event(_key(stream), id(event))

    def event_synchronized(self, event: Event) -> None:
        with self._lock:
            self._orders.all_streams_wait_for_event(id(event))

    def _cares(self, opened: OpenDevice) -> bool:
        return self._kind in (None, opened.device.kind)


@contextmanager
def detected(kind: str | None = None) -> Iterator[Detector]:
    """Look for races meanwhile.

    >>> import forebay
    >>> with forebay.emulate("cuda"), detected("cuda"):
    ...     ones = forebay.full((3,), 1.0, device="cuda:0")
    ...     side = forebay.Stream("cuda:0")
    ...     side.wait_stream(forebay.current_stream("cuda:0"))  # without this line, the copy is a race
    ...     with side:
    ...         copy = ones.clone()
    """
    detector = Detector(kind)
    with observers.listening_to(detector):
        yield detector


def _key(stream: Stream) -> _Key:
    return stream.opened, stream.handle


def _use(tensor: Tensor, access: Access, key: _Key) -> _Use:
    array = array_at(tensor.data_ptr(), tensor.shape, tensor.byte_strides, tensor.dtype, None)
    low, high = np.lib.array_utils.byte_bounds(array)
    return _Use(access, key, array, low, high)


def _stack() -> traceback.StackSummary:
    """Of the program, and what it called here; the innermost last."""
    stack = traceback.StackSummary.extract(traceback.walk_stack(inspect.currentframe()), lookup_lines=False)
    stack.reverse()
    return stack
