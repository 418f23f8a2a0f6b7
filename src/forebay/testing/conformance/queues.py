"""Tests of Queue: order, ticks, waits, close."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from forebay.errors import WrongState
from forebay.spi import Port
from forebay.testing.conformance.helpers import BAD_SIZES, MIB, Scratch, drain, needs_memory, read_back

__all__ = [
    "test_chain_of_many_queues_completes",
    "test_closed_queue_rejects_work",
    "test_copy_and_fill_reject_invalid_arguments",
    "test_new_queue_is_idle",
    "test_overlapping_copies_are_correct",
    "test_queue_accepts_any_priority",
    "test_queue_close_completes_queued_work",
    "test_queue_handles_are_unique",
    "test_queue_is_idle_after_last_tick",
    "test_queue_progresses_without_host_waits",
    "test_queue_waits_for_another_queue",
    "test_queues_wait_for_each_other_alternately",
    "test_ticks_count_from_one",
    "test_two_threads_share_a_queue",
    "test_waiting_for_unsignalled_tick_raises",
    "test_work_runs_in_order",
]

_KIB = 1 << 10


def test_queue_handles_are_unique(port: Port) -> None:
    queues = [port.queue() for _ in range(4)]
    queues[2].close()
    queues.append(port.queue())
    assert queues[0].handle == 0
    assert len({queue.handle for queue in queues}) == 5


def test_queue_accepts_any_priority(port: Port) -> None:
    for priority in (-1000, -1, 0, 1, 1000):
        drain(port.queue(priority))


def test_new_queue_is_idle(port: Port) -> None:
    queue = port.queue()
    assert queue.reached() == 0
    assert queue.idle()
    queue.wait(0)
    assert queue.close()


def test_ticks_count_from_one(port: Port) -> None:
    queue = port.queue()
    assert [queue.signal() for _ in range(5)] == [1, 2, 3, 4, 5]
    queue.wait(3)
    assert queue.reached() >= 3
    queue.wait(5)
    assert queue.reached() == 5


def test_queue_is_idle_after_last_tick(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)
    for _ in range(100):
        queue.fill(scratch, 7, MIB)
        drain(queue)
        assert queue.idle()


@needs_memory
def test_work_runs_in_order(port: Port) -> None:
    queue, scratch = port.queue(), Scratch(port, bytes(_KIB))
    for i in range(200):
        queue.fill(scratch.address, i, _KIB)
        queue.copy(scratch.address + _KIB // 2, scratch.address, _KIB // 4)
        queue.fill(scratch.address, 255 - i, _KIB // 4)
    quarter = _KIB // 4
    assert read_back(queue, scratch) == bytes([56]) * quarter + bytes([199]) * 3 * quarter


@needs_memory
def test_overlapping_copies_are_correct(port: Port) -> None:
    data = bytes(range(200))
    queue, scratch = port.queue(), Scratch(port, data)
    queue.copy(scratch.address + 3, scratch.address, 150)
    assert read_back(queue, scratch) == data[:3] + data[:150] + data[153:]
    queue.copy(scratch.address, scratch.address + 3, 150)
    assert read_back(queue, scratch) == data[:150] + data[147:150] + data[153:]


@needs_memory
def test_queue_progresses_without_host_waits(port: Port) -> None:
    """The host polls and never waits."""
    queue, scratch = port.queue(), port.reserve(16 * MIB)
    queue.fill(scratch, 1, 16 * MIB)
    tick, limit = queue.signal(), time.monotonic() + 20
    while queue.reached() < tick:
        assert time.monotonic() < limit
    assert queue.idle()


@needs_memory
def test_queue_waits_for_another_queue(port: Port) -> None:
    first, second = port.queue(), port.queue()
    src, dst = Scratch(port, b"\x00" * 16 * MIB), Scratch(port, bytes(16 * MIB))
    first.fill(src.address, 7, 16 * MIB)
    second.wait_for(first, first.signal())
    second.copy(dst.address, src.address, 16 * MIB)
    assert read_back(second, dst) == b"\x07" * 16 * MIB


def test_queues_wait_for_each_other_alternately(port: Port) -> None:
    first, second = port.queue(), port.queue()
    tick = second.signal()
    for _ in range(200):
        first.wait_for(second, tick)
        second.wait_for(first, first.signal())
        second.wait_for(second, tick)  # a reached tick of the queue itself: no effect
        tick = second.signal()
    second.wait(tick)
    assert first.reached() == 200


def test_waiting_for_unsignalled_tick_raises(port: Port) -> None:
    first, second = port.queue(), port.queue()
    tick = first.signal()
    with pytest.raises(WrongState):
        first.wait(tick + 1)
    with pytest.raises(WrongState):
        second.wait_for(first, tick + 1)
    second.wait_for(first, tick)
    drain(second)
    assert first.reached() == tick


def test_chain_of_many_queues_completes(port: Port) -> None:
    queues = [port.queue() for _ in range(64)]
    queues[0].signal()
    for before, queue in pairwise(queues):
        queue.wait_for(before, 1)
        queue.signal()
    queues[-1].wait(1)
    assert [queue.reached() for queue in queues] == [1] * 64
    for queue in queues:
        assert queue.close()


def test_two_threads_share_a_queue(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)

    def work(byte: int) -> list[int]:
        ticks = []
        for _ in range(300):
            queue.fill(scratch, byte, 64)
            ticks.append(queue.signal())
        queue.wait(ticks[-1])
        return ticks

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, (1, 2))
    assert sorted(first + second) == list(range(1, 601))
    assert first == sorted(first)


@pytest.mark.parametrize("nbytes", BAD_SIZES)
def test_copy_and_fill_reject_invalid_arguments(port: Port, nbytes: int) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)
    wrong: list[tuple[Any, ...]] = [(scratch, scratch, nbytes), (0, scratch, 8), (scratch, 0, 8), (None, scratch, 8)]
    for arguments in wrong:
        with pytest.raises((ValueError, TypeError)):
            queue.copy(*arguments)
    wrong = [(scratch, 0, nbytes), (0, 0, 8), (scratch, 256, 8), (scratch, -1, 8), (scratch, "x", 8)]
    for arguments in wrong:
        with pytest.raises((ValueError, TypeError)):
            queue.fill(*arguments)
    assert queue.idle()
    assert queue.signal() == 1
    queue.wait(1)


@needs_memory
def test_queue_close_completes_queued_work(port: Port) -> None:
    queue, scratch = port.queue(), Scratch(port, bytes(8 * MIB))
    queue.fill(scratch.address, 9, 8 * MIB)
    tick = queue.signal()
    assert queue.close()
    assert queue.reached() == tick
    assert read_back(port.queue(), scratch) == b"\x09" * 8 * MIB


def test_closed_queue_rejects_work(port: Port) -> None:
    queue, other, scratch = port.queue(), port.queue(), port.reserve(MIB)
    tick = queue.signal()
    assert queue.close()
    assert queue.close()
    for work in (
        lambda: queue.copy(scratch, scratch + 8, 8),
        lambda: queue.fill(scratch, 0, 8),
        queue.signal,
        lambda: queue.wait_for(other, 0),
        lambda: queue.wait(tick + 1),
    ):
        with pytest.raises(WrongState):
            work()
    queue.wait(tick)
    other.wait_for(queue, tick)
    drain(other)
