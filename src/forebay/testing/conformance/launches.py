"""Tests of the ability Launches: host functions in queues, and the ordering and failures that they make observable."""

from __future__ import annotations

import threading
import time

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import Launches, Port, Queue, ReportsIdle
from forebay.testing.conformance.helpers import (
    MIB,
    Gate,
    NativeGate,
    Scratch,
    drain,
    libc_address,
    needs,
    needs_memory,
    read_back,
)

__all__ = [
    "test_blocked_queue_is_not_idle",
    "test_callables_run_in_order",
    "test_copies_progress_while_python_computes",
    "test_exception_in_callable_is_raised_once",
    "test_host_wait_does_not_block_other_threads",
    "test_invalid_functions_are_rejected",
    "test_native_function_error_is_raised_once",
    "test_port_close_completes_queued_work",
    "test_settled_port_has_neither_work_nor_failures",
    "test_waiting_queue_does_not_block_other_queues",
]


@needs(Launches)
def test_callables_run_in_order(port: Port) -> None:
    queue, seen = port.queue(), list[int]()
    assert isinstance(queue, Launches)
    for i in range(100):
        queue.call(lambda i=i: seen.append(i))  # type: ignore[misc]  # mypy does not see the default
    drain(queue)
    assert seen == list(range(100))


@needs(Launches)
def test_invalid_functions_are_rejected(port: Port) -> None:
    queue = port.queue()
    assert isinstance(queue, Launches)
    with pytest.raises(TypeError):
        queue.call(7)  # type: ignore[arg-type]  # deliberately invalid
    with pytest.raises(ValueError, match="function"):
        queue.call_native(0, 0)
    assert queue.idle()
    queue.close()
    with pytest.raises(WrongState):
        queue.call(print)
    with pytest.raises(WrongState):
        queue.call_native(libc_address("abs"), 0)


@needs(Launches)
def test_blocked_queue_is_not_idle(port: Port) -> None:
    queue, gate = port.queue(), Gate()
    assert isinstance(queue, Launches)
    queue.call(gate)
    tick = queue.signal()
    assert queue.reached() < tick
    assert not queue.idle()
    gate.open()
    queue.wait(tick)
    assert queue.idle()


@needs(Launches)
@needs_memory
def test_copies_progress_while_python_computes(port: Port) -> None:
    """A native gate blocks the work until Python is busy. The work then completes although Python never waits."""
    queue, gate = port.queue(), NativeGate()
    assert isinstance(queue, Launches)
    src, dst = Scratch(port, b"\x05" * 4 * MIB), Scratch(port, bytes(4 * MIB))
    queue.call_native(gate.function, gate.argument)
    queue.copy(dst.address, src.address, 4 * MIB)
    tick = queue.signal()
    assert queue.reached() < tick
    gate.open()
    limit = time.monotonic() + 20
    while queue.reached() < tick:
        assert sum(range(100)) == 4950
        assert time.monotonic() < limit
    assert read_back(queue, dst) == b"\x05" * 4 * MIB


@needs(Launches)
def test_waiting_queue_does_not_block_other_queues(port: Port) -> None:
    first, second, third, gate = port.queue(), port.queue(), port.queue(), Gate()
    assert isinstance(first, Launches)
    first.call(gate)
    tick = first.signal()
    second.wait_for(first, tick)
    blocked = second.signal()
    drain(third)
    assert second.reached() < blocked
    gate.open()
    second.wait(blocked)
    assert first.reached() == tick


@needs(Launches)
@needs_memory
def test_host_wait_does_not_block_other_threads(port: Port) -> None:
    queue, gate, waiting = port.queue(), NativeGate(), threading.Event()
    assert isinstance(queue, Launches)
    queue.call_native(gate.function, gate.argument)
    tick = queue.signal()

    def wait() -> None:
        waiting.set()
        queue.wait(tick)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(20)
    drain(port.queue())
    assert queue.reached() < tick
    gate.open()
    thread.join(20)
    assert not thread.is_alive()
    assert queue.reached() == tick


@needs(Launches)
def test_exception_in_callable_is_raised_once(port: Port) -> None:
    queue, error, later = port.queue(), LookupError("seven"), list[int]()

    def fail() -> None:
        raise error

    assert isinstance(queue, Launches)
    queue.call(fail)
    queue.call(lambda: later.append(1))
    raised = _failure(queue)
    assert raised.__cause__ is error
    assert "seven" in str(raised)
    assert later == [1]
    drain(queue)


@needs(Launches)
def test_native_function_error_is_raised_once(port: Port) -> None:
    queue = port.queue()
    assert isinstance(queue, Launches)
    queue.call_native(libc_address("abs"), 0)
    drain(queue)
    queue.call_native(libc_address("abs"), 7)
    assert _failure(queue).code == 7
    drain(queue)


@needs(Launches)
def test_port_close_completes_queued_work(port: Port) -> None:
    queues, seen = [port.queue() for _ in range(3)], list[int]()
    for queue in queues:
        assert isinstance(queue, Launches)
        queue.call(lambda: seen.append(1))
    port.close()
    assert seen == [1, 1, 1]


@needs(Launches, ReportsIdle)
def test_settled_port_has_neither_work_nor_failures(port: Port) -> None:
    assert isinstance(port, ReportsIdle)
    assert port.settled()
    queue, other, gate = port.queue(), port.queue(), Gate()
    assert isinstance(queue, Launches)
    queue.call(gate)
    assert not port.settled()
    gate.open()
    drain(queue)
    assert port.settled()
    queue.call_native(libc_address("abs"), 7)
    other.wait_for(queue, queue.signal())
    drain(other)
    assert not port.settled()
    assert _failure(queue).code == 7
    assert port.settled()


def _failure(queue: Queue) -> DeviceError:
    """Return the error that the next wait raises."""
    tick = queue.signal()
    with pytest.raises(DeviceError) as caught:
        queue.wait(tick)
    assert queue.reached() == tick
    return caught.value
