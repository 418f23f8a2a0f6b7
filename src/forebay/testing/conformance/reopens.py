"""Tests of the ability Reopens: a forked child abandons the port of its parent and reopens the device."""

from __future__ import annotations

import pytest

from forebay.errors import Forked
from forebay.spi import Driver, Launches, Port, Reopens
from forebay.testing.conformance.helpers import MIB, Gate, drain, needs, run_in_child

__all__ = [
    "test_abandoned_port_raises_forked",
    "test_child_abandons_port_with_pending_work",
    "test_child_reopens_device",
]


@needs(Reopens)
def test_abandoned_port_raises_forked(port: Port) -> None:
    queue, other, scratch = port.queue(), port.queue(), port.reserve(MIB)
    tick = queue.signal()
    queue.wait(tick)

    def check() -> None:
        assert isinstance(port, Reopens)
        port.abandon()
        for call in (
            lambda: port.reserve(MIB),
            lambda: port.release(scratch),
            port.memory_info,
            port.queue,
            lambda: queue.fill(scratch, 1, 8),
            queue.signal,
            lambda: queue.wait(tick + 1),
            lambda: queue.wait_for(other, 0),
        ):
            with pytest.raises(Forked):
                call()
        queue.close()
        port.close()

    assert run_in_child(check) == ""
    drain(queue)


@needs(Reopens)
def test_child_reopens_device(port: Port, driver: Driver) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)
    queue.fill(scratch, 1, MIB)
    drain(queue)

    def check() -> None:
        assert isinstance(port, Reopens)
        port.abandon()
        reopened = driver.open(port.props.index)
        assert reopened.memory_info()[0] == reopened.props.total_bytes
        new_queue, memory = reopened.queue(), reopened.reserve(MIB)
        new_queue.copy(memory, memory + MIB // 2, 64)
        drain(new_queue)
        reopened.close()

    assert run_in_child(check) == ""
    drain(queue)


@needs(Reopens, Launches)
def test_child_abandons_port_with_pending_work(port: Port) -> None:
    queue, gate = port.queue(), Gate()
    assert isinstance(queue, Launches)
    queue.call(gate)
    queue.signal()

    def check() -> None:
        assert isinstance(port, Reopens)
        port.abandon()
        with pytest.raises(Forked):
            queue.wait(1)
        queue.close()
        port.close()

    failure = run_in_child(check)
    gate.open()
    queue.wait(1)
    assert failure == ""
