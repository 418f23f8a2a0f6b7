"""Streams: work on one is done in order, work on two in any order. Each stands on one queue of its device."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from forebay.device_spec import Device
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.torch_types import device_type
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import sync_debug
from forebay.spi import Queue

if TYPE_CHECKING:
    from forebay.runtime.streams.event import Event

__all__ = [
    "Stream",
    "as_kind",
    "current_stream",
    "default_of",
    "default_stream",
    "set_stream",
    "standing_on",
    "stream_of",
    "synchronize",
    "wait_for",
]


class Stream:
    """A stream of the device, with a queue of its own. Opens the device; the queue's thread starts with its first work.

    As a context manager it is the current stream, and its device the current device, inside. A lower `priority` is more
    urgent; it is a hint. (`torch.Stream`)

    >>> import forebay
    >>> stream = forebay.Stream("host:0")
    >>> with stream:
    ...     ones = forebay.full((4,), 1.0)
    >>> stream.synchronize()
    >>> ones.numpy()
    array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, device: Device | str | int | None = None, *, priority: int = 0) -> None:
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority is an int, lower is more urgent; got {priority!r}")
        opened = current.opened_for(device)
        self.stand_on(opened, opened.borrow_queue(priority), priority)
        self._borrowed = True

    def stand_on(self, opened: OpenDevice, queue: Queue, priority: int) -> None:
        """For the runtime: be the stream of that queue."""
        self.opened = opened  # the runtime's own, like `queue`
        self._queue = queue
        self._borrowed = False
        self.device = opened.device
        self.handle = queue.handle  # the queue's number on its device; the default stream's is 0
        self.priority = priority

    def __del__(self) -> None:
        if getattr(self, "_borrowed", False) and not self.opened.gone:
            self.opened.return_queue(self._queue, self.priority)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__name__!r} object: it has its queue alone")

    @property
    def queue(self) -> Queue:
        """The queue to submit work to. Raises Forked in a child of the process that opened the device."""
        if self.opened.gone:
            self.opened.check()
        return self._queue

    @property
    def stream_id(self) -> int:
        """What tells it from the other streams of its device: PyTorch's number where it has one, else the handle."""
        pool = self.opened.stream_pool
        return self.handle if pool is None else pool.id_of(self.handle)

    @property
    def device_index(self) -> int:
        return self.device.index or 0

    @property
    def device_type(self) -> int:
        """PyTorch's number for the kind of its device."""
        return device_type(self.device.kind)

    @property
    def native_handle(self) -> int:
        """The driver's own handle; 0 for the default stream."""
        return self.handle

    def query(self) -> bool:
        """Whether all work so far is done. Never waits. DeviceError where a capture minds that."""
        if capture_state.under_way:
            capture_state.forbid(self.device.kind, "query")
        return self.queue.idle()

    @property
    def capture(self) -> capture_state.Capture | None:
        """What records the stream's work now, instead of its being done."""
        return capture_state.capture_of(self.queue) if capture_state.under_way else None

    def is_capturing(self) -> bool:
        """Whether its work is recorded now."""
        return self.capture is not None

    def synchronize(self) -> None:
        """Wait until all work so far is done; a failure of that work is raised here, once."""
        queue = self.queue
        if sync_debug.mode:
            sync_debug.waiting(self.opened)
        self.opened.wait(queue)
        for listener in observers.listeners:
            listener.stream_synchronized(self)

    def wait_event(self, event: Event) -> None:
        """Work from here on waits for the event; the host does not."""
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Work from here on waits for all work so far on the other stream; the host does not."""
        if other.queue is not self.queue:
            wait_for(self, other, other.queue.signal())
            for listener in observers.listeners:
                listener.stream_waited(self, other)

    def record_event(self, event: Event | None = None) -> Event:
        """Record the event here, or a new one; gives it."""
        from forebay.runtime.streams.event import Event

        event = Event(device=self.device) if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Self:
        self.opened.check()
        current.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current.leave(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._queue is self._queue

    def __hash__(self) -> int:
        return hash((self.device, self._queue.handle))

    def __repr__(self) -> str:
        return f"<forebay.Stream device={self.device} handle={self.handle}>"


_AnyStream = TypeVar("_AnyStream", bound=Stream)


def standing_on(kind: type[_AnyStream], opened: OpenDevice, queue: Queue, priority: int = 0) -> _AnyStream:
    """A stream object for a queue that is there already; objects for the same queue are equal."""
    stream = kind.__new__(kind)
    stream.stand_on(opened, queue, priority)
    return stream


def as_kind(kind: type[_AnyStream], stream: Stream) -> _AnyStream:
    """The stream as an object of a face; in its place from now on, so that the next to ask need not do that."""
    if isinstance(stream, kind):
        return stream
    made = standing_on(kind, stream.opened, stream.queue, stream.priority)
    state, opened = current.local.here, stream.opened
    if state.streams.get(opened) is stream:
        state.streams[opened] = made
    if opened.default_stream is stream:
        opened.default_stream = made
    if state.stream is stream:
        state.stream = made
    return made


def wait_for(stream: Stream, other: Stream, tick: int) -> None:
    """The stream's later work waits until the other's queue reaches the tick."""
    if stream.device.kind == other.device.kind:
        queue = stream.queue
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        queue.wait_for(other.queue, tick)
        if tracer:
            tracer.queued(queue, begun, "wait", "wait", 0, other.queue, 1)
    else:
        other.opened.wait(other.queue, tick)  # no queue can wait for another vendor's, so the host does


def default_stream(device: Device | str | int | None = None) -> Stream:
    """The stream that a device has from the start. Opens the device. (`torch.cuda.default_stream`)"""
    return default_of(current.opened_for(device))


def default_of(opened: OpenDevice) -> Stream:
    if opened.default_stream is None:
        opened.default_stream = standing_on(Stream, opened, opened.default_queue)
    return opened.default_stream


def stream_of(opened: OpenDevice) -> Stream:
    """The stream that this thread's work on the device goes to. Forked or WrongState where it cannot be used."""
    if opened.gone:
        opened.check()
    return current.here().streams.get(opened) or default_of(opened)


def current_stream(device: Device | str | int | None = None) -> Stream:
    """The stream that this thread's work on the device goes to. Opens the device. (`torch.cuda.current_stream`)"""
    return current.stream_on(device, default_of)


def set_stream(stream: Stream) -> None:
    """Make the stream this thread's current one, and its device the current device. (`torch.cuda.set_stream`)"""
    if not isinstance(stream, Stream):
        raise TypeError(f"expected a Stream, not {type(stream).__name__}")
    stream.opened.check()
    current.set_stream_on(stream)


def synchronize(device: Device | str | int | None = None) -> None:
    """Wait until all work on all streams of the device is done. Opens the device. (`torch.cuda.synchronize`)

    A failure of work that nobody heard of yet is raised here, once.
    """
    current.opened_for(device).synchronize()
