"""Interprocess events: export and import by handle, and the state shared between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from forebay._base.device_spec import DeviceLike
from forebay.backends.common.cuda_errors import INVALID_VALUE, accelerator_error
from forebay.backends.common.shared_file import HANDLE_BYTES
from forebay.errors import ForebayError
from forebay.runtime.base import capture_state, observers
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.devices.sharing_port import can_share, sharing_port
from forebay.runtime.streams.stream import Stream
from forebay.spi import Queue, SharedMark

if TYPE_CHECKING:
    from forebay.runtime.streams.event import Event

__all__ = ["IpcEventState", "export_event", "import_event", "new_ipc_state"]

_AnyEvent = TypeVar("_AnyEvent", bound="Event")


class IpcEventState:
    """The state of an interprocess event that all its processes share, and the last record made by this process."""

    def __init__(self, opened: OpenDevice, mark: SharedMark) -> None:
        self.opened = opened
        self.mark = mark
        self._own_word = 0  # identifies the last record made by this process

    def record(self, queue: Queue) -> None:
        capture_state.forbid_on(queue, self.opened.device.kind, "record")
        with self.opened.keep_alive(queue, self.mark):
            self._own_word = self.mark.record(queue)

    def foreign_word(self) -> int:
        """Return the word of the last record if another process made it, else 0."""
        word = self.mark.last()
        return 0 if word == self._own_word else word

    def wait_on(self, stream: Stream, word: int) -> None:
        """Make the stream wait for the record. If its device has no shared events, the host waits instead."""
        if not can_share(type(stream.opened.port)):
            self.mark.wait(word)
            return
        capture_state.forbid_on(stream.queue, stream.opened.device.kind, "wait")
        with stream.opened.keep_alive(stream.queue, self.mark):
            tracer = observers.tracer
            begun = tracer.queueing(stream.queue) if tracer else None
            self.mark.wait_for(stream.queue, word)
            if tracer:
                tracer.queued(stream.queue, begun, "wait", "wait for another process")


def new_ipc_state(event: Event, opened: OpenDevice) -> IpcEventState:
    """Return new shared state. Raises CUDA's "invalid argument" for an event with timing or not interprocess."""
    if not event.interprocess or event.enable_timing:
        note = "An interprocess event must be created with interprocess=True and without enable_timing."
        device = opened.device
        raise accelerator_error(INVALID_VALUE, kind=device.kind, call="ipc_handle", device=str(device), note=note)
    return IpcEventState(opened, sharing_port(opened).make_mark())


def export_event(event: Event) -> bytes:
    """Return the 64-byte handle by which other processes open the event while it exists here.

    An event that was never recorded is bound to the current device, which is opened.
    """
    if event.shared is None:
        opened = current.opened_for(event.device)
        event.shared = new_ipc_state(event, opened)
        event.bind(opened.device)
    return event.shared.mark.handle


def import_event(cls: type[_AnyEvent], device: DeviceLike, handle: bytes) -> _AnyEvent:
    """Return another process's event, bound to the device. Opens the device.

    Raises DeviceError if the handle is invalid or of this process, or if the owner exited or released the event.
    """
    if not isinstance(handle, bytes | bytearray | memoryview | str):
        name = type(handle).__name__
        raise TypeError(f"from_ipc_handle(): argument 'ipc_handle' (position 2) must be str, not {name}")
    if isinstance(handle, str) or len(handle) != HANDLE_BYTES:
        size = len(handle) if hasattr(handle, "__len__") else 0
        raise ForebayError(f"cudaIpcEventHandle_t expects byte-like object of size {HANDLE_BYTES}, but got {size}")
    opened = current.opened_for(device)
    event = cls(interprocess=True)
    event.shared = IpcEventState(opened, sharing_port(opened).open_mark(bytes(handle)))
    event.bind(opened.device)
    return event
