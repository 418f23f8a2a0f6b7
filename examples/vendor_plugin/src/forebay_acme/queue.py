"""One engine of a card, as a queue with the abilities Timing, Launches, Randoms and Captures."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from forebay.errors import DeviceError, WrongState, complain
from forebay.spi import Draw, Mark
from forebay.vendor import (
    CapturedMark,
    Records,
    accelerator_error,
    draw_now,
    index_of,
    integer_of,
    recorded_wait,
    recorded_work,
)
from forebay_acme.card import Engine
from forebay_acme.recording import AcmeRecording

__all__ = ["AcmeMark", "AcmeQueue"]

_native_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class AcmeQueue(Records[AcmeRecording]):
    """Whatever it is told goes to the engine, or into a recording."""

    def __init__(self, device: str, handle: int) -> None:
        self.handle = handle
        self.recording: AcmeRecording | None = None
        self._device = device
        self._engine = Engine()

    # Work

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self._put("copy", recorded_work.copy(dst, src, nbytes))

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        self._put("fill", recorded_work.fill(dst, byte, nbytes))

    def do(self, what: str, details: Mapping[str, Any]) -> None:
        """One piece of work, on the engine's thread. A real card would do it."""
        match what:
            case "copy":
                ctypes.memmove(details["to"], details["source"], details["nbytes"])
            case "fill":
                ctypes.memset(details["to"], details["byte"], details["nbytes"])
            case "draw":
                draw_now(details["draw"])
            case "call":
                details["function"]()
            case "native":
                if code := _native_type(details["function"])(details["argument"]):
                    raise DeviceError(f"code {code}", code=code, device=self._device)

    def submit(self, function: Callable[[], object]) -> None:
        self.check_usable()
        self._engine.submit(function)

    def _put(self, what: str, details: Mapping[str, Any]) -> None:
        if self.recording is not None:
            self.recording.add(self, what, **details)
        else:
            self.submit(partial(self.do, what, details))

    # Ticks

    def signal(self) -> int:
        if self.recording is not None:
            return self.recording.signal(self)
        self.check_usable()
        return self._engine.fence()

    def reached(self) -> int:
        return self._engine.passed

    def idle(self) -> bool:
        if self.recording is not None:
            raise self.recording.forbid(self, "idle")
        return self._engine.idle()

    def wait(self, tick: int) -> None:
        self.check_recorded(integer_of(tick, "tick"))
        self._check_signalled(tick)
        if not self._engine.wait(tick):
            raise WrongState(f"{self._device}: queue {self.handle} was closed before tick {tick}")
        if (failure := self._engine.take_failure()) is not None:
            raise self._told(failure) from failure

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, AcmeQueue):
            raise TypeError(f"an Acme queue cannot wait for a {type(other).__name__}")
        if not recorded_wait(self, other, integer_of(tick, "tick")):
            other._check_signalled(tick)
            self.submit(partial(other._come_by, tick))

    def close(self, timeout: float | None = None) -> bool:
        self.abandon_capture()
        done = self._engine.stop(timeout)
        if (failure := self._engine.take_failure()) is not None:
            complain(f"{self._told(failure)}; nobody had waited for it")
        return done

    def check_usable(self) -> None:
        if self._engine.stopped:
            raise WrongState(f"{self._device}: queue {self.handle} was closed")

    def _check_signalled(self, tick: int) -> None:
        if index_of(tick, "tick") > self._engine.fences:
            raise WrongState(f"{self._device}: queue {self.handle} has signalled no tick {tick}")

    def _come_by(self, tick: int) -> None:
        if not self._engine.wait(tick):
            raise DeviceError("it waited for another queue, which was closed before it got there")

    def _told(self, failure: BaseException) -> DeviceError:
        message = f"{self._device}: work of queue {self.handle} failed with "
        message += f"{type(failure).__name__}: {failure}"
        return DeviceError(message, code=getattr(failure, "code", 0), device=self._device)

    # Timing

    def mark(self) -> Mark:
        if self.recording is not None:
            return CapturedMark(self.recording.signal(self))
        mark = AcmeMark()
        self.submit(mark.stamp)
        mark.tick = self.signal()
        return mark

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        moments = []
        for mark in (start, end):
            if not isinstance(mark, AcmeMark):
                raise TypeError(f"{type(mark).__name__} is no mark of an Acme queue")
            if not mark.moment:
                raise WrongState(f"{self._device}: a mark is not reached yet")
            moments.append(mark.moment)
        return (moments[1] - moments[0]) / 1e6

    # Launches and Randoms

    def call(self, function: Callable[[], object]) -> None:
        self._put("call", recorded_work.call(function))

    def call_native(self, function: int, argument: int) -> None:
        self._put("native", recorded_work.native(function, argument))

    def draw(self, draw: Draw) -> None:
        self._put("draw", recorded_work.draw(draw))

    # Captures: `Records` has its calls

    @property
    def capture(self) -> AcmeRecording | None:
        return self.recording

    def new_recording(self, mode: str, queues: MutableMapping[int, int]) -> AcmeRecording:
        return AcmeRecording(self, mode, queues)

    def refused(self, code: int, call: str) -> DeviceError:
        return accelerator_error(code, kind="mtia", call=call, device=self._device)


class AcmeMark:
    """A tick, and when it was reached, in nanoseconds; 0 until then."""

    def __init__(self) -> None:
        self.tick = 0
        self.moment = 0

    def stamp(self) -> None:
        self.moment = time.perf_counter_ns()
