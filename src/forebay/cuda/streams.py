"""Streams and events of CUDA devices, with PyTorch's names for what they are."""

from __future__ import annotations

import ctypes
import operator
from types import TracebackType
from typing import Any, Self

from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError
from forebay.faces.streams import StreamContext as StreamContextOfKind
from forebay.faces.streams import current_on, queue_of
from forebay.runtime.devices import current
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.devices.stream_pool import MOST_URGENT
from forebay.runtime.streams import event as events
from forebay.runtime.streams import stream as streams

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "of_cuda",
    "set_stream",
    "set_stream_by_id",
    "stream",
]

_started = CUDA.initialisation
_NAMED_BY = {"stream_id", "device_index", "device_type", "stream_ptr"}


class Stream(streams.Stream):
    """One of the device's 32 streams of the priority, the next in turn: the 33rd is the first again.

    `priority` is between 0 and -3, the most urgent; what lies outside counts as the nearest. Initialises CUDA and opens
    the device. An existing stream is named by `stream_id`, `device_index` and `device_type`. (`torch.cuda.Stream`)
    """

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        if kwargs and (unknown := kwargs.keys() - _NAMED_BY):
            raise TypeError(f"{min(unknown)!r} is an invalid keyword argument for this function")
        if "stream_ptr" in kwargs:
            kwargs = {"stream_id": kwargs["stream_ptr"], "device_index": CUDA.index(device, optional=True)}
        if "stream_id" in kwargs:
            opened = CUDA.opened(kwargs.get("device_index", device))
            self.stand_on(opened, queue_of(opened, kwargs["stream_id"]), 0)
            return
        index = None if device is None else CUDA.index(device, optional=True)
        opened = CUDA.opened(None if index is None or index < 0 else index)
        priority = max(MOST_URGENT, min(operator.index(priority), 0))
        self.stand_on(opened, opened.borrow_queue(priority), priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the most urgent priority."""
        return 0, MOST_URGENT

    @property
    def cuda_stream(self) -> int:
        """The driver's handle."""
        return self.handle

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The CUDA stream protocol: its version, and the handle."""
        return 0, self.handle

    def wait_stream(self, stream: streams.Stream) -> None:
        """Work from here on waits for all work so far on the other stream; the host does not."""
        super().wait_stream(stream)

    def record_event(self, event: events.Event | None = None) -> events.Event:
        """Record the event here, or a new one; gives it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, o: object) -> bool:
        return isinstance(o, streams.Stream) and o.opened is self.opened and o.stream_id == self.stream_id

    __hash__ = streams.Stream.__hash__  # equal to a stream of no kind's, where both are the same

    def __repr__(self) -> str:
        return f"<forebay.cuda.Stream device={self.device} cuda_stream={self.handle:#x}>"


class ExternalStream(Stream):
    """A stream that others made, by its handle: they keep it, and see to it that it outlives this.

    DeviceError where the device has no such stream. (`torch.cuda.ExternalStream`)
    """

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        opened = CUDA.opened(kwargs.get("device_index", device))
        self.stand_on(opened, queue_of(opened, stream_ptr), 0)

    @property
    def stream_id(self) -> int:
        return self.handle


def of_cuda(stream: streams.Stream) -> Stream:
    """The stream as one of this kind."""
    return streams.as_kind(Stream, stream)


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work on the device goes to. Initialises CUDA. (`torch.cuda.current_stream`)"""
    if device is None:
        known = local.here.stream
        if known.__class__ is Stream and not known.opened.gone:
            return known
    return current_on(CUDA.opened_for_stream(device), Stream)


def default_stream(device: Any = None) -> Stream:
    """The stream that the device has from the start. Initialises CUDA. (`torch.cuda.default_stream`)"""
    return of_cuda(streams.default_of(CUDA.opened_for_stream(device)))


def set_stream(stream: streams.Stream | None) -> None:
    """Make the stream this thread's current one, and its device the current device; None does nothing."""
    if stream is not None:
        streams.set_stream(stream)


def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """The same by PyTorch's numbers. (`torch.cuda._set_stream_by_id`)"""
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """The stream of a handle, which its maker keeps. (`torch.cuda.get_stream_from_external`)"""
    return ExternalStream(data_ptr, device)


class StreamContext(StreamContextOfKind):
    """The stream is current inside; afterwards what was, on its device and on the one before. None changes nothing.

    It keeps what was before, so it must not be entered again before it is left. (`torch.cuda.StreamContext`)
    """

    kind = CUDA
    stream_class = Stream

    def __init__(self, stream: streams.Stream | None) -> None:
        self.stream = stream
        if not _started.done:
            _started.ensure()
        self.idx = local.here.indices.get("cuda", 0)
        self.src_prev_stream: streams.Stream | None = None
        self.dst_prev_stream: streams.Stream | None = None
        self._before = None

    @staticmethod
    def own(stream: streams.Stream) -> Stream:
        return of_cuda(stream)


def stream(stream: streams.Stream | None) -> StreamContext:
    """The stream is current inside. (`torch.cuda.stream`)

    >>> import forebay, forebay.cuda as cuda
    >>> with forebay.emulate("cuda"):
    ...     s = cuda.Stream()
    ...     with cuda.stream(s):
    ...         cuda.current_stream() == s
    True
    """
    return StreamContext(stream)


class Event(events.Event):
    """A point on a stream. `enable_timing` keeps the moment, `interprocess` lets other processes wait for it.

    `blocking` and `external` are kept and change nothing here: a wait never spins for long, and captures see events
    either way. Belongs to the device of its first record. (`torch.cuda.Event`)
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
        self.external = external

    def record(self, stream: streams.Stream | None = None) -> None:
        """Set the point after all work so far on the stream (the current one, if none is given), or move it there.

        Raises RuntimeError when the stream is of another device than the event.
        """
        self.record_on(current_stream() if stream is None else stream)

    def wait(self, stream: streams.Stream | None = None) -> None:
        """Later work of the stream (the current one, if none is given) waits for the point; the host does not."""
        super().wait(current_stream() if stream is None and self.recorded else stream)

    def ipc_handle(self) -> bytes:
        """64 bytes, by which another process has the event, too. Never recorded, it becomes the current device's."""
        if self.device is None:
            self.device = CUDA.opened(None).device
        return super().ipc_handle()

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Self:
        """The event of another process, as one of that device. Initialises CUDA and opens the device."""
        return super().from_ipc_handle(CUDA.opened(CUDA.index(device, optional=True)).device, handle)

    def query(self) -> bool:
        """Whether the point is reached; True for an event never recorded. Never waits."""
        return super().query()

    def synchronize(self) -> None:
        """Wait for the point; a failure of the stream's work is raised here, once."""
        super().synchronize()

    @property
    def cuda_event(self) -> int:
        """What tells it from others in this process; 0 while it was not recorded."""
        return self.event_id

    def elapsed_time(self, end_event: events.Event) -> float:
        """Milliseconds from this point to the other's; both must be reached. Never waits."""
        return super().elapsed_time(end_event)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        return f"<forebay.cuda.Event {self.cuda_event:#x}>" if self.recorded else "<forebay.cuda.Event uninitialized>"
