"""The queue of the fake backend."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.errors import DeviceError, WrongState
from forebay.spi import Mark
from forebay.testing.fake.clock import Command, FakeClock, FakeMark, Timeline

__all__ = ["FakeQueue"]

_native_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Port(Protocol):
    """The attributes of a FakePort that its queues use."""

    name: str
    clock: FakeClock
    command_ns: int

    def enter(self, call: str, *arguments: object, closed: bool = False) -> AbstractContextManager[None]: ...
    def check_work(self, call: str, touches: tuple[tuple[int, int], ...]) -> None: ...
    def remove_queue(self, handle: int) -> None: ...


class FakeQueue:
    """An in-order queue that runs its work on request.

    Copies and fills move no data. Host functions run in the thread that lets the work run.

    Parameters
    ----------
    port : FakePort
        The port of the queue.
    handle : int
        Number that identifies the queue within its port.
    priority : int
        Scheduling hint, without effect.
    """

    def __init__(self, port: _Port, handle: int, priority: int) -> None:
        self.port = port
        self.handle = handle
        self.priority = priority
        self.closed: bool = False
        self.timeline: Timeline = Timeline(port.clock)

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        dst, src, nbytes = address_of(dst, "dst"), address_of(src, "src"), size_of(nbytes)
        with self._enter("copy", dst, src, nbytes):
            self._add("copy", (dst, nbytes), (src, nbytes))

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        dst, byte, nbytes = address_of(dst, "dst"), byte_of(byte), size_of(nbytes)
        with self._enter("fill", dst, byte, nbytes):
            self._add("fill", (dst, nbytes))

    def signal(self) -> int:
        with self._enter("signal"):
            return self.timeline.signal().tick

    def reached(self) -> int:
        return self.timeline.reached()

    def idle(self) -> bool:
        return not self.timeline.pending

    def wait(self, tick: int) -> None:
        tick = index_of(tick, "tick")
        with self._enter("wait", tick, closed=True):
            self.timeline.finish(tick)
            failure, self.timeline.failure = self.timeline.failure, None
        if isinstance(failure, DeviceError):
            raise failure
        if failure is not None:
            message = f"{self.port.name}: work of queue {self.handle} failed with {type(failure).__name__}: {failure}"
            raise DeviceError(message, call="call", device=self.port.name) from failure

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, FakeQueue):
            raise TypeError(f"a fake queue can only wait for a fake queue, not for {type(other).__name__}")
        tick = index_of(tick, "tick")
        with self._enter("wait_for", other.handle, tick):
            other.timeline.check_signalled(tick)
            if tick > other.reached():
                self.timeline.add(Command(other=other.timeline, other_tick=tick))

    def close(self, timeout: float | None = None) -> bool:
        """Run all queued work and close the queue. The timeout never expires: no real time passes."""
        if not self.closed:
            with self._enter("close", timeout):
                self.timeline.finish()
                self.closed = True
                self.timeline.drop()
                self.port.remove_queue(self.handle)
        return True

    def mark(self) -> FakeMark:
        with self._enter("mark"):
            return self.timeline.signal()

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        times: list[int] = []
        for mark, name in ((start, "start"), (end, "end")):
            if not isinstance(mark, FakeMark):
                raise TypeError(f"{name} must be a mark of a fake queue, not {type(mark).__name__}")
            if mark.nanoseconds is None:
                raise WrongState(f"{self.port.name}: the {name} mark is not reached yet: wait for its tick first")
            times.append(mark.nanoseconds)
        return (times[1] - times[0]) / 1e6

    def call(self, function: Callable[[], object]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        with self._enter("call", function):
            self._add("call", function=function)

    def call_native(self, function: int, argument: int) -> None:
        function, argument = address_of(function, "function"), index_of(argument, "argument")

        def run() -> None:
            if code := _native_type(function)(argument):
                message = f"{self.port.name}: work of queue {self.handle} failed with code {code}"
                raise DeviceError(message, code=code, call="call_native", device=self.port.name)

        with self._enter("call_native", function, argument):
            self._add("call_native", function=run)

    def finish(self, up_to: int | None = None) -> None:
        """Run the queued work, and the work of other queues that it waits for.

        Parameters
        ----------
        up_to : int, optional
            Run only the work queued before this tick; all work by default.

        Raises
        ------
        WrongState
            If the tick was not signalled.
        """
        with self.port.clock.lock:
            self.timeline.finish(up_to)

    def _enter(self, call: str, *arguments: object, closed: bool = False) -> AbstractContextManager[None]:
        if self.closed and not closed:
            raise WrongState(f"{self.port.name}: queue {self.handle} was closed")
        return self.port.enter(call, self.handle, *arguments, closed=closed)

    def _add(self, call: str, *touches: tuple[int, int], function: Callable[[], object] | None = None) -> None:
        def work() -> None:
            self.port.check_work(call, touches)
            if function is not None:
                function()

        self.timeline.add(Command(duration_ns=self.port.command_ns, work=work))
