"""Events of MPS devices, numbered from a pool per device. (`torch.mps.event`)"""

from __future__ import annotations

from itertools import count
from typing import NoReturn
from weakref import WeakKeyDictionary

from forebay.backends.common._disposal import Disposable, move_all
from forebay.errors import ForebayError
from forebay.mps._kind import as_boolean, open_device
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import event as events
from forebay.runtime.streams import stream as streams

__all__ = ["Event"]


class _EventIds:
    """Pool of event ids of one device, from 1 on; the id freed last is reused first.

    Each step is one atomic operation of a list or a counter, so a destructor may run at any point.
    """

    def __init__(self) -> None:
        self._new = count(1)
        self.free: list[int] = []

    def allocate(self) -> int:
        try:
            return self.free.pop()
        except IndexError:
            return next(self._new)


_event_ids: WeakKeyDictionary[OpenDevice, _EventIds] = WeakKeyDictionary()


class Event(Disposable):
    """Event on the default stream of the current MPS device.

    As `torch.mps.Event`. Opens the device. The event's number is allocated from the device's pool and freed with the
    event. As in PyTorch 2.15, other streams than the default one are not supported; use `forebay.Event` for those.

    Parameters
    ----------
    enable_timing : bool, default False
        Record a timestamp for `elapsed_time`.

    Raises
    ------
    ForebayError
        If there is no MPS device.
    RuntimeError
        If `enable_timing` is not a bool.

    Examples
    --------
    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     start, end = mps.Event(enable_timing=True), mps.Event(enable_timing=True)
    ...     start.record(); ones = forebay.full((1000,), 1.0, device="mps"); end.record()
    ...     start.elapsed_time(end) >= 0
    True
    """

    _id = 0  # 0: not allocated
    _event: events.Event | None = None
    _recorded: events.Event | None = None  # `_event` once recorded: an event on a stream checks its device itself

    def __init__(self, enable_timing: bool = False) -> None:
        timed = as_boolean(enable_timing)
        opened = self._opened = open_device(None, "acquireEvent")
        ids = _event_ids.get(opened)
        self._ids = _event_ids.setdefault(opened, _EventIds()) if ids is None else ids
        self._event = events.Event(enable_timing=timed)
        self._id = self._ids.allocate()
        self._owned = [self._id]  # the number, until it is freed

    def _dispose(self) -> None:
        self._event = self._recorded = None
        if hasattr(self, "_owned"):
            move_all(self._owned, self._ids.free)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a forebay.mps.Event cannot be copied or pickled: its number is unique")

    def __repr__(self) -> str:
        return f"<forebay.mps.Event {self._id}>"

    def record(self) -> None:
        """Record the event after all work queued so far on the default stream; may be repeated.

        Raises
        ------
        NotImplementedError
            If another stream is current.
        """
        event = self._checked_event()
        event.record_on(self._default_stream())
        self._recorded = event

    def wait(self) -> None:
        """Make later work of the default stream wait for the event.

        Has no effect: the event is on the same stream.

        Raises
        ------
        NotImplementedError
            If another stream is current.
        """
        event = self._checked_event()
        event.wait(self._default_stream())

    def query(self) -> bool:
        """Return True if the event was recorded and its stream has reached it; False, unlike CUDA's, if never recorded.

        Does not block.
        """
        if (recorded := self._recorded) is None:
            self._checked_event()
            return False
        return recorded.query()

    def synchronize(self) -> None:
        """Wait until the stream has reached the event; return at once if it was never recorded.

        Raises
        ------
        DeviceError
            If work before the event failed and the failure was not reported yet.
        """
        (self._recorded or self._checked_event()).synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds between this event and a later one.

        Waits for the default stream.

        Parameters
        ----------
        end_event : Event
            The later event.

        Raises
        ------
        RuntimeError
            If an event has no timing or was not recorded, or if `end_event` is the earlier one.
        TypeError
            If `end_event` is not an MPS event.
        """
        if not isinstance(end_event, Event):
            kind = type(end_event)
            raise TypeError(f"expected a forebay.mps.Event, not a {kind.__module__}.{kind.__qualname__}")
        start, end = self._checked_event(), end_event._checked_event()
        for opened in dict.fromkeys((self._opened, end_event._opened)):
            streams.default_stream_for(opened).synchronize()
        if not (start.enable_timing and end.enable_timing):
            raise ForebayError("Events were not created with argument 'enable_timing=True'")
        if not (start.recorded and end.recorded):
            raise ForebayError("Both events must be recorded before calculating elapsed time")
        elapsed = start.elapsed_time(end)
        if elapsed < 0:
            raise ForebayError(f"End event {end_event._id} was not recorded after start event {self._id}")
        return elapsed

    def _checked_event(self) -> events.Event:
        """Return the event. Raises ForebayError if it was released, Forked or WrongState if its device is unusable."""
        event = self._event
        if event is None:
            raise ForebayError(f"Invalid Event ID: {self._id}")
        if self._opened.unusable:
            self._opened.check()
        return event

    def _default_stream(self) -> streams.Stream:
        opened = self._opened
        default, current = streams.default_stream_for(opened), local.state.streams.get(opened)
        if current is not None and current.handle != default.handle:
            raise NotImplementedError("Non-default streams are not yet supported.")  # PyTorch's words, of 2.15
        return default
