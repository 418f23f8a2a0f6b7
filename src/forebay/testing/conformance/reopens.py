"""Reopens: what a forked child may do with a device that its parent had opened."""

from __future__ import annotations

import pytest

from forebay.errors import Forked
from forebay.spi import Driver, Launches, Port, Reopens
from forebay.testing.conformance.scenes import MIB, Gate, drain, in_child, needs

__all__ = ["test_a_child_of_a_busy_process", "test_a_child_opens_the_device_anew", "test_an_abandoned_port_says_so"]


@needs(Reopens)
def test_an_abandoned_port_says_so(port: Port) -> None:
    queue, other, scratch = port.queue(), port.queue(), port.reserve(MIB)
    tick = queue.signal()
    queue.wait(tick)

    def check() -> None:
        assert isinstance(port, Reopens)
        port.abandon()
        for use in (
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
                use()
        queue.close()
        port.close()

    assert in_child(check) == ""
    drain(queue)


@needs(Reopens)
def test_a_child_opens_the_device_anew(port: Port, driver: Driver) -> None:
    queue, scratch = port.queue(), port.reserve(MIB)
    queue.fill(scratch, 1, MIB)
    drain(queue)

    def check() -> None:
        assert isinstance(port, Reopens)
        port.abandon()
        again = driver.open(port.props.index)
        assert again.memory_info()[0] == again.props.total_bytes
        fresh, memory = again.queue(), again.reserve(MIB)
        fresh.copy(memory, memory + MIB // 2, 64)
        drain(fresh)
        again.close()

    assert in_child(check) == ""
    drain(queue)


@needs(Reopens, Launches)
def test_a_child_of_a_busy_process(port: Port) -> None:
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

    told = in_child(check)
    gate.open()
    queue.wait(1)
    assert told == ""
