"""Tests of the abilities Timing and ExecutionLog: timestamps of ticks, start and end times of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from forebay.errors import WrongState
from forebay.spi import ExecutionLog, Launches, Port, Timing
from forebay.testing.conformance.helpers import MIB, Gate, drain, needs, needs_memory

__all__ = [
    "test_elapsed_time_between_queues",
    "test_elapsed_time_is_in_milliseconds",
    "test_elapsed_time_is_positive_and_antisymmetric",
    "test_elapsed_time_to_unreached_mark_raises",
    "test_log_reports_running_work",
    "test_log_reports_start_and_end_of_work",
    "test_mark_is_a_tick",
]

_Span = tuple[int, int]  # beginning and end, in nanoseconds
_LIMIT = 20  # seconds
_BUSY = 0.005  # seconds
_CLOCKS = 50_000  # nanoseconds by which the clocks of a device and of the host may differ


@needs(Timing)
def test_mark_is_a_tick(port: Port) -> None:
    queue = port.queue()
    assert isinstance(queue, Timing)
    assert [queue.signal(), queue.mark().tick, queue.signal()] == [1, 2, 3]
    queue.wait(2)
    assert queue.reached() >= 2


@needs(Timing)
def test_elapsed_time_is_positive_and_antisymmetric(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(16 * MIB)
    assert isinstance(queue, Timing)
    start = queue.mark()
    queue.fill(scratch, 1, 16 * MIB)
    end = queue.mark()
    queue.wait(end.tick)
    elapsed = queue.elapsed_ms(start, end)
    assert 0 < elapsed < 60_000
    assert queue.elapsed_ms(end, start) == -elapsed
    assert queue.elapsed_ms(start, start) == 0


@needs(Timing, Launches)
@needs_memory
def test_elapsed_time_is_in_milliseconds(port: Port) -> None:
    """The elapsed time lies between the duration of the function between the marks and the time the host measures."""
    queue, durations = port.queue(), list[float]()
    assert isinstance(queue, Timing)
    assert isinstance(queue, Launches)
    queue.wait(queue.signal())

    def work() -> None:
        since = time.perf_counter()
        while time.perf_counter() - since < _BUSY:
            pass
        durations.append(time.perf_counter() - since)

    since = time.perf_counter()
    start = queue.mark()
    queue.call(work)
    end = queue.mark()
    queue.wait(end.tick)
    upper_bound = time.perf_counter() - since
    assert (
        durations[0] * 0.9 < queue.elapsed_ms(start, end) / 1000 < upper_bound * 1.1
    )  # tolerance for different clocks


@needs(Timing)
def test_elapsed_time_between_queues(port: Port) -> None:
    first, second = port.queue(), port.queue()
    assert isinstance(first, Timing)
    assert isinstance(second, Timing)
    start = first.mark()
    second.wait_for(first, start.tick)
    end = second.mark()
    drain(second)
    assert first.elapsed_ms(start, end) == second.elapsed_ms(start, end) >= 0


@needs(Timing, Launches)
def test_elapsed_time_to_unreached_mark_raises(port: Port) -> None:
    queue, gate = port.queue(), Gate()
    assert isinstance(queue, Timing)
    assert isinstance(queue, Launches)
    start = queue.mark()
    queue.wait(start.tick)
    queue.call(gate)
    end = queue.mark()
    with pytest.raises(WrongState):
        queue.elapsed_ms(start, end)
    gate.open()
    queue.wait(end.tick)
    assert queue.elapsed_ms(start, end) >= 0


def _complete(log: Callable[[list[int]], Sequence[_Span]], numbers: list[int], ended: int) -> Sequence[_Span]:
    """Return a log once its first entries are complete: a driver may report work a moment after its end."""
    end, spans = time.monotonic() + 1.0, log(numbers)
    while (0, 0) in spans[:ended] and time.monotonic() < end:
        time.sleep(0.001)
        spans = log(numbers)
    return spans


@needs(ExecutionLog)
def test_log_reports_start_and_end_of_work(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(16 * MIB)
    assert isinstance(queue, ExecutionLog)
    queue.fill(scratch, 1, 16 * MIB)
    before, log, short_log = queue.last_work_number(), queue.log(10), queue.log(1)
    start = time.perf_counter_ns()
    for byte in (2, 3):
        queue.fill(scratch, byte, 16 * MIB)
        queue.wait(queue.signal())
    after = time.perf_counter_ns()
    assert queue.last_work_number() == before + 2
    first, second, future = _complete(log, [before + 1, before + 2, before + 3], ended=2)
    times = [*first, *second]
    assert times == sorted(times)
    assert start - _CLOCKS <= times[0] < times[1] <= times[-1] <= after + _CLOCKS
    assert future == (0, 0)
    assert short_log([before + 1, before + 2]) == [(0, 0), second]
    queue.close()
    assert log([before + 2, before + 1]) == [second, first]


@needs(ExecutionLog, Launches)
def test_log_reports_running_work(port: Port) -> None:
    queue, gate, entered = port.queue(), Gate(), threading.Event()
    assert isinstance(queue, ExecutionLog)
    assert isinstance(queue, Launches)
    log = queue.log(10)

    def work() -> None:
        entered.set()
        gate()

    queue.call(work)
    number = queue.last_work_number()
    assert entered.wait(_LIMIT)
    ((begun, ended),) = log([number])
    assert begun > 0 == ended
    gate.open()
    queue.wait(queue.signal())
    assert log([number])[0][1] > begun
