"""Events: a recorded position on a stream that can be queried, waited for and timed."""

from __future__ import annotations

from functools import partial
from typing import Any, Self, TypeGuard

from forebay._base.device_spec import Device, DeviceLike
from forebay.backends.common.cuda_errors import CAPTURED_EVENT, INVALID_HANDLE, accelerator_error
from forebay.errors import Unsupported, WrongState
from forebay.runtime.base import capture_state, observers
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import ipc_event
from forebay.runtime.streams.ipc_event import IpcEventState
from forebay.runtime.streams.stream import Stream, current_stream, from_queue, wait_for
from forebay.spi import Mark, Queue, Timing

__all__ = ["Event"]

_NOT_A_STREAM = "expected stream to be a forebay.Stream or forebay.cuda.Stream object"


def _supports_timing(queue: Queue) -> TypeGuard[Timing]:
    """Return True if the queue is a Timing. The class check comes first: the instance check takes microseconds."""
    return issubclass(queue.__class__, Timing) or isinstance(queue, Timing)


class Event:
    """A position on a stream, set by `record`.

    The event belongs to the device of its first record.

    As `torch.Event`.

    Parameters
    ----------
    device : device or str or int, optional
        A device of the kind on whose streams the event may be recorded; the index is ignored. Any kind by default.
    enable_timing : bool, optional
        Store the time of each record, for `elapsed_time`. False by default.
    blocking : bool, optional
        Accepted for compatibility and ignored: no wait spins for long. False by default.
    interprocess : bool, optional
        Allow other processes to open the event by its `ipc_handle`. False by default.

    Examples
    --------
    >>> import forebay
    >>> start, end = forebay.Event(enable_timing=True), forebay.Event(enable_timing=True)
    >>> start.record(); end.record(); end.synchronize()
    >>> start.elapsed_time(end) >= 0
    True
    """

    external = False  # a capture records the event, and waits for it, at each replay
    _another_index = "Event device index {} does not match recording stream's device index {}."
    _not_an_event = "expected other to be a forebay.Event object"

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        for name, flag in (("enable_timing", enable_timing), ("blocking", blocking), ("interprocess", interprocess)):
            if flag.__class__ is not bool:
                raise TypeError(f"Event(): argument '{name}' must be bool, not {type(flag).__name__}")
        kind = current.resolve(device).kind
        self._init("" if device is None else kind, Device(kind), enable_timing, blocking, interprocess)

    def _init(self, kind: str, device: Device | None, enable_timing: bool, blocking: bool, interprocess: bool) -> None:
        """Set the attributes. An event with an empty `kind` may be recorded on devices of all kinds."""
        self._device = device  # without an index until the first record
        self._kind = kind
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self.shared: IpcEventState | None = None  # internal to the runtime
        self._stream: Stream | None = None
        self._opened: OpenDevice | None = None  # of the last record
        self._tick = 0
        self._queue: Queue | None = None  # that reaches `_tick`; None if a query or a wait needs more than that
        self._mark: Mark | None = None
        self._in_graph = False  # external, and recorded in a capture

    @property
    def device(self) -> Device | None:
        """The device of the first record; before that, the kind on which the event may be recorded."""
        return self._device

    def bind(self, device: Device) -> None:
        """Bind an event that was not recorded to a device. Internal to the runtime.

        Parameters
        ----------
        device : device
            The device.
        """
        self._device, self._kind = device, device.kind

    def record(self, stream: Stream | None = None) -> None:
        """Record the event after all work queued on a stream so far.

        Recording again moves the event.

        Parameters
        ----------
        stream : Stream, optional
            The stream; the current one of the event's device by default.

        Raises
        ------
        RuntimeError
            If the stream is on another device than the event.
        Unsupported
            If the event has `enable_timing` and the backend does not support timing.
        """
        self.record_on(current_stream(self._kind or None) if stream is None else stream)

    def record_on(self, stream: Stream) -> None:
        """Record the event on a stream. Internal to the runtime: `record` without its default.

        Parameters
        ----------
        stream : Stream
            The stream.
        """
        if not isinstance(stream, Stream):
            raise RuntimeError(_NOT_A_STREAM)  # noqa: TRY004 -- PyTorch's
        opened = stream.opened
        if self._opened is not opened:
            self._check_device(stream)
            self._opened, self._device, self._kind = opened, stream.opened.device, opened.device.kind
            if observers.registered:
                observers.notify_event_created(self, opened)
        queue = stream.queue
        self._queue = None
        if self.external and (capture := stream.capture) is not None:
            if self.enable_timing and not _supports_timing(queue):
                raise Unsupported(f"{stream.opened.device.kind} does not support event timing", ability="Timing")
            capture.recording.add_event(queue, "record_event", id(self), self._record_in_replay)
            self._in_graph = True
            for listener in observers.registered:
                listener.event_recorded(self, stream)
            return
        if self.interprocess:
            if self.shared is None:
                self.shared = ipc_event.new_ipc_state(self, opened)
            self.shared.record(queue)  # before the signal: once the tick is reached, the shared record is too
        if not self.enable_timing:
            self._tick = queue.signal()
        elif _supports_timing(queue):
            self._mark = queue.mark()
            self._tick = self._mark.tick
        else:
            raise Unsupported(f"{stream.opened.device.kind} does not support event timing", ability="Timing")
        self._stream = stream
        self._queue = None if self._tick < 0 or self.shared is not None else queue
        for listener in observers.registered:
            listener.event_recorded(self, stream)

    def _record_in_replay(self, queue: Queue) -> None:
        opened = self._opened
        if opened is None:
            return
        if not self.enable_timing:
            self._tick = queue.signal()
        elif _supports_timing(queue):
            self._mark = queue.mark()
            self._tick = self._mark.tick
        self._stream, self._queue = from_queue(Stream, opened, queue), None

    def _check_device(self, stream: Stream) -> None:
        """Raise RuntimeError, with PyTorch's texts, if the event cannot be recorded on the stream's device."""
        kind, bound = stream.opened.device.kind, self._opened or (self.shared.opened if self.shared else None)
        if self._kind not in ("", kind):
            raise RuntimeError(
                f"Event device type {self._kind.upper()} does not match recording stream's device type {kind.upper()}."
            )
        if bound is not None and bound.device != stream.opened.device:
            index = bound.device.index or 0
            raise RuntimeError(self._another_index.format(index, stream.device_index))

    @property
    def recorded(self) -> bool:
        """True if the event was recorded, or is shared with another process."""
        return self._stream is not None or self._in_graph or self.shared is not None

    @property
    def event_id(self) -> int:
        """A number unique among the live events of this process; 0 until the event is recorded."""
        return id(self) if self.recorded else 0

    def query(self) -> bool:
        """Return True if all work before the record has completed, or the event was never recorded.

        Does not block.

        Raises
        ------
        DeviceError
            With code 900 if an active graph capture forbids the query. Also if the event was recorded in a graph,
            where each replay reaches it again.
        """
        queue, opened = self._queue, self._opened
        if queue is not None and opened is not None and not (capture_state.active or opened.unusable):
            done = queue.reached() >= self._tick
        elif self.shared is not None and (word := self.shared.foreign_word()):
            return self.shared.mark.reached(word)
        elif self._stream is None:
            return True
        else:
            if capture_state.active:
                capture_state.forbid(self._stream.opened.device.kind, "query")
            if self._tick < 0:
                raise capture_state.capture_error(self._stream.opened.device.kind, CAPTURED_EVENT, "query")
            done = self._stream.queue.reached() >= self._tick
        for listener in observers.registered:
            listener.event_queried(self, done)
        return done

    def wait(self, stream: Stream | None = None) -> None:
        """Make all future work on a stream wait for the event, without blocking the host.

        Does nothing if the event was never recorded. The host waits if the stream's device is of another kind than
        the event's.

        Parameters
        ----------
        stream : Stream, optional
            The stream that waits; the current one by default.

        Raises
        ------
        RuntimeError
            If `stream` is not a Stream.
        """
        if stream is not None and not isinstance(stream, Stream):
            raise RuntimeError(_NOT_A_STREAM)
        if self._queue is not None and self._stream is not None and not self.external:
            stream = current_stream() if stream is None else stream
            wait_for(stream, self._stream, self._tick)
            for listener in observers.registered:
                listener.event_waited(self, stream)
            return
        if self.shared is not None and (word := self.shared.foreign_word()):
            self.shared.wait_on(current_stream(self.device) if stream is None else stream, word)
            return
        if self._stream is None and not self._in_graph:
            return
        stream = current_stream() if stream is None else stream
        if self.external and (capture := stream.capture) is not None:
            wait = partial(self._wait_in_replay, stream.opened)
            capture.recording.add_event(stream.queue, "wait_event", id(self), wait)
        elif self._stream is not None:
            wait_for(stream, self._stream, self._tick)
        for listener in observers.registered:
            listener.event_waited(self, stream)

    def _wait_in_replay(self, opened: OpenDevice, queue: Queue) -> None:
        if self._stream is not None:
            wait_for(from_queue(Stream, opened, queue), self._stream, self._tick)

    def synchronize(self) -> None:
        """Wait until all work before the record has completed.

        Raises
        ------
        DeviceError
            If work on the stream failed, including work queued after the record; each failure is raised once.
        """
        queue, opened = self._queue, self._opened
        if queue is not None and opened is not None and not opened.unusable:
            opened.wait(queue, self._tick)
        elif self.shared is not None and (word := self.shared.foreign_word()):
            self.shared.mark.wait(word)
            return
        elif self._stream is None:
            return
        else:
            self._stream.opened.wait(self._stream.queue, self._tick)
        if observers.registered:
            for listener in observers.registered:
                listener.event_synchronized(self)

    def elapsed_time(self, other: Event) -> float:
        """Return the milliseconds between this event and a later one; negative if `other` was reached first.

        Does not block.

        Parameters
        ----------
        other : Event
            The later event.

        Raises
        ------
        ValueError
            If an event was created without `enable_timing` or never recorded.
        RuntimeError
            If `other` is not an Event, an event has not been reached yet, or the events are on different devices.
        """
        queue: Any = self._queue
        if queue is not None and other.__class__ is self.__class__ and other._queue is not None:
            opened = self._opened
            if opened is other._opened and opened is not None and not (opened.unusable or capture_state.active):
                try:
                    if not observers.registered:
                        return queue.elapsed_ms(self._mark, other._mark)  # type: ignore[no-any-return]  # a float
                except (TypeError, WrongState):  # recorded without timing, or not reached
                    pass
        if not isinstance(other, Event):
            raise RuntimeError(self._not_an_event)  # noqa: TRY004 -- PyTorch's
        if not (self.enable_timing and other.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._stream is None or self._mark is None or other._mark is None:
            if not (self.recorded and other.recorded):
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            kind = "" if self._device is None else self._device.kind  # recorded in graphs, but not replayed
            raise accelerator_error(INVALID_HANDLE, kind=kind, call="elapsed_time")
        kind, other_kind = self._kind, other._kind
        if kind != other_kind:
            raise RuntimeError(
                f"Event device type {kind.upper()} does not match other's device type {other_kind.upper()}."
            )
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        if self._device is not other._device and self._device != other._device:
            raise accelerator_error(INVALID_HANDLE, kind=kind, call="elapsed_time", device=str(self._device))
        queue = self._stream.queue
        if not _supports_timing(queue):
            raise Unsupported(f"{self.device} does not support event timing", ability="Timing")
        return queue.elapsed_ms(self._mark, other._mark)

    def ipc_handle(self) -> bytes:
        """Return a handle by which other processes open this event while it exists here.

        As `torch.cuda.Event.ipc_handle`. Every process can record the event; waits are for the latest record.
        An event that was never recorded is bound to the current device, which is opened.

        Returns
        -------
        bytes
            64 bytes, for `from_ipc_handle`.

        Raises
        ------
        DeviceError
            If the event was created with `enable_timing`, or without `interprocess`.
        """
        return ipc_event.export_event(self)

    @classmethod
    def from_ipc_handle(cls, device: DeviceLike, ipc_handle: bytes) -> Self:
        """Return an event exported by another process.

        As `torch.cuda.Event.from_ipc_handle`. Opens the device.

        Parameters
        ----------
        device : device or str or int
            The device to which the event is bound here.
        ipc_handle : bytes
            The 64 bytes that `ipc_handle` returned in the other process.

        Raises
        ------
        DeviceError
            If this process created the handle, or if the other process exited or released the event.
        ForebayError
            If `ipc_handle` is not 64 bytes.
        """
        return ipc_event.import_event(cls, device, ipc_handle)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.interprocess:
            raise TypeError(f"cannot pickle {type(self).__name__!r} object")
        return _from_ipc_handle, (type(self), self.ipc_handle(), self.device)

    def __repr__(self) -> str:
        device = self.device
        kind = "" if device is None else device.kind
        index = -1 if device is None or not self.recorded else device.index or 0
        return (
            f"forebay.Event device_type={kind}, device_index={index}, event_flag={int(self.enable_timing)}, "
            f"event_id={self.event_id}"
        )


def _from_ipc_handle(cls: type[Event], handle: bytes, device: Device) -> Event:
    return cls.from_ipc_handle(device, handle)
