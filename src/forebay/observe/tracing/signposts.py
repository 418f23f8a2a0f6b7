"""macOS's signposts, which Instruments shows: by the package `os-signpost` (the extra `trace`).

Written after that package's documentation, and tried with a stand-in of it: this has not run on a Mac.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.queue_capabilities import launches
from forebay.spi import Queue

__all__ = ["SUBSYSTEM", "Signposts", "signposts"]

SUBSYSTEM = "forebay"


def signposts(*, intervals: bool, events: bool) -> Signposts | None:
    """What makes them; None on other systems, and where the package is not installed."""
    if sys.platform != "darwin":
        return None
    try:
        from os_signpost import Signposter
    except ImportError:
        return None
    return Signposts(Signposter(SUBSYSTEM, Signposter.Category.DynamicTracing), intervals=intervals, events=events)


class Signposts(observers.Tracer):
    """An interval from an operation's beginning to its end, an event when it is done; made in its queue.

    A queue that runs no functions has them when the host is done with queueing.
    """

    def __init__(self, maker: Any, *, intervals: bool, events: bool) -> None:
        self._maker = maker
        self._intervals, self._events = intervals, events

    def queueing(self, queue: Queue) -> list[Callable[[], object]] | None:
        """Of the interval that begins: what will end it, once there is that; None: the work is recorded for a graph."""
        if capture_state.under_way and capture_state.capture_of(queue) is not None:
            return None
        ends: list[Callable[[], object]] = []
        if self._intervals:
            _in_queue(queue, lambda: ends.append(self._maker.begin_interval(f"queue {queue.handle}")))
        return ends

    def queued(
        self,
        queue: Queue,
        begun: list[Callable[[], object]] | None,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,  # noqa: ARG002 -- to wait for another is an operation like others here
        above: int = 0,  # noqa: ARG002 -- signposts name no lines
    ) -> None:
        if begun is None:
            return
        told = f"{what} {name}, {nbytes} bytes" if nbytes else f"{what} {name}"

        def done() -> None:
            for end in begun:
                end(told)  # type: ignore[call-arg]  # the package's own function takes the last words
            if self._events:
                self._maker.emit_event(told)

        _in_queue(queue, done)


def _in_queue(queue: Queue, function: Callable[[], object]) -> None:
    if launches(queue):
        queue.call(function)
    else:
        function()
