"""Signposts of macOS, which Instruments shows, using the package `os-signpost` (the extra `trace`).

Written from the package's documentation and tested with a fake of it, not on macOS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.queue_capabilities import can_launch
from forebay.spi import Queue

__all__ = ["SUBSYSTEM", "Signposts", "signposts"]

SUBSYSTEM = "forebay"


def signposts(*, intervals: bool, events: bool) -> Signposts | None:
    """Return the tracer that emits signposts, or None on other systems and without the package."""
    if sys.platform != "darwin":
        return None
    try:
        from os_signpost import Signposter
    except ImportError:
        return None
    return Signposts(Signposter(SUBSYSTEM, Signposter.Category.DynamicTracing), intervals=intervals, events=events)


class Signposts(observers.Tracer):
    """Tracer that emits, from the operation's queue, an interval around it and an event after it.

    For a queue that cannot run host functions, signposts are emitted by the thread that queues the work.
    """

    def __init__(self, signposter: Any, *, intervals: bool, events: bool) -> None:
        self._signposter = signposter
        self._intervals, self._events = intervals, events

    def queueing(self, queue: Queue) -> list[Callable[[], object]] | None:
        """Begin an interval. Return a list that will hold the function that ends it; None during a graph capture."""
        if capture_state.active and capture_state.capture_of(queue) is not None:
            return None
        ends: list[Callable[[], object]] = []
        if self._intervals:
            _run(queue, lambda: ends.append(self._signposter.begin_interval(f"queue {queue.handle}")))
        return ends

    def queued(
        self,
        queue: Queue,
        begun: list[Callable[[], object]] | None,
        what: str,
        name: str,
        nbytes: int = 0,
        other: Queue | None = None,  # noqa: ARG002 -- a wait is an operation like others
    ) -> None:
        if begun is None:
            return
        text = f"{what} {name}, {nbytes} bytes" if nbytes else f"{what} {name}"

        def done() -> None:
            for end in begun:
                end(text)  # type: ignore[call-arg]  # the package's function takes the final text
            if self._events:
                self._signposter.emit_event(text)

        _run(queue, done)


def _run(queue: Queue, function: Callable[[], object]) -> None:
    """Run the function in the queue if it can run host functions, else now."""
    if can_launch(queue):
        queue.call(function)
    else:
        function()
