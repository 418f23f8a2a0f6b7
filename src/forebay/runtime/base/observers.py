"""What the runtime does with devices, for whoever listens. Where nobody does, a place costs one look at `listeners`, or
at `tracer`.

A listener is told after the thing was done, in the thread that did it; what it raises, the program sees. `freed` may
come from a destructor at any moment, so it must neither wait nor raise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from weakref import finalize

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.memory.storage import Storage
    from forebay.runtime.streams.event import Event
    from forebay.runtime.streams.stream import Stream
    from forebay.runtime.tensors.tensor import Tensor
    from forebay.spi import Queue

__all__ = [
    "Listener",
    "Tracer",
    "add",
    "allocated",
    "created",
    "forget_in_child",
    "listeners",
    "listening_to",
    "of_launches",
    "remove",
    "trace",
    "trace_no_more",
    "tracer",
    "wait",
]


class Listener:
    """Hears what it has a method for; of the ends of memory and events only if it says so: to know them takes long."""

    hears_ends = True

    def stream_created(self, opened: OpenDevice, queue: Queue) -> None: ...
    def stream_waited(self, stream: Stream, other: Stream) -> None: ...  # for all work so far of the other
    def stream_synchronized(self, stream: Stream) -> None: ...  # by the host, also to read or copy
    def device_synchronized(self, opened: OpenDevice) -> None: ...
    def event_created(self, event: Event) -> None: ...  # when it is recorded first, as CUDA's events are
    def event_deleted(self, opened: OpenDevice, number: int) -> None: ...  # number: `id` of what was created
    def event_recorded(self, event: Event, stream: Stream) -> None: ...
    def event_waited(self, event: Event, stream: Stream) -> None: ...
    def event_synchronized(self, event: Event) -> None: ...
    def allocated(self, storage: Storage, queue: int) -> None: ...  # of a tensor, for the queue of that handle
    def freed(self, opened: OpenDevice, address: int) -> None: ...
    def used(self, storage: Storage, stream: Stream) -> None: ...  # `record_stream`
    def launched(
        self, stream: Stream, name: str, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]
    ) -> None: ...  # work on tensors was queued
    def event_queried(self, event: Event, done: bool) -> None: ...


class Tracer:
    """Hears of the work of queues, as their devices do it, and of who waits for that.

    It is told by functions that programs do not call themselves.
    """

    def queueing(self, queue: Queue) -> Any: ...  # just before the queue is given something
    def queued(  # and when it has it; `begun` is what `queueing` gave
        self,
        queue: Queue,
        begun: Any,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,
        above: int = 0,
    ) -> None:
        """One of copy fill draw call native wait graph; of this operation; how much it writes; what it waits for.

        At least so many functions of forebay's stand `above` the one that tells: the program's line is above them.
        """

    def host_waited(self, queue: Queue, since: int) -> None: ...  # for the queue; the time is `perf_counter_ns`'s


class _Several(Tracer):
    def __init__(self, tracers: tuple[Tracer, ...]) -> None:
        self.tracers = tracers

    def queueing(self, queue: Queue) -> list[Any]:
        return [tracer.queueing(queue) for tracer in self.tracers]

    def queued(
        self,
        queue: Queue,
        begun: Any,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,
        above: int = 0,
    ) -> None:
        for tracer, its in zip(self.tracers, begun, strict=True):
            tracer.queued(queue, its, what, name, nbytes, other, above + 1)

    def host_waited(self, queue: Queue, since: int) -> None:
        for tracer in self.tracers:
            tracer.host_waited(queue, since)


listeners: tuple[Listener, ...] = ()
of_launches: tuple[Listener, ...] = ()  # those who hear of them: to say what was launched takes long
tracer: Tracer | None = None  # all of them
_tracers: tuple[Tracer, ...] = ()
_changing = threading.RLock()  # a destructor may come in between


def add(listener: Listener) -> None:
    with _changing:
        _let_listen((*listeners, listener))


def remove(listener: Listener) -> None:
    with _changing:
        _let_listen(tuple(each for each in listeners if each is not listener))


def _let_listen(all_of_them: tuple[Listener, ...]) -> None:
    global listeners, of_launches  # noqa: PLW0603 -- read without a lock: a tuple is whole at any time
    listeners = all_of_them
    of_launches = tuple(each for each in listeners if type(each).launched is not Listener.launched)


def trace(by: Tracer) -> None:
    """Let it hear of all work from now on."""
    with _changing:
        _set((*_tracers, by))


def trace_no_more(by: Tracer) -> None:
    with _changing:
        _set(tuple(each for each in _tracers if each is not by))


def _set(by: tuple[Tracer, ...]) -> None:
    global tracer, _tracers  # noqa: PLW0603 -- as above
    _tracers = by
    tracer = _Several(by) if len(by) > 1 else by[0] if by else None


def wait(queue: Queue, tick: int) -> None:
    """The host waits, and the tracer hears of it."""
    by = tracer
    if by is None:
        queue.wait(tick)
        return
    since = perf_counter_ns()
    try:
        queue.wait(tick)
    finally:
        by.host_waited(queue, since)


@contextmanager
def listening_to(listener: Listener) -> Iterator[None]:
    add(listener)
    try:
        yield
    finally:
        remove(listener)


def forget_in_child() -> None:
    """For the fork handler: nobody listens in a child, whose devices are not its parent's."""
    global tracer, _tracers, _changing  # noqa: PLW0603 -- as above
    _changing = threading.RLock()  # another thread of the parent may have held the old one
    tracer, _tracers = None, ()
    _let_listen(())


def allocated(storage: Storage, queue: int) -> None:
    """Tell of it and, when it goes, of that."""
    if any(listener.hears_ends for listener in listeners):
        finalize(storage, _freed, storage.opened, storage.address).atexit = False
    for listener in listeners:
        listener.allocated(storage, queue)


def _freed(opened: OpenDevice, address: int) -> None:
    for listener in listeners:
        listener.freed(opened, address)


def created(event: Event, opened: OpenDevice) -> None:
    """As `allocated`."""
    if any(listener.hears_ends for listener in listeners):
        finalize(event, _deleted, opened, id(event)).atexit = False
    for listener in listeners:
        listener.event_created(event)


def _deleted(opened: OpenDevice, number: int) -> None:
    for listener in listeners:
        listener.event_deleted(opened, number)
