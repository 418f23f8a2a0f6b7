"""Timing: ticks whose moment is kept."""

from __future__ import annotations

import threading
import time

import pytest

from forebay.errors import WrongState
from forebay.spi import Launches, Logs, Port, Timing
from forebay.testing.conformance.scenes import MIB, Gate, drain, needs, not_imaginary

__all__ = [
    "test_a_log_knows_what_is_not_done_yet",
    "test_a_log_knows_when_work_ran",
    "test_a_mark_is_a_tick",
    "test_marks_of_different_queues_compare",
    "test_time_is_in_milliseconds",
    "test_time_passes_between_marks",
    "test_time_up_to_a_mark_not_reached_is_refused",
]

_LIMIT = 20  # seconds
_BUSY = 0.005


@needs(Timing)
def test_a_mark_is_a_tick(port: Port) -> None:
    queue = port.queue()
    assert isinstance(queue, Timing)
    assert [queue.signal(), queue.mark().tick, queue.signal()] == [1, 2, 3]
    queue.wait(2)
    assert queue.reached() >= 2


@needs(Timing)
def test_time_passes_between_marks(port: Port) -> None:
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
@not_imaginary
def test_time_is_in_milliseconds(port: Port) -> None:
    """More than a function's between two marks, and less than the host's around them."""
    queue, took = port.queue(), list[float]()
    assert isinstance(queue, Timing)
    assert isinstance(queue, Launches)
    queue.wait(queue.signal())

    def work() -> None:
        since = time.perf_counter()
        while time.perf_counter() - since < _BUSY:
            pass
        took.append(time.perf_counter() - since)

    since = time.perf_counter()
    start = queue.mark()
    queue.call(work)
    end = queue.mark()
    queue.wait(end.tick)
    most = time.perf_counter() - since
    assert took[0] * 0.9 < queue.elapsed_ms(start, end) / 1000 < most * 1.1  # clocks may differ a little


@needs(Timing)
def test_marks_of_different_queues_compare(port: Port) -> None:
    first, second = port.queue(), port.queue()
    assert isinstance(first, Timing)
    assert isinstance(second, Timing)
    start = first.mark()
    second.wait_for(first, start.tick)
    end = second.mark()
    drain(second)
    assert first.elapsed_ms(start, end) == second.elapsed_ms(start, end) >= 0


@needs(Timing, Launches)
def test_time_up_to_a_mark_not_reached_is_refused(port: Port) -> None:
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


@needs(Logs)
def test_a_log_knows_when_work_ran(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(16 * MIB)
    assert isinstance(queue, Logs)
    queue.fill(scratch, 1, 16 * MIB)
    before, log, short = queue.given(), queue.log(10), queue.log(1)
    asked = time.perf_counter_ns()
    for byte in (2, 3):
        queue.fill(scratch, byte, 16 * MIB)
        queue.wait(queue.signal())
    after = time.perf_counter_ns()
    assert queue.given() == before + 2
    times = [*log(before + 1), *log(before + 2)]
    assert [asked, *times, after] == sorted([asked, *times, after])
    assert times[1] > times[0] > 0
    assert log(before + 3) == (0, 0)
    assert (short(before + 1), short(before + 2)) == ((0, 0), log(before + 2))
    queue.close()
    assert [*log(before + 1), *log(before + 2)] == times


@needs(Logs, Launches)
def test_a_log_knows_what_is_not_done_yet(port: Port) -> None:
    queue, gate, entered = port.queue(), Gate(), threading.Event()
    assert isinstance(queue, Logs)
    assert isinstance(queue, Launches)
    log = queue.log(10)

    def work() -> None:
        entered.set()
        gate()

    queue.call(work)
    number = queue.given()
    assert entered.wait(_LIMIT)
    begun, ended = log(number)
    assert begun > 0 == ended
    gate.open()
    queue.wait(queue.signal())
    assert log(number)[1] > begun
