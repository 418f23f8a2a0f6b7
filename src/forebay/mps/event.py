"""Events of an MPS device, which come from a pool and have numbers. (`torch.mps.event`)"""

from __future__ import annotations

from itertools import count
from typing import NoReturn
from weakref import WeakKeyDictionary

from forebay.errors import ForebayError
from forebay.mps._kind import as_boolean, open_device
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import event as events
from forebay.runtime.streams import stream as streams

__all__ = ["Event"]


class _Numbers:
    """Of one device, from 1 on. One that comes back is the next to be taken.

    Each step is one operation of a list or a counter, so that a destructor may come in between anywhere.
    """

    def __init__(self) -> None:
        self._new = count(1)
        self._free: list[int] = []
        self.give_back = self._free.append

    def take(self) -> int:
        try:
            return self._free.pop()
        except IndexError:
            return next(self._new)


_numbers: WeakKeyDictionary[OpenDevice, _Numbers] = WeakKeyDictionary()


class Event:
    """A point on the default stream. `enable_timing` keeps the moment, for `elapsed_time`. Opens the device.

    Its number comes from the device's pool and goes back there with it. PyTorch 2.15 has no events on other streams of
    MPS yet; `forebay.Event` does what this cannot. (`torch.mps.Event`)

    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     start, end = mps.Event(enable_timing=True), mps.Event(enable_timing=True)
    ...     start.record(); ones = forebay.full(1000, 1.0, device="mps"); end.record()
    ...     start.elapsed_time(end) >= 0
    True
    """

    _number = 0  # of none
    _event: events.Event | None = None
    _point: events.Event | None = None  # the same, once it was recorded: then it sees itself whether its device is gone

    def __init__(self, enable_timing: bool = False) -> None:
        timed = as_boolean(enable_timing)
        opened = self._opened = open_device(None, "acquireEvent")
        numbers = _numbers.get(opened)
        self._numbers = _numbers.setdefault(opened, _Numbers()) if numbers is None else numbers
        self._event = events.Event(enable_timing=timed)
        self._number = self._numbers.take()

    def __del__(self) -> None:
        event, self._event, self._point = self._event, None, None
        if event is not None and self._number:
            self._numbers.give_back(self._number)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a forebay.mps.Event has its number alone: it can be neither copied nor pickled")

    def __repr__(self) -> str:
        return f"<forebay.mps.Event {self._number}>"

    def record(self) -> None:
        """Set the point after all work so far on the default stream, or move it there.

        NotImplementedError while another stream is current.
        """
        event = self._live()
        event.record_on(self._default_stream())
        self._point = event

    def wait(self) -> None:
        """Later work of the default stream waits for the point, which is on that stream, and so before it.

        NotImplementedError while another stream is current.
        """
        event = self._live()
        event.wait(self._default_stream())

    def query(self) -> bool:
        """Whether it was recorded, and the point is reached. Never waits."""
        if (point := self._point) is None:
            self._live()
            return False
        return point.query()

    def synchronize(self) -> None:
        """Wait for the point, if it was recorded; a failure of the stream's work is raised here, once."""
        (self._point or self._live()).synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this point to the other's. Waits for the default stream.

        RuntimeError unless both keep the moment, both are recorded, and the other one not before this.
        """
        if not isinstance(end_event, Event):
            kind = type(end_event)
            raise TypeError(f"expected a forebay.mps.Event, not a {kind.__module__}.{kind.__qualname__}")
        start, end = self._live(), end_event._live()
        for opened in dict.fromkeys((self._opened, end_event._opened)):
            streams.default_of(opened).synchronize()
        if not (start.enable_timing and end.enable_timing):
            raise ForebayError("Events were not created with argument 'enable_timing=True'")
        if not (start.recorded and end.recorded):
            raise ForebayError("Both events must be recorded before calculating elapsed time")
        elapsed = start.elapsed_time(end)
        if elapsed < 0:
            ours, theirs = self._number, end_event._number
            raise ForebayError(f"End event {theirs} was not recorded after start event {ours}")
        return elapsed

    def _live(self) -> events.Event:
        """Forked or WrongState where its device is gone, ForebayError where the event itself is."""
        event = self._event
        if event is None:
            raise ForebayError(f"Invalid Event ID: {self._number}")
        if self._opened.gone:
            self._opened.check()
        return event

    def _default_stream(self) -> streams.Stream:
        opened = self._opened
        default, chosen = streams.default_of(opened), local.here.streams.get(opened)
        if chosen is not None and chosen.handle != default.handle:
            raise NotImplementedError("Non-default streams are not yet supported.")  # PyTorch's words, of 2.15
        return default
