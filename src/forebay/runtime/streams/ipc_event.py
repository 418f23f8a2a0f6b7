"""Events that several processes have."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from forebay.backends.common.cuda_errors import INVALID_VALUE, accelerator_error
from forebay.backends.common.shared_file import HANDLE_BYTES
from forebay.device_spec import Device
from forebay.errors import ForebayError
from forebay.runtime.base import capture_state, observers
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.ipc_memory import can_share, sharing_port
from forebay.runtime.streams.stream import Stream
from forebay.spi import Queue, SharedMark

if TYPE_CHECKING:
    from forebay.runtime.streams.event import Event

__all__ = ["SharedPoint", "export_event", "import_event", "shared_point"]

_AnyEvent = TypeVar("_AnyEvent", bound="Event")


class SharedPoint:
    """What an event of several processes has beside what one of this process has: the point of all of them."""

    def __init__(self, opened: OpenDevice, mark: SharedMark) -> None:
        self.opened = opened
        self.mark = mark
        self._mine = 0  # the word of the last record here

    def record(self, queue: Queue) -> None:
        capture_state.forbid_on(queue, self.opened.device.kind, "record")
        with self.opened.keeping(queue, self.mark):
            self._mine = self.mark.record(queue)

    def elsewhere(self) -> int:
        """The word of the last record, if that was another process's; else 0."""
        word = self.mark.last()
        return 0 if word == self._mine else word

    def wait_on(self, stream: Stream, word: int) -> None:
        """The stream waits; where its device has no such events, the host does."""
        if not can_share(type(stream.opened.port)):
            self.mark.wait(word)
            return
        capture_state.forbid_on(stream.queue, stream.device.kind, "wait")
        with stream.opened.keeping(stream.queue, self.mark):
            tracer = observers.tracer
            begun = tracer.queueing(stream.queue) if tracer else None
            self.mark.wait_for(stream.queue, word)
            if tracer:
                tracer.queued(stream.queue, begun, "wait", "wait for another process")


def shared_point(event: Event, opened: OpenDevice) -> SharedPoint:
    """DeviceError for an event that cannot be one: "invalid argument", which is CUDA's."""
    if not event.interprocess or event.enable_timing:
        note = "An event that other processes can wait for is made with interprocess=True and without enable_timing."
        where = opened.device
        raise accelerator_error(INVALID_VALUE, kind=where.kind, call="ipc_handle", device=str(where), note=note)
    return SharedPoint(opened, sharing_port(opened).make_mark())


def export_event(event: Event) -> bytes:
    """64 bytes, by which other processes open the event while it lives here.

    One that was never recorded becomes the current device's. Opens that device.
    """
    if event.shared is None:
        opened = current.opened_for(event.device)
        event.shared = shared_point(event, opened)
        event.device = opened.device
    return event.shared.mark.handle


def import_event(cls: type[_AnyEvent], device: Device | str | int, handle: bytes) -> _AnyEvent:
    """The event of another process, as one of that device. Opens the device.

    DeviceError for what is no handle, for one of this very process, and when its process is gone or has dropped it.
    """
    if not isinstance(handle, bytes | bytearray | memoryview) or len(handle) != HANDLE_BYTES:
        size = len(handle) if hasattr(handle, "__len__") else 0
        raise ForebayError(f"cudaIpcEventHandle_t expects byte-like object of size {HANDLE_BYTES}, but got {size}")
    opened = current.opened_for(device)
    event = cls(interprocess=True)
    event.shared = SharedPoint(opened, sharing_port(opened).open_mark(bytes(handle)))
    event.device = opened.device
    return event
