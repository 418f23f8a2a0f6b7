"""Ticks of a queue: events of the driver that are recorded in its stream, and reused after they are reached."""

from __future__ import annotations

import itertools
from collections import deque
from threading import RLock
from typing import Any

from forebay.backends.nvidia.calls import check, driver_api, error_of
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.event_pool import EventPool
from forebay.errors import WrongState

__all__ = ["Ticks"]

_NOT_READY = 600


class Ticks:
    """The ticks of one stream.

    A signal handler or a destructor may call any method while another one runs in the same thread, so each step leaves
    a valid state: a tick is pending before the caller knows it, and an event is reused after its tick was removed.
    """

    def __init__(self, context: PrimaryContext, stream: int) -> None:
        self._context = context
        self._stream = stream
        self._invoke = (
            context.invoke_in_any if stream else context.invoke
        )  # the default stream is the current context's
        self._api = driver_api()
        self._events = EventPool(context, timing=False)
        self._numbers = itertools.count(1)
        self._last = 0
        self._reached = 0
        self._pending = deque[tuple[int, Any]]()  # ticks and their events, in the order of the stream
        self._lock = RLock()

    def signal(self) -> int:
        """Record the next tick."""
        event = self._events.take()
        with self._lock:
            number = next(self._numbers)
            check(self._invoke(self._api.cuEventRecord, event, self._stream), "cuEventRecord", self._context.name)
            self._pending.append((number, event))
            self._last = max(self._last, number)
        return number

    def reached(self) -> int:
        """Return the last tick that is reached."""
        pending = self._pending
        while True:
            try:
                item = pending[0]
            except IndexError:
                break
            code = int(self._api.cuEventQuery(item[1])[0])
            if code == _NOT_READY:
                break
            if code:
                raise error_of(code, "cuEventQuery", self._context.name)
            self._complete(item)
        return self._reached

    def wait(self, tick: int) -> None:
        """Block until a tick is reached. Raises WrongState if it was not signalled."""
        self.check(tick)
        while self._reached < tick:
            event = self._event_of(tick)
            if event is None:
                break
            check(self._api.cuEventSynchronize(event), "cuEventSynchronize", self._context.name)
            self.reached()

    def make_wait(self, stream: int, context: PrimaryContext, tick: int) -> None:
        """Make the later work of another stream, of a context, wait for a tick."""
        self.check(tick)
        with self._lock:  # until then the event is not reused
            event = None if self._reached >= tick else self._event_of(tick)
            if event is not None:
                invoke = context.invoke_in_any if stream else context.invoke
                check(invoke(self._api.cuStreamWaitEvent, stream, event, 0), "cuStreamWaitEvent", context.name)

    def check(self, tick: int) -> None:
        """Raise WrongState if a tick was not signalled."""
        if not 0 <= tick <= self._last:
            raise WrongState(f"{self._context.name}: tick {tick} was not signalled; the last one is {self._last}")

    def destroy(self) -> None:
        """Destroy all events; all ticks count as reached. Errors are ignored: the context may be lost."""
        self._reached = self._last
        self._pending.clear()
        self._events.destroy()

    def _event_of(self, tick: int) -> Any:
        """Return the event of the first pending tick that is not before a tick, or None."""
        return next((event for number, event in tuple(self._pending) if number >= tick), None)

    def _complete(self, item: tuple[int, Any]) -> None:
        with self._lock:
            self._reached = max(self._reached, item[0])
            try:
                self._pending.remove(item)
            except ValueError:  # another call was faster
                return
            self._events.put(item[1])
