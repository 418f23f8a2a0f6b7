"""Shares: memory and events of several processes, as far as one process sees of it."""

from __future__ import annotations

import os

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import Port, Shares
from forebay.testing.conformance.scenes import MIB, Scratch, drain, needs, not_imaginary, read

__all__ = [
    "test_a_closed_port_shares_nothing",
    "test_a_made_up_handle_opens_nothing",
    "test_a_mark_is_reached_in_its_queues_order",
    "test_a_queue_waits_for_a_mark",
    "test_one_segment_has_one_handle",
    "test_only_reserved_memory_is_shared",
    "test_shared_memory_keeps_what_is_in_it",
]


@needs(Shares)
def test_one_segment_has_one_handle(port: Port) -> None:
    assert isinstance(port, Shares)
    one, other = port.reserve(2 * MIB), port.reserve(2 * MIB)
    handle, offset = port.share(one)
    assert (len(handle), offset) == (64, 0)
    assert port.share(one + 100) == (handle, 100)
    assert port.share(other)[0] != handle
    port.release(one)
    port.release(other)


@needs(Shares)
@not_imaginary
def test_shared_memory_keeps_what_is_in_it(port: Port) -> None:
    assert isinstance(port, Shares)
    data = os.urandom(3 * MIB + 5)
    scratch = Scratch(port, data)
    free = port.memory_info()
    port.share(scratch.address)
    assert port.memory_info() == free
    queue = port.queue()
    assert read(queue, scratch) == data
    queue.fill(scratch.address, 1, 100)
    assert read(queue, scratch) == b"\1" * 100 + data[100:]
    port.release(scratch.address)


@needs(Shares)
def test_only_reserved_memory_is_shared(port: Port) -> None:
    assert isinstance(port, Shares)
    address = port.reserve(2 * MIB)
    port.release(address)
    for foreign in (address, 1 << 50):
        with pytest.raises(DeviceError):
            port.share(foreign)


@needs(Shares)
def test_a_made_up_handle_opens_nothing(port: Port) -> None:
    assert isinstance(port, Shares)
    for handle in (bytes(64), os.urandom(64), b"short"):
        with pytest.raises(DeviceError):
            port.open_shared(handle)
        with pytest.raises(DeviceError):
            port.open_mark(handle)
    with pytest.raises(DeviceError):  # one's own
        port.open_shared(port.share(port.reserve(2 * MIB))[0])
    with pytest.raises(DeviceError):
        port.open_mark(port.make_mark().handle)
    with pytest.raises(DeviceError):
        port.close_shared(port.reserve(2 * MIB))


@needs(Shares)
def test_a_mark_is_reached_in_its_queues_order(port: Port) -> None:
    assert isinstance(port, Shares)
    mark, queue = port.make_mark(), port.queue()
    assert len(mark.handle) == 64
    assert mark.last() == 0
    first = mark.record(queue)
    second = mark.record(queue)
    assert mark.last() == second != first
    drain(queue)
    assert mark.reached(first)
    assert mark.reached(second)
    mark.wait(second)


@needs(Shares)
def test_a_queue_waits_for_a_mark(port: Port) -> None:
    assert isinstance(port, Shares)
    mark, one, other = port.make_mark(), port.queue(), port.queue()
    word = mark.record(one)
    mark.wait_for(other, word)
    drain(other)
    assert mark.reached(word)
    mark.wait_for(other, 0)  # nothing to wait for
    drain(other)


@needs(Shares)
def test_a_closed_port_shares_nothing(port: Port) -> None:
    assert isinstance(port, Shares)
    address = port.reserve(2 * MIB)
    port.close()
    with pytest.raises(WrongState):
        port.share(address)
    with pytest.raises(WrongState):
        port.make_mark()
