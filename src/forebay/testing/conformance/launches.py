"""Launches: host functions among the work, what they make provable, and how their failures are told."""

from __future__ import annotations

import threading
import time

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import Launches, Port, Queue
from forebay.testing.conformance.scenes import (
    MIB,
    Gate,
    NativeGate,
    Scratch,
    drain,
    native,
    needs,
    not_imaginary,
    read,
)

__all__ = [
    "test_a_callable_that_raises_is_told_once",
    "test_a_host_wait_lets_other_threads_go_on",
    "test_a_native_function_that_fails_is_told_once",
    "test_a_queue_behind_a_gate_is_not_idle",
    "test_a_waiting_queue_does_not_hold_up_others",
    "test_callables_run_in_order",
    "test_closing_a_port_runs_what_is_queued",
    "test_copies_go_on_while_python_computes",
    "test_what_cannot_be_called_is_refused",
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
def test_what_cannot_be_called_is_refused(port: Port) -> None:
    queue = port.queue()
    assert isinstance(queue, Launches)
    with pytest.raises(TypeError):
        queue.call(7)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match="function"):
        queue.call_native(0, 0)
    assert queue.idle()
    queue.close()
    with pytest.raises(WrongState):
        queue.call(print)
    with pytest.raises(WrongState):
        queue.call_native(native("abs"), 0)


@needs(Launches)
def test_a_queue_behind_a_gate_is_not_idle(port: Port) -> None:
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
@not_imaginary
def test_copies_go_on_while_python_computes(port: Port) -> None:
    """The work is held by a native gate until Python is surely busy; then it is done although Python never waits."""
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
    assert read(queue, dst) == b"\x05" * 4 * MIB


@needs(Launches)
def test_a_waiting_queue_does_not_hold_up_others(port: Port) -> None:
    first, second, third, gate = port.queue(), port.queue(), port.queue(), Gate()
    assert isinstance(first, Launches)
    first.call(gate)
    tick = first.signal()
    second.wait_for(first, tick)
    behind = second.signal()
    drain(third)
    assert second.reached() < behind
    gate.open()
    second.wait(behind)
    assert first.reached() == tick


@needs(Launches)
@not_imaginary
def test_a_host_wait_lets_other_threads_go_on(port: Port) -> None:
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
def test_a_callable_that_raises_is_told_once(port: Port) -> None:
    queue, error, later = port.queue(), LookupError("seven"), list[int]()

    def fail() -> None:
        raise error

    assert isinstance(queue, Launches)
    queue.call(fail)
    queue.call(lambda: later.append(1))
    told = _failure(queue)
    assert told.__cause__ is error
    assert "seven" in str(told)
    assert later == [1]
    drain(queue)


@needs(Launches)
def test_a_native_function_that_fails_is_told_once(port: Port) -> None:
    queue = port.queue()
    assert isinstance(queue, Launches)
    queue.call_native(native("abs"), 0)
    drain(queue)
    queue.call_native(native("abs"), 7)
    assert _failure(queue).code == 7
    drain(queue)


@needs(Launches)
def test_closing_a_port_runs_what_is_queued(port: Port) -> None:
    queues, seen = [port.queue() for _ in range(3)], list[int]()
    for queue in queues:
        assert isinstance(queue, Launches)
        queue.call(lambda: seen.append(1))
    port.close()
    assert seen == [1, 1, 1]


def _failure(queue: Queue) -> DeviceError:
    tick = queue.signal()
    with pytest.raises(DeviceError) as caught:
        queue.wait(tick)
    assert queue.reached() == tick
    return caught.value
