"""Events: a point on a stream that others can ask about, wait for and time."""

from __future__ import annotations

from typing import Any, Self, TypeGuard

from forebay.backends.common.cuda_errors import CAPTURED_EVENT
from forebay.device_spec import Device
from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import ipc_event
from forebay.runtime.streams.ipc_event import SharedPoint
from forebay.runtime.streams.stream import Stream, current_stream, wait_for
from forebay.spi import Mark, Queue, Timing

__all__ = ["Event"]


def _times(queue: Queue) -> TypeGuard[Timing]:
    """Whether it is a Timing; to ask only that takes microseconds, and mostly its class can tell."""
    return issubclass(queue.__class__, Timing) or isinstance(queue, Timing)


class Event:
    """A point on a stream, set by `record`. Belongs to the device of its first record, or to `device` if that is given.

    `enable_timing` keeps the moment, for `elapsed_time`; `interprocess` lets other processes have the event, by its
    `ipc_handle`; `blocking` changes nothing, as no wait here spins for long. (`torch.Event`)

    >>> import forebay
    >>> start, end = forebay.Event(enable_timing=True), forebay.Event(enable_timing=True)
    >>> start.record(); end.record(); end.synchronize()
    >>> start.elapsed_time(end) >= 0
    True
    """

    def __init__(
        self,
        device: Device | str | int | None = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self.device = None if device is None else current.resolve(device)
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self.shared: SharedPoint | None = None  # the runtime's own
        self._stream: Stream | None = None
        self._opened: OpenDevice | None = None
        self._tick = 0
        self._mark: Mark | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Set the point after all work so far on the stream (the current one, if none is given), or move it there.

        Raises RuntimeError when the stream is of another device than the event, Unsupported when timing was asked for
        and the backend has none.
        """
        self.record_on(current_stream(self.device) if stream is None else stream)

    def record_on(self, stream: Stream) -> None:
        if not isinstance(stream, Stream):
            raise TypeError(f"expected a Stream, not {type(stream).__name__}")
        opened = stream.opened
        if self._opened is not opened:
            if self.device not in {None, stream.device}:
                raise RuntimeError(
                    f"Event device {self.device} does not match recording stream's device {stream.device}."
                )
            self._opened, self.device = opened, stream.device
            if observers.listeners:
                observers.created(self, opened)
        queue = stream.queue
        if self.interprocess:
            if self.shared is None:
                self.shared = ipc_event.shared_point(self, opened)
            self.shared.record(queue)  # first, so that it is reached when the tick is
        if not self.enable_timing:
            self._tick = queue.signal()
        elif _times(queue):
            self._mark = queue.mark()
            self._tick = self._mark.tick
        else:
            raise Unsupported(f"{stream.device.kind} cannot time events", ability="Timing")
        self._stream = stream
        for listener in observers.listeners:
            listener.event_recorded(self, stream)

    @property
    def recorded(self) -> bool:
        return self._stream is not None or self.shared is not None

    @property
    def event_id(self) -> int:
        """What tells it from others in this process; 0 while it was not recorded."""
        return id(self) if self.recorded else 0

    def query(self) -> bool:
        """Whether the point is reached; True for an event never recorded. Never waits.

        DeviceError where a capture minds that, or for a point in a graph, which each replay reaches anew.
        """
        if self.shared is not None and (word := self.shared.elsewhere()):
            return self.shared.mark.reached(word)
        if self._stream is None:
            return True
        if capture_state.under_way:
            capture_state.forbid(self._stream.device.kind, "query")
        if self._tick < 0:
            raise capture_state.refusal(self._stream.device.kind, CAPTURED_EVENT, "query")
        done = self._stream.queue.reached() >= self._tick
        for listener in observers.listeners:
            listener.event_queried(self, done)
        return done

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of the stream (the current one, if none is given) waits for the point; the host does not."""
        if self.shared is not None and (word := self.shared.elsewhere()):
            self.shared.wait_on(current_stream(self.device) if stream is None else stream, word)
            return
        if self._stream is None:
            return
        stream = current_stream() if stream is None else stream
        if not isinstance(stream, Stream):
            raise TypeError(f"expected a Stream, not {type(stream).__name__}")
        if stream.queue is not self._stream.queue:
            wait_for(stream, self._stream, self._tick)
        for listener in observers.listeners:
            listener.event_waited(self, stream)

    def synchronize(self) -> None:
        """Wait for the point; a failure of the stream's work, be it of later work, is raised here, once."""
        if self.shared is not None and (word := self.shared.elsewhere()):
            self.shared.mark.wait(word)
        elif self._stream is not None:
            self._stream.opened.wait(self._stream.queue, self._tick)
            for listener in observers.listeners:
                listener.event_synchronized(self)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this point to the other's; both must be reached. Never waits."""
        if not isinstance(other, Event):
            raise TypeError(f"expected an Event, not {type(other).__name__}")
        if not (self.enable_timing and other.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._stream is None or self._mark is None or other._mark is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        ours, theirs = self._stream.device.kind, other.device.kind if other.device else ""
        if ours != theirs:
            raise RuntimeError(f"Event device type {ours.upper()} does not match other's device type {theirs.upper()}.")
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        queue = self._stream.queue
        if not _times(queue):
            raise Unsupported(f"{self.device} cannot time events", ability="Timing")
        return queue.elapsed_ms(self._mark, other._mark)

    def ipc_handle(self) -> bytes:
        """64 bytes, by which another process has the event, too, as long as it lives here.

        Both record it, and wait for whichever record was the last. Raises DeviceError unless it was made with
        `interprocess=True` and without timing. (`torch.cuda.Event.ipc_handle`)
        """
        return ipc_event.export_event(self)

    @classmethod
    def from_ipc_handle(cls, device: Device | str | int, ipc_handle: bytes) -> Self:
        """The event of another process. Opens the device. (`torch.cuda.Event.from_ipc_handle`)

        DeviceError for the handle of this very process, and when the other one is gone, or has dropped the event.
        """
        return ipc_event.import_event(cls, device, ipc_handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_ipc_handle, (type(self), self.ipc_handle(), self.device)

    def __repr__(self) -> str:
        state = "not recorded" if self._stream is None else f"on {self._stream!r}"
        return f"<forebay.Event {state}>"


def _from_ipc_handle(cls: type[Event], handle: bytes, device: Device) -> Event:
    return cls.from_ipc_handle(device, handle)
