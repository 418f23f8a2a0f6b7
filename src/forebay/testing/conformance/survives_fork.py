"""Tests of the ability SurvivesFork: a forked child continues to use the port with its own copy of the memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from forebay.errors import DeviceError
from forebay.spi import Launches, Port, SurvivesFork, Timing
from forebay.testing.conformance.helpers import MIB, Gate, drain, needs, run_in_child

__all__ = [
    "test_child_completes_queued_work",
    "test_child_has_its_own_memory",
    "test_child_reports_work_that_was_pending",
    "test_grandchild_continues",
    "test_ticks_from_before_the_fork_are_reached",
    "test_work_completes_before_fork",
]


def _in_child(port: Port, check: Callable[[], None]) -> str:
    def continued() -> None:
        assert isinstance(port, SurvivesFork)
        port.after_fork_in_child()
        check()

    return run_in_child(continued)


@needs(SurvivesFork)
def test_child_completes_queued_work(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)
    queue.fill(scratch, 1, MIB)
    drain(queue)

    def check() -> None:
        new_queue, memory = port.queue(), port.reserve(MIB)
        assert new_queue.handle != queue.handle
        queue.fill(memory, 2, MIB)
        new_queue.wait_for(queue, queue.signal())
        new_queue.copy(memory, scratch, 64)
        drain(new_queue)
        if port.props.host_visible:
            assert ctypes.string_at(memory, 65) == b"\x01" * 64 + b"\x02"
        port.release(memory)
        port.release(scratch)
        port.close()

    assert _in_child(port, check) == ""
    drain(queue)


@needs(SurvivesFork)
def test_child_has_its_own_memory(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)
    queue.fill(scratch, 1, MIB)
    drain(queue)
    before = port.memory_info()

    def check() -> None:
        assert port.memory_info() == before
        queue.fill(scratch, 2, MIB)
        drain(queue)
        port.release(scratch)
        assert port.memory_info()[0] == before[0] + MIB

    assert _in_child(port, check) == ""
    assert port.memory_info() == before
    drain(queue)
    if port.props.host_visible:
        assert ctypes.string_at(scratch, 4) == b"\x01" * 4


@needs(SurvivesFork)
def test_ticks_from_before_the_fork_are_reached(port: Port) -> None:
    queue, other = port.queue(), port.queue()
    ticks = [queue.signal() for _ in range(3)]
    marks = [queue.mark(), queue.mark()] if isinstance(queue, Timing) else []
    drain(queue)

    def check() -> None:
        assert queue.idle()
        assert queue.reached() >= ticks[-1]
        queue.wait(ticks[-1])
        other.wait_for(queue, ticks[-1])
        assert queue.signal() > ticks[-1]
        if isinstance(queue, Timing):
            marks.append(queue.mark())
            queue.wait(marks[-1].tick)
            assert queue.elapsed_ms(marks[0], marks[1]) >= 0
            assert queue.elapsed_ms(marks[1], marks[2]) >= 0
        drain(other)

    assert _in_child(port, check) == ""


@needs(SurvivesFork, Launches)
def test_work_completes_before_fork(port: Port) -> None:
    queue, done = port.queue(), list[int]()
    assert isinstance(queue, Launches)
    assert isinstance(port, SurvivesFork)
    for i in range(100):
        queue.call(lambda i=i: done.append(i))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    port.before_fork(20)
    if not queue.idle():  # a backend whose work runs on request
        pytest.skip("work runs only when the host waits for it")
    assert done == list(range(100))


@needs(SurvivesFork, Launches)
def test_child_reports_work_that_was_pending(port: Port) -> None:
    queue, other, gate, done = port.queue(), port.queue(), Gate(), list[int]()
    assert isinstance(queue, Launches)
    assert isinstance(port, SurvivesFork)
    queue.call(gate)
    queue.call(lambda: done.append(1))
    tick = queue.signal()
    port.before_fork(0.01)

    def check() -> None:
        assert isinstance(port, SurvivesFork)
        port.after_fork_in_child()
        assert queue.idle()
        with pytest.raises(DeviceError, match="was pending when this process was forked"):
            queue.wait(tick)
        queue.wait(tick)  # each failure is raised once
        drain(other)
        drain(queue)
        assert not done
        port.close()

    failure = run_in_child(check)
    gate.open()
    queue.wait(tick)
    assert failure == ""
    assert done == [1]


@needs(SurvivesFork)
def test_grandchild_continues(port: Port) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)

    def use() -> None:
        queue.fill(scratch, 1, MIB)
        drain(queue)

    def check() -> None:
        use()
        assert _in_child(port, use) == ""
        use()

    assert _in_child(port, check) == ""
    use()
