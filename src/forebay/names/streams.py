"""The stream context manager of one device kind, and its current stream."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, TypeVar

from forebay._base.device_spec import Device
from forebay.names.kind import DeviceKind
from forebay.runtime.devices import current
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import stream as streams
from forebay.runtime.streams.stream import Stream

__all__ = ["StreamContext", "current_stream_on"]

_StreamT = TypeVar("_StreamT", bound=Stream)


class StreamContext:
    """Context manager that makes a stream current; its device becomes the current device.

    Exit restores the previous stream of both devices and the previous device.

    Construction initialises the kind, even with None. The object stores the previous state, so it cannot be entered
    again before it is exited.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        On entry, if `stream` is not a stream.
    """

    kind: ClassVar[DeviceKind]
    stream_class: ClassVar[type[Stream]] = Stream  # the class that the kind's module exposes

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.idx: int = self.kind.current_index()
        self.src_prev_stream: Stream | None = None
        self.dst_prev_stream: Stream | None = None
        self._previous_device: Device | None = None  # the current device, if it is of another kind

    @staticmethod
    def as_stream_class(stream: Stream) -> Stream:
        """Return the stream as an instance of `stream_class`."""
        return stream

    def __enter__(self) -> None:
        new, state = self.stream, local.state
        if new is None or self.idx < 0:
            return
        try:
            opened = new.opened
        except AttributeError:
            raise TypeError(f"expected a Stream, not {type(new).__name__}") from None
        before = state.stream
        if before.__class__ is self.stream_class and state.opened is opened and not opened.unusable:
            # Fast path for the same device: a quarter of the time.
            self.src_prev_stream, self.dst_prev_stream, self._previous_device = before, None, None
            state.streams[opened] = state.stream = new
            return
        device = current.current_device()
        self._previous_device = device if device.kind != self.kind.name else None
        self.src_prev_stream = self.as_stream_class(streams.current_stream_for(self.kind.open_device()))
        if self.src_prev_stream.opened is not opened:
            self.dst_prev_stream = self.as_stream_class(streams.current_stream_for(opened))
        streams.set_stream(new)

    def __exit__(
        self,
        type: type[BaseException] | None,  # noqa: A002 -- PyTorch's name
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        new, before, state = self.stream, self.src_prev_stream, local.state
        if new is None or before is None:
            return
        if state.opened is before.opened is new.opened:
            state.streams[before.opened] = state.stream = before
        else:
            for stream in (self.dst_prev_stream, before):
                if stream is not None and not stream.opened.unusable:
                    current.set_stream_on(stream)
        if self._previous_device is not None:
            current.make_current(self._previous_device)


def current_stream_on(opened: OpenDevice, stream_class: type[_StreamT]) -> _StreamT:
    """Return this thread's current stream of the device as a `stream_class`, and cache it in the thread's state."""
    found, state = streams.cast_to_face(stream_class, streams.current_stream_for(opened)), local.state
    if state.opened is opened:
        state.stream = found
    return found
