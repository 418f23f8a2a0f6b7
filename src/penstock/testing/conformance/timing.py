"""Timing: ticks whose moment is kept."""

from __future__ import annotations

import time

import pytest

from penstock.errors import WrongState
from penstock.spi import Beginnings, Launches, Port, Timing
from penstock.testing.conformance.scenes import MIB, Gate, drain, needs

__all__ = [
    "test_a_mark_is_a_tick",
    "test_marks_of_different_queues_compare",
    "test_time_passes_between_marks",
    "test_time_up_to_a_mark_not_reached_is_refused",
    "test_when_work_was_taken_up_is_known",
]


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


@needs(Timing, Beginnings)
def test_when_work_was_taken_up_is_known(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(16 * MIB)
    assert isinstance(queue, Timing)
    assert isinstance(queue, Beginnings)
    before = queue.mark()
    queue.wait(before.tick)
    while not queue.idle():
        pass
    asked = time.perf_counter()
    queue.fill(scratch, 1, 16 * MIB)
    end = queue.mark()
    queue.wait(end.tick)
    waited = (time.perf_counter() - asked) * 1e3
    assert 0 <= queue.taken_up_ms(before, end) <= queue.elapsed_ms(before, end)
    assert queue.elapsed_ms(before, end) - queue.taken_up_ms(before, end) <= waited
