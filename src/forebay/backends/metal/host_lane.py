"""The thread that runs the host functions of one queue, in order, between the queue's command buffers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from forebay.backends.metal.calls import autorelease_pool
from forebay.backends.metal.commands import HostCall
from forebay.vendor import signals_blocked

__all__ = ["HostLane", "await_value"]

_LIMIT = 1.0  # seconds for an idle thread to end
_SLICE = 1000  # milliseconds of a wait


class HostLane:
    """The host functions of a queue. `report` is called when one begins, with an end of 0, and when it has ended.

    The latter sets `ended`, when it has noted the failure: from then on the queue may be idle.
    """

    def __init__(self, name: str, report: Callable[[HostCall, int, int, BaseException | None], object]) -> None:
        self._name = name
        self._report = report
        self._calls: SimpleQueue[HostCall | None] = SimpleQueue()
        self._unended = deque[HostCall]()
        self._running = threading.Lock()  # held by the thread, of which there is one; two after an interrupted start
        self._thread: threading.Thread | None = None
        self.abandoned = False  # functions that have not begun are dropped, but what waits for them continues

    def put(self, call: HostCall) -> None:
        """Run a function after those before it. Doing so twice has no effect."""
        self._unended.append(call)
        self._calls.put(call)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            with signals_blocked():
                thread.start()
            self._thread = thread

    def idle(self) -> bool:
        """Return True if no function is left."""
        unended = self._unended
        while unended and unended[0].ended:
            try:
                unended.popleft()
            except IndexError:  # another thread was here
                break
        return not unended

    def is_current(self) -> bool:
        """Return True on the lane's own thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def stop(self, *, wait: bool) -> None:
        """End the thread behind the functions that it has; wait for its end if it has none."""
        self._calls.put(None)
        if wait and self._thread is not None and not self.is_current():
            self._thread.join(_LIMIT)

    def _run(self) -> None:
        with self._running:
            while (call := self._calls.get()) is not None:
                function, call.function = call.function, None
                if function is None:
                    continue
                with autorelease_pool():
                    self._run_one(call, function)
                del function, call
        self._calls.put(None)  # for a second thread

    def _run_one(self, call: HostCall, function: Callable[[], object]) -> None:
        failures: list[BaseException] = []
        if call.after:
            await_value(call.event, call.after, failures)
        begin = time.perf_counter_ns()
        if not self.abandoned:
            self._report(call, begin, 0, None)
            try:
                function()
            except BaseException as error:  # noqa: BLE001 -- the next wait raises it
                failures.append(error)
        end = max(time.perf_counter_ns(), begin + 1)
        self._report(call, begin, end, failures[0] if failures else None)


def await_value(event: Any, value: int, failures: list[BaseException]) -> None:
    """Wait for a value of an event. A call that fails is repeated once: the queue could not continue without it."""
    while len(failures) < 2:
        try:
            if event.waitUntilSignaledValue_timeoutMS_(value, _SLICE):
                return
        except Exception as error:  # noqa: BLE001 -- PyObjC's are of several types
            failures.append(error)
