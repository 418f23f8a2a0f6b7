"""Streams: each one submits to an in-order queue of its device. Work on different streams is unordered."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self, TypeVar

from forebay._base.device_spec import Device, DeviceLike
from forebay.backends.common._disposal import Disposable
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.torch_types import device_type as device_type_number
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import sync_debug
from forebay.runtime.streams.stream_ids import queue_of_numbers
from forebay.spi import Queue

if TYPE_CHECKING:
    from forebay.runtime.streams.event import Event

__all__ = [
    "Stream",
    "cast_to_face",
    "current_stream",
    "current_stream_for",
    "default_stream",
    "default_stream_for",
    "from_queue",
    "set_stream",
    "synchronize",
    "wait_for",
]


def _read_only(name: str) -> Callable[[object, object], NoReturn]:
    def fail(stream: object, value: object) -> NoReturn:  # noqa: ARG001 -- the parameters of a setter
        raise AttributeError(f"attribute {name!r} of 'forebay.Stream' objects is not writable")

    return fail


class _Loan(Disposable):
    """A queue that a stream has to itself, and that a new stream gets once this one is deleted."""

    __slots__ = ("_opened", "_priority", "_queue")

    def __init__(self, opened: OpenDevice, queue: Queue, priority: int) -> None:
        self._opened, self._priority = opened, priority
        self._queue = [queue]  # empty once returned

    def _dispose(self) -> None:
        if hasattr(self, "_queue") and not self._opened.unusable:
            self._opened.return_queue(self._queue, self._priority)


class Stream:
    """An in-order queue of work on one device.

    Creating a stream opens the device. The queue's thread starts with the first work. As a context manager, the stream
    becomes this thread's current stream, and its device the current device.

    As `torch.Stream`.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    priority : int, optional
        A scheduling hint; a lower number is more urgent. 0 by default.
    stream_id, device_index, device_type : int, optional
        PyTorch's numbers of an existing stream, instead of the others. All three are required.

    Raises
    ------
    TypeError
        If an argument has another type.
    DeviceError
        If the device does not exist.

    Examples
    --------
    >>> import forebay
    >>> stream = forebay.Stream("cpu")
    >>> with stream:
    ...     ones = forebay.full((4,), 1.0)
    >>> stream.synchronize()
    >>> ones.numpy()
    array([1., 1., 1., 1.], dtype=float32)
    """

    opened: OpenDevice
    handle: int
    _queue: Queue
    _priority: int

    event_class: ClassVar[type[Event]]  # set by forebay._wiring: the module of Event imports this one

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
    ) -> None:
        if not (stream_id is device_index is device_type is None):
            self.bind(*queue_of_numbers(stream_id, device_index, device_type), 0)
            return
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"Stream(): argument 'priority' must be int, not {type(priority).__name__}")
        self.borrow(current.opened_for(device), priority)

    def borrow(self, opened: OpenDevice, priority: int) -> None:
        """Attach this object to an unused queue, or to the next one of the device's pool. Internal to the runtime.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        priority : int
            The priority of the queue.
        """
        pool = opened.stream_pool
        if pool is None:
            self.bind(opened, opened.borrow_queue(priority), priority)
            self._loan = _Loan(opened, self._queue, priority)
            return
        self.opened, self._priority = opened, priority  # as `bind` does, without a call
        queue: Queue = pool.next_queue(priority)
        self._queue = queue
        self.handle = queue.handle

    def bind(self, opened: OpenDevice, queue: Queue, priority: int) -> None:
        """Attach this object to an existing queue. Internal to the runtime.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        queue : Queue
            A queue of the device.
        priority : int
            The priority to report.
        """
        self.opened = opened  # internal to the runtime, like `queue`
        self._queue = queue
        self.handle = queue.handle  # unique on the device; 0 for the default stream
        self._priority = priority

    if TYPE_CHECKING:
        device: Device
        priority: int
    else:  # not functions: most calls read the device
        device = property(attrgetter("opened.device"), _read_only("device"), doc="The device.")
        priority = property(attrgetter("_priority"), _read_only("priority"), doc="A lower number is more urgent.")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    @property
    def queue(self) -> Queue:
        """The queue that receives this stream's work.

        Raises
        ------
        Forked
            In a child of the process that opened the device.
        WrongState
            If the device's emulation has ended.
        """
        if self.opened.unusable:
            self.opened.check()
        return self._queue

    @property
    def stream_id(self) -> int:
        """PyTorch's stream id on devices with a stream pool, else the handle; unique on the device."""
        pool = self.opened.stream_pool
        return self.handle if pool is None else pool.stream_id_of(self.handle)

    @property
    def device_index(self) -> int:
        """The index of the stream's device."""
        return self.device.index or 0

    @property
    def device_type(self) -> int:
        """PyTorch's number for the kind of the stream's device."""
        return device_type_number(self.opened.device.kind)

    @property
    def native_handle(self) -> int:
        """The driver's handle; 0 for the default stream."""
        return self.handle

    def query(self) -> bool:
        """Return True if all queued work has completed, False while work is pending.

        Does not block.

        Raises
        ------
        DeviceError
            With code 900 if an active graph capture forbids the query.
        """
        if capture_state.active:
            capture_state.forbid(self.opened.device.kind, "query")
        return self.queue.idle()

    @property
    def capture(self) -> capture_state.Capture | None:
        """The active capture that records this stream's work, or None."""
        return capture_state.capture_of(self.queue) if capture_state.active else None

    def is_capturing(self) -> bool:
        """Return True if a graph capture records this stream's work."""
        return self.capture is not None

    def synchronize(self) -> None:
        """Wait until all queued work has completed.

        Raises
        ------
        DeviceError
            If that work failed; each failure is raised once. With code 900 if an active graph capture forbids waiting.
        """
        opened = self.opened
        if opened.unusable:
            opened.check()
        if sync_debug.mode:
            sync_debug.check_wait(opened)
        opened.wait(self._queue)
        if observers.registered:
            for listener in observers.registered:
                listener.stream_synchronized(self)

    def wait_event(self, event: Event) -> None:
        """Make all future work on this stream wait for an event, without blocking the host.

        Parameters
        ----------
        event : Event
            The event to wait for. An event that was never recorded is ignored.
        """
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Make all future work on this stream wait for all work queued on another stream so far.

        Does not block the host, unless the streams' devices are of different kinds.

        Parameters
        ----------
        other : Stream
            The stream to wait for.
        """
        if other.queue is not self.queue:
            wait_for(self, other, other._queue.signal())
            for listener in observers.registered:
                listener.stream_waited(self, other)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event on this stream.

        Parameters
        ----------
        event : Event, optional
            The event to record; a new one by default.
        """
        if event is None:
            event = self.event_class(device=self.device)
        elif not hasattr(event, "record"):
            raise RuntimeError("expected event to be a forebay.Event object")
        event.record(self)
        return event

    def __enter__(self) -> Self:
        self.opened.check()
        current.push_stream(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current.pop_stream(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._queue is self._queue

    def __hash__(self) -> int:
        return hash((self.device, self._queue.handle))

    def __repr__(self) -> str:
        return (
            f"forebay.Stream device_type={self.opened.device.kind}, device_index={self.device_index}, "
            f"stream_id={self.stream_id}"
        )


_AnyStream = TypeVar("_AnyStream", bound=Stream)


def from_queue(stream_class: type[_AnyStream], opened: OpenDevice, queue: Queue, priority: int = 0) -> _AnyStream:
    """Return a stream object for an existing queue. Objects for the same queue are equal."""
    stream = stream_class.__new__(stream_class)
    stream.bind(opened, queue, priority)
    return stream


def cast_to_face(stream_class: type[_AnyStream], stream: Stream) -> _AnyStream:
    """Return the stream as an instance of a face's class, and cache it wherever this thread stores the stream."""
    if isinstance(stream, stream_class):
        return stream
    converted = from_queue(stream_class, stream.opened, stream.queue, stream.priority)
    state, opened = current.local.state, stream.opened
    if state.streams.get(opened) is stream:
        state.streams[opened] = converted
    if opened.default_stream is stream:
        opened.default_stream = converted
    if state.stream is stream:
        state.stream = converted
    return converted


def wait_for(stream: Stream, other: Stream, tick: int) -> None:
    """Make the stream's future work wait until the other stream's queue reaches the tick."""
    opened = stream.opened
    if opened.unusable:
        opened.check()
    queue, awaited = stream._queue, other._queue  # noqa: SLF001 -- this module's class
    if queue is awaited:
        return
    if opened.kind == other.opened.kind:
        if (tracer := observers.tracer) is None:
            queue.wait_for(awaited, tick)
        else:
            begun = tracer.queueing(queue)
            queue.wait_for(awaited, tick)
            tracer.queued(queue, begun, "wait", "wait", 0, awaited)
    else:
        other.opened.wait(other.queue, tick)  # queues of different vendors cannot wait for each other: the host waits


def default_stream(device: DeviceLike | None = None) -> Stream:
    """Return the default stream of a device.

    As `torch.cuda.default_stream`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    Stream
        The stream that is current in each thread until another is set.

    Raises
    ------
    ForebayError
        If the device does not exist.

    Examples
    --------
    >>> import forebay
    >>> forebay.default_stream("cpu").handle
    0
    """
    return default_stream_for(current.opened_for(device))


def default_stream_for(opened: OpenDevice) -> Stream:
    """Return the device's default stream."""
    if opened.default_stream is None:
        opened.default_stream = from_queue(Stream, opened, opened.default_queue)
    return opened.default_stream


def current_stream_for(opened: OpenDevice) -> Stream:
    """Return this thread's current stream on the device. Raises Forked or WrongState if the device is unusable."""
    if opened.unusable:
        opened.check()
    return current.local.state.streams.get(opened) or opened.default_stream or default_stream_for(opened)


def current_stream(device: DeviceLike | None = None) -> Stream:
    """Return this thread's current stream on a device.

    As `torch.cuda.current_stream`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    Stream
        The stream that receives this thread's work on the device.

    Raises
    ------
    ForebayError
        If the device does not exist.

    Examples
    --------
    >>> import forebay
    >>> with forebay.Stream("cpu") as stream:
    ...     forebay.current_stream() == stream
    True
    """
    return current.stream_on(device, default_stream_for)


def set_stream(stream: Stream) -> None:
    """Make a stream this thread's current stream, and its device the current device.

    As `torch.cuda.set_stream`.

    Parameters
    ----------
    stream : Stream
        The stream to make current.

    Raises
    ------
    TypeError
        If `stream` is not a Stream.
    Forked
        In a child of the process that opened the device.
    WrongState
        If the device's emulation has ended.
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"expected a Stream, not {type(stream).__name__}")
    stream.opened.check()
    current.set_stream_on(stream)


def synchronize(device: DeviceLike | None = None) -> None:
    """Wait until all work on all streams of a device has completed.

    As `torch.cuda.synchronize`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    DeviceError
        If that work failed; each failure is raised once. With code 900 if an active graph capture forbids waiting.
    ForebayError
        If the device does not exist.
    """
    current.opened_for(device).synchronize()
