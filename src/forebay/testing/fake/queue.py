"""The fake backend's queue."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.errors import DeviceError, WrongState
from forebay.spi import Mark
from forebay.testing.fake.clock import Command, FakeClock, FakeMark, Line

__all__ = ["FakeQueue", "Owner"]

_native_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Owner(Protocol):
    """What a queue knows of its port."""

    name: str
    clock: FakeClock
    command_ns: int

    def enter(self, call: str, *arguments: object, closed: bool = False) -> AbstractContextManager[None]: ...
    def check_work(self, call: str, touches: tuple[tuple[int, int], ...]) -> None: ...  # raises what goes wrong
    def forget(self, handle: int) -> None: ...


class FakeQueue:
    """Work to come. Copies and fills move nothing; calls are made, on the thread that lets the work be done."""

    def __init__(self, port: Owner, handle: int, priority: int) -> None:
        self.port = port
        self.handle = handle
        self.priority = priority
        self.closed = False
        self.line = Line(port.clock)

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
            return self.line.signal().tick

    def reached(self) -> int:
        return self.line.reached()

    def idle(self) -> bool:
        return not self.line.pending

    def wait(self, tick: int) -> None:
        tick = index_of(tick, "tick")
        with self._enter("wait", tick, closed=True):
            self.line.finish(tick)
            failure, self.line.failure = self.line.failure, None
        if isinstance(failure, DeviceError):
            raise failure
        if failure is not None:
            message = f"{self.port.name}: work of queue {self.handle} failed with {type(failure).__name__}: {failure}"
            raise DeviceError(message, call="call", device=self.port.name) from failure

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, FakeQueue):
            raise TypeError(f"a fake queue waits for fake queues, not for a {type(other).__name__}")
        tick = index_of(tick, "tick")
        with self._enter("wait_for", other.handle, tick):
            other.line.check_signalled(tick)
            if tick > other.reached():
                self.line.add(Command(other=other.line, other_tick=tick))

    def close(self, timeout: float | None = None) -> bool:
        """Does all that is queued, in no real time: no limit is ever met."""
        if not self.closed:
            with self._enter("close", timeout):
                self.line.finish()
                self.abandon()
                self.port.forget(self.handle)
        return True

    def mark(self) -> FakeMark:
        with self._enter("mark"):
            return self.line.signal()

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
        """Does what is queued, or what is queued before a tick; and of other queues' work only what that waits for."""
        with self.port.clock.lock:
            self.line.finish(up_to)

    def abandon(self) -> None:
        self.closed = True
        self.line.drop()

    def _enter(self, call: str, *arguments: object, closed: bool = False) -> AbstractContextManager[None]:
        if self.closed and not closed:
            with self.port.enter("", closed=True):  # Forked, if it is that
                raise WrongState(f"{self.port.name}: queue {self.handle} was closed")
        return self.port.enter(call, self.handle, *arguments, closed=closed)

    def _add(self, call: str, *touches: tuple[int, int], function: Callable[[], object] | None = None) -> None:
        def work() -> None:
            self.port.check_work(call, touches)
            if function is not None:
                function()

        self.line.add(Command(takes=self.port.command_ns, work=work))
