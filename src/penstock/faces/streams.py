"""A stream that is current for a while, on a device of one kind."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar

from penstock.backends.cuda_errors import INVALID_HANDLE, accelerator_error
from penstock.device import Device
from penstock.errors import PenstockError
from penstock.faces.kind import Kind
from penstock.runtime import current
from penstock.runtime import stream as streams
from penstock.runtime.open_device import OpenDevice
from penstock.runtime.stream import Stream
from penstock.spi import Queue

__all__ = ["StreamContext", "queue_of"]


class StreamContext:
    """The stream is current inside; afterwards what was, on its device and on the one before. None changes nothing.

    It keeps what was before, so it must not be entered again before it is left. Making one initialises the kind.
    """

    kind: ClassVar[Kind]

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.idx = self.kind.current_index()
        self.src_prev_stream: Stream | None = None
        self.dst_prev_stream: Stream | None = None
        self._before: Device | None = None  # what was current of another kind

    @staticmethod
    def own(stream: Stream) -> Stream:
        """The stream as the kind's face shows it."""
        return stream

    def __enter__(self) -> None:
        new = self.stream
        if new is None:
            return
        if not isinstance(new, Stream):
            raise TypeError(f"expected a Stream, not {type(new).__name__}")
        before = current.current_device()
        self._before = before if before.kind != self.kind.name else None
        self.src_prev_stream = self.own(streams.stream_of(self.kind.opened()))
        if self.src_prev_stream.opened is not new.opened:
            self.dst_prev_stream = self.own(streams.stream_of(new.opened))
        streams.set_stream(new)

    def __exit__(
        self,
        type: type[BaseException] | None,  # noqa: A002 -- PyTorch's name
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.src_prev_stream is None:
            return
        for stream in (self.dst_prev_stream, self.src_prev_stream):
            if stream is not None and not stream.opened.gone:
                current.set_stream_on(stream)
        if self._before is not None:
            current.make_current(self._before)


def queue_of(opened: OpenDevice, stream_id: int) -> Queue:
    """The device's queue by PyTorch's number or the driver's handle. DeviceError where there is none."""
    if not isinstance(stream_id, int):
        raise PenstockError(f"a stream's id or handle is an int, not {type(stream_id).__name__}")
    if stream_id == 0:
        return opened.default_queue
    pool = opened.stream_pool
    if pool is not None and pool.numbers(stream_id):
        try:
            return pool.with_id(stream_id)
        except ValueError as error:
            raise PenstockError(f"Unrecognized stream {stream_id} on device {opened.device}: {error}") from None
    found = opened.queues.get(stream_id)
    if found is None:
        note = f"{opened.device} has no stream {stream_id:#x}."
        raise accelerator_error(INVALID_HANDLE, kind=opened.device.kind, device=str(opened.device), note=note)
    return found
