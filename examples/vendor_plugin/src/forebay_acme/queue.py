"""Queue of a card: one engine, with the abilities Timing, Launches, RandomNumbers, StridedCopies and Captures."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Protocol

from forebay.errors import DeviceError, WrongState, warn_unraisable
from forebay.spi import Draw, Mark, StridedCopy
from forebay.vendor import (
    CaptureMixin,
    CaptureRecorder,
    accelerator_error,
    copy_strided_now,
    draw_now,
    index_of,
    integer_of,
    recorded_work,
    wait_in_capture,
)
from forebay_acme.card import Engine

__all__ = ["AcmeMark", "AcmeQueue", "Owner"]

_native_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Owner(Protocol):
    """The part of a port that its queues use."""

    name: str

    def new_graph(
        self, first: AcmeQueue, mode: str, queues: MutableMapping[int, int]
    ) -> CaptureRecorder[AcmeQueue]: ...


class AcmeQueue(CaptureMixin[CaptureRecorder["AcmeQueue"]]):
    """A queue that submits work to an engine. During a capture, it has a class of forebay that records the work."""

    def __init__(self, owner: Owner, handle: int) -> None:
        self.owner = owner
        self.handle = handle
        self._device = owner.name
        self._engine = Engine()

    # Work

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self._enqueue("copy", recorded_work.copy(dst, src, nbytes))

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        self._enqueue("fill", recorded_work.fill(dst, byte, nbytes))

    def execute(self, what: str, details: Mapping[str, Any]) -> None:
        """Execute one piece of work on the engine's thread; a real card would do it in hardware."""
        match what:
            case "copy":
                ctypes.memmove(details["to"], details["source"], details["nbytes"])
            case "fill":
                ctypes.memset(details["to"], details["byte"], details["nbytes"])
            case "draw":
                draw_now(details["draw"])
            case "strided":
                copy_strided_now(details["copy"])
            case "call":
                details["function"]()
            case "native":
                if code := _native_type(details["function"])(details["argument"]):
                    raise DeviceError(f"code {code}", code=code, device=self._device)

    def submit(self, function: Callable[[], object]) -> None:
        self.check_usable()
        self._engine.submit(function)

    def _enqueue(self, what: str, details: Mapping[str, Any]) -> None:
        self.submit(partial(self.execute, what, details))

    # Ticks

    def signal(self) -> int:
        self.check_usable()
        return self._engine.fence()

    def reached(self) -> int:
        return self._engine.passed

    def idle(self) -> bool:
        return self._engine.idle()

    def wait(self, tick: int) -> None:
        self.check_not_captured(integer_of(tick, "tick"))
        self._check_signalled(tick)
        if not self._engine.wait(tick):
            raise WrongState(f"{self._device}: queue {self.handle} was closed before tick {tick}")
        if (failure := self._engine.take_failure()) is not None:
            raise self._work_error(failure) from failure

    def wait_for(self, other: object, tick: int) -> None:
        queue = self.same_kind(other)
        if not wait_in_capture(self, queue, integer_of(tick, "tick")):  # False unless the tick is of a capture
            queue._check_signalled(tick)
            self.submit(partial(queue._wait_on_engine, tick))

    def close(self, timeout: float | None = None) -> bool:
        done = self._engine.stop(timeout)
        if (failure := self._engine.take_failure()) is not None:
            warn_unraisable(f"{self._work_error(failure)}; no wait reported it before the queue was closed")
        return done

    def check_usable(self) -> None:
        if self._engine.stopped:
            raise WrongState(f"{self._device}: queue {self.handle} was closed")

    def _check_signalled(self, tick: int) -> None:
        if index_of(tick, "tick") > self._engine.fences:
            raise WrongState(f"{self._device}: queue {self.handle} has not signalled tick {tick}")

    def _wait_on_engine(self, tick: int) -> None:
        if not self._engine.wait(tick):
            raise DeviceError("it waited for another queue, which was closed before it reached the tick")

    def _work_error(self, failure: BaseException) -> DeviceError:
        message = f"{self._device}: work of queue {self.handle} failed with "
        message += f"{type(failure).__name__}: {failure}"
        return DeviceError(message, code=getattr(failure, "code", 0), device=self._device)

    # Timing

    def mark(self) -> Mark:
        mark = AcmeMark()
        self.submit(mark.stamp)
        mark.tick = self.signal()
        return mark

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        times = []
        for mark in (start, end):
            if not isinstance(mark, AcmeMark):
                raise TypeError(f"a mark of an Acme queue is required, not {type(mark).__name__}")
            if not mark.time_ns:
                raise WrongState(f"{self._device}: a mark is not reached yet")
            times.append(mark.time_ns)
        return (times[1] - times[0]) / 1e6

    # Launches, RandomNumbers and StridedCopies

    def call(self, function: Callable[[], object]) -> None:
        self._enqueue("call", recorded_work.call(function))

    def call_native(self, function: int, argument: int) -> None:
        self._enqueue("native", recorded_work.native(function, argument))

    def draw(self, draw: Draw) -> None:
        self._enqueue("draw", recorded_work.draw(draw))

    def copy_strided(self, copy: StridedCopy) -> None:
        self._enqueue("strided", recorded_work.copy_strided(copy))

    # Captures: `CaptureMixin` implements its methods

    def same_kind(self, other: object) -> AcmeQueue:
        if not isinstance(other, AcmeQueue):
            raise TypeError(f"an Acme queue cannot wait for a {type(other).__name__}")
        return other

    def driver_error(self, code: int, call: str) -> DeviceError:
        return accelerator_error(code, kind="mtia", call=call, device=self._device)


class AcmeMark:
    """A tick with the time in nanoseconds at which it was reached, 0 before."""

    def __init__(self) -> None:
        self.tick = 0
        self.time_ns = 0

    def stamp(self) -> None:
        self.time_ns = time.perf_counter_ns()
