"""Queue of a CUDA device: a stream of its primary context."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import index
from typing import Any

from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.backends.nvidia.calls import call, check, driver_api, error_of
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.event_pool import EventPool
from forebay.backends.nvidia.host_functions import HostFunctions
from forebay.backends.nvidia.ticks import Ticks
from forebay.errors import DeviceError, WrongState, warn_unraisable
from forebay.spi import Mark

__all__ = ["CudaMark", "CudaQueue"]

_NOT_READY = 600
_POLL = 0.0005  # seconds between queries while a queue is closed with a time limit


class CudaMark:
    """A tick, and the event of the driver with the time at which it was reached."""

    __slots__ = ("event", "events", "tick")

    def __init__(self, tick: int, event: Any, events: EventPool) -> None:
        self.tick: int = tick
        self.event: Any = event
        self.events: EventPool = events

    def __del__(self) -> None:
        self.events.put(self.event)


class CudaQueue:
    """An in-order queue: a stream of the driver. The first one of a device is its default stream."""

    def __init__(self, context: PrimaryContext, priority: int, *, default: bool) -> None:
        self.context: PrimaryContext = context
        self.name: str = context.name
        self._api = driver_api()
        self.handle: int = 0
        if not default:
            with context.current() as api:
                flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
                self.handle = int(check(api.cuStreamCreateWithPriority(flags, priority), "cuStreamCreate", self.name))
        self._invoke = context.invoke_in_any if self.handle else context.invoke
        self.ticks: Ticks = Ticks(context, self.handle)
        self._functions = HostFunctions(context, self.handle)
        self._events = EventPool(context, timing=True)
        self._closed = False

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        dst, src, nbytes = address_of(dst, "dst"), address_of(src, "src"), size_of(nbytes)
        self.check_usable()
        copied = self._invoke(self._api.cuMemcpyAsync, dst, src, nbytes, self.handle)
        check(copied, "cuMemcpyAsync", self.name)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        dst, byte, nbytes = address_of(dst, "dst"), byte_of(byte), size_of(nbytes)
        self.check_usable()
        check(self._invoke(self._api.cuMemsetD8Async, dst, byte, nbytes, self.handle), "cuMemsetD8Async", self.name)

    def call(self, function: Callable[[], object]) -> None:
        """Queue a Python function, which must not call the driver."""
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        self.check_usable()
        self._functions.call(function)

    def call_native(self, function: int, argument: int) -> None:
        """Queue a native function, which must not call the driver."""
        function, argument = address_of(function, "function"), index_of(argument, "argument")
        self.check_usable()
        self._functions.call_native(function, argument)

    def signal(self) -> int:
        self.check_usable()
        return self.ticks.signal()

    def reached(self) -> int:
        self.context.check_process()
        return self.ticks.reached()

    def idle(self) -> bool:
        self.context.check_process()
        if self._closed:
            return True
        code = int(self._invoke(self._api.cuStreamQuery, self.handle)[0])
        if code not in (0, _NOT_READY):
            raise error_of(code, "cuStreamQuery", self.name)
        return not code

    def wait(self, tick: int) -> None:
        self.context.check_process()
        self.ticks.wait(index(tick))
        if (failure := self._functions.take_failure()) is not None:
            raise self._work_error(failure) from (failure if isinstance(failure, BaseException) else None)

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, CudaQueue):
            raise TypeError(f"a cuda queue can wait only for cuda queues, not for a {type(other).__name__}")
        self.check_usable()
        other.ticks.make_wait(self.handle, self.context, index(tick))

    def mark(self) -> CudaMark:
        self.check_usable()
        event = self._events.take()
        check(self._invoke(self._api.cuEventRecord, event, self.handle), "cuEventRecord", self.name)
        return CudaMark(self.ticks.signal(), event, self._events)

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        self.context.check_process()
        for mark, name in ((start, "start"), (end, "end")):
            if not isinstance(mark, CudaMark):
                raise TypeError(f"{name} must be a mark of a cuda queue, not {type(mark).__name__}")
            if mark.events.destroyed:
                raise WrongState(f"{self.name}: the queue of the {name} mark was closed")
            if int(self._api.cuEventQuery(mark.event)[0]) == _NOT_READY:
                raise WrongState(f"{self.name}: the {name} mark is not reached yet: wait for its tick first")
        return float(call("cuEventElapsedTime", start.event, end.event, device=self.name))  # type: ignore[attr-defined]  # checked above

    def close(self, timeout: float | None = None) -> bool:
        """Complete the queued work, and destroy the events."""
        if self._closed or self.context.forked():
            return True
        done = self._complete(timeout)
        self._closed = True
        failure = self._functions.take_failure()
        if failure is not None:
            warn_unraisable(f"{self._work_error(failure)}; no wait reported it before the queue was closed")
        self.ticks.destroy()
        self._events.destroy()
        return done

    def destroy(self) -> None:
        """Destroy the stream. Until then its handle is not reused."""
        if self.handle:
            self._api.cuStreamDestroy(self.handle)

    def _complete(self, seconds: float | None) -> bool:
        """Wait for the queued work, at most for some time. Return False on timeout; warn if the driver fails."""
        if seconds is None:
            code = int(self._invoke(self._api.cuStreamSynchronize, self.handle)[0])
        else:
            limit = time.monotonic() + max(seconds, 0.0)
            while (code := int(self._invoke(self._api.cuStreamQuery, self.handle)[0])) == _NOT_READY:
                if time.monotonic() >= limit:
                    return False
                time.sleep(_POLL)
        if code:
            error = error_of(code, "cuStreamSynchronize", self.name)
            warn_unraisable(f"{error}; no wait reported it before the queue was closed")
        return True

    def check_usable(self) -> None:
        if self._closed or self.context.forked():
            self.context.check_usable()
            raise WrongState(f"{self.name}: queue {self.handle:#x} was closed")

    def _work_error(self, failure: BaseException | int) -> DeviceError:
        name = self.name
        work = f"{name}: work of queue {self.handle:#x} failed"
        if isinstance(failure, int):
            return DeviceError(f"{work} with code {failure}", code=failure, call="call_native", device=name)
        return DeviceError(f"{work} with {type(failure).__name__}: {failure}", call="call", device=name)
