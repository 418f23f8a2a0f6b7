"""A stream that is current for a while, on a device of one kind."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, TypeVar

from forebay.backends.common.cuda_errors import INVALID_HANDLE, accelerator_error
from forebay.device_spec import Device
from forebay.errors import ForebayError
from forebay.faces.kind import Kind
from forebay.runtime.devices import current
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import stream as streams
from forebay.runtime.streams.stream import Stream
from forebay.spi import Queue

__all__ = ["StreamContext", "current_on", "queue_of"]

_Shown = TypeVar("_Shown", bound=Stream)


class StreamContext:
    """The stream is current inside; afterwards what was, on its device and on the one before. None changes nothing.

    It keeps what was before, so it must not be entered again before it is left. Making one initialises the kind.
    """

    kind: ClassVar[Kind]
    stream_class: ClassVar[type[Stream]] = Stream  # of what the kind's face shows

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.idx = self.kind.current_index()
        self.src_prev_stream: Stream | None = None
        self.dst_prev_stream: Stream | None = None
        self._before: Device | None = None  # what was current of another kind

    @staticmethod
    def own(stream: Stream) -> Stream:
        """The stream as one of `stream_class`."""
        return stream

    def __enter__(self) -> None:
        new, state = self.stream, local.here
        if new is None:
            return
        try:
            opened = new.opened
        except AttributeError:
            raise TypeError(f"expected a Stream, not {type(new).__name__}") from None
        before = state.stream
        if before.__class__ is self.stream_class and state.opened is opened and not opened.gone:
            # On the same device, which takes a quarter of the time.
            self.src_prev_stream, self.dst_prev_stream, self._before = before, None, None
            state.streams[opened] = state.stream = new
            return
        place = current.current_device()
        self._before = place if place.kind != self.kind.name else None
        self.src_prev_stream = self.own(streams.stream_of(self.kind.opened()))
        if self.src_prev_stream.opened is not opened:
            self.dst_prev_stream = self.own(streams.stream_of(opened))
        streams.set_stream(new)

    def __exit__(
        self,
        type: type[BaseException] | None,  # noqa: A002 -- PyTorch's name
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        new, before, state = self.stream, self.src_prev_stream, local.here
        if new is None or before is None:
            return
        if state.opened is before.opened is new.opened:
            state.streams[before.opened] = state.stream = before
        else:
            for stream in (self.dst_prev_stream, before):
                if stream is not None and not stream.opened.gone:
                    current.set_stream_on(stream)
        if self._before is not None:
            current.make_current(self._before)


def current_on(opened: OpenDevice, shown: type[_Shown]) -> _Shown:
    """The stream that this thread's work on the device goes to, as the face shows it; at hand for who asks next."""
    found, state = streams.as_kind(shown, streams.stream_of(opened)), local.here
    if state.opened is opened:
        state.stream = found
    return found


def queue_of(opened: OpenDevice, stream_id: int) -> Queue:
    """The device's queue by PyTorch's number or the driver's handle. DeviceError where there is none."""
    if not isinstance(stream_id, int):
        raise ForebayError(f"a stream's id or handle is an int, not {type(stream_id).__name__}")
    if stream_id == 0:
        return opened.default_queue
    pool = opened.stream_pool
    if pool is not None and pool.numbers(stream_id):
        try:
            return pool.with_id(stream_id)
        except ValueError as error:
            raise ForebayError(f"Unrecognized stream {stream_id} on device {opened.device}: {error}") from None
    found = opened.queues.get(stream_id)
    if found is None:
        note = f"{opened.device} has no stream {stream_id:#x}."
        raise accelerator_error(INVALID_HANDLE, kind=opened.device.kind, device=str(opened.device), note=note)
    return found
