"""Observer hooks for runtime operations. With no observer registered, each hook costs one global read.

An observer is called after the operation, in the thread that performed it; its exceptions propagate to the caller.

# Note [Observers]
`freed` and `event_deleted` are called by destructors, at any moment of any thread, also inside a call of the allocator
or of another observer. They must neither block, nor raise, nor allocate memory of the device: an observer that waits
for a lock may wait for its own thread. Observers are kept in tuples that are replaced as a whole, so that a loop over
them needs no lock while another thread adds one. A forked child has none: its parent's observers know devices that it
cannot use. Rejected: a list, which a loop would see half changed.
Test: tests/observe/test_races.py::test_forked_child_has_no_observer
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
    "Observer",
    "Tracer",
    "add",
    "add_tracer",
    "after_fork_in_child",
    "launch_observers",
    "notify_allocated",
    "notify_event_created",
    "observing",
    "registered",
    "remove",
    "remove_tracer",
    "tracer",
    "wait",
]


class Observer:
    """Base class of observers, which override the methods of the operations that they observe.

    Deletions of memory and events are slow to track; an observer that does not need them sets this attribute to False.
    """

    tracks_deletions = True

    def stream_created(self, opened: OpenDevice, queue: Queue) -> None: ...
    def stream_waited(self, stream: Stream, other: Stream) -> None: ...  # for all work queued on `other` so far
    def stream_synchronized(self, stream: Stream) -> None: ...  # by the host, also to read or copy
    def device_synchronized(self, opened: OpenDevice) -> None: ...
    def event_created(self, event: Event) -> None: ...  # at its first record, when CUDA creates an event
    def event_deleted(self, opened: OpenDevice, number: int) -> None: ...  # number: `id` of the created event
    def event_recorded(self, event: Event, stream: Stream) -> None: ...
    def event_waited(self, event: Event, stream: Stream) -> None: ...
    def event_synchronized(self, event: Event) -> None: ...
    def allocated(self, storage: Storage, queue: int) -> None: ...  # memory of a tensor, for the queue with this handle
    def freed(self, opened: OpenDevice, address: int) -> None: ...  # see Note [Observers]
    def used(self, storage: Storage, stream: Stream) -> None: ...  # `record_stream`
    def launched(
        self, stream: Stream, name: str, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]
    ) -> None: ...  # work on tensors was queued
    def event_queried(self, event: Event, done: bool) -> None: ...


class Tracer:
    """Base class of tracers, which follow the work of queues and the host's waits for it.

    The methods are called by functions that programs do not call directly.
    """

    def queueing(self, queue: Queue) -> Any: ...  # just before work is queued; returns a token
    def queued(  # just after; `begun` is the token of `queueing`
        self,
        queue: Queue,
        begun: Any,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,
    ) -> None:
        """Record queued work.

        `what` is copy, fill, draw, call, native, wait or graph; `name` the operation; `nbytes` the bytes it writes;
        `other` the queue it waits for. The program's source line is the innermost one outside forebay.
        """

    def host_waited(self, queue: Queue, since: int) -> None: ...  # `since` is a time of `perf_counter_ns`


class _TracerGroup(Tracer):
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
    ) -> None:
        for tracer, token in zip(self.tracers, begun, strict=True):
            tracer.queued(queue, token, what, name, nbytes, other)

    def host_waited(self, queue: Queue, since: int) -> None:
        for tracer in self.tracers:
            tracer.host_waited(queue, since)


registered: tuple[Observer, ...] = ()
launch_observers: tuple[Observer, ...] = ()  # those that override `launched`: its arguments are slow to make
tracer: Tracer | None = None  # all registered tracers as one
_tracers: tuple[Tracer, ...] = ()
_changing = threading.RLock()  # reentrant: a destructor may run inside


def add(listener: Observer) -> None:
    with _changing:
        _set_listeners((*registered, listener))


def remove(listener: Observer) -> None:
    with _changing:
        _set_listeners(tuple(each for each in registered if each is not listener))


def _set_listeners(new: tuple[Observer, ...]) -> None:
    global registered, launch_observers  # noqa: PLW0603 -- tuples replaced as a whole, so readers need no lock
    registered = new
    launch_observers = tuple(each for each in registered if type(each).launched is not Observer.launched)


def add_tracer(by: Tracer) -> None:
    """Register a tracer."""
    with _changing:
        _set_tracers((*_tracers, by))


def remove_tracer(by: Tracer) -> None:
    with _changing:
        _set_tracers(tuple(each for each in _tracers if each is not by))


def _set_tracers(by: tuple[Tracer, ...]) -> None:
    global tracer, _tracers  # noqa: PLW0603 -- as above
    _tracers = by
    tracer = _TracerGroup(by) if len(by) > 1 else by[0] if by else None


def wait(queue: Queue, tick: int) -> None:
    """Wait until the queue has reached the tick, and notify the tracer."""
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
def observing(listener: Observer) -> Iterator[None]:
    add(listener)
    try:
        yield
    finally:
        remove(listener)


def after_fork_in_child() -> None:
    """Remove all observers and tracers in a forked child, which has none of its parent's devices."""
    global tracer, _tracers, _changing  # noqa: PLW0603 -- as above
    _changing = threading.RLock()  # another thread of the parent may have held the old lock
    tracer, _tracers = None, ()
    _set_listeners(())


def notify_allocated(storage: Storage, queue: int) -> None:
    """Notify observers of an allocation and, when the storage is deleted, of the free."""
    if any(listener.tracks_deletions for listener in registered):
        finalize(storage, _freed, storage.opened, storage.address).atexit = False
    for listener in registered:
        listener.allocated(storage, queue)


def _freed(opened: OpenDevice, address: int) -> None:
    for listener in registered:
        listener.freed(opened, address)


def notify_event_created(event: Event, opened: OpenDevice) -> None:
    """Notify observers of a new event and, when it is deleted, of the deletion."""
    if any(listener.tracks_deletions for listener in registered):
        finalize(event, _deleted, opened, id(event)).atexit = False
    for listener in registered:
        listener.event_created(event)


def _deleted(opened: OpenDevice, number: int) -> None:
    for listener in registered:
        listener.event_deleted(opened, number)
