"""Tests of the ability Shares, as far as one process can test it: shared memory and shared events."""

from __future__ import annotations

import os

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import Port, Shares
from forebay.testing.conformance.helpers import MIB, Scratch, drain, expect_memory, needs, needs_memory, read_back

__all__ = [
    "test_closed_port_rejects_share_and_make_mark",
    "test_each_segment_has_one_handle",
    "test_invalid_shared_handles_are_rejected",
    "test_queue_waits_for_shared_mark",
    "test_share_rejects_unreserved_addresses",
    "test_shared_marks_are_reached_in_queue_order",
    "test_sharing_preserves_data",
]


@needs(Shares)
def test_each_segment_has_one_handle(port: Port) -> None:
    assert isinstance(port, Shares)
    one, other = port.reserve(2 * MIB), port.reserve(2 * MIB)
    handle, offset = port.share(one)
    assert (len(handle), offset) == (64, 0)
    assert port.share(one + 100) == (handle, 100)
    assert port.share(other)[0] != handle
    port.release(one)
    port.release(other)


@needs(Shares)
@needs_memory
def test_sharing_preserves_data(port: Port) -> None:
    assert isinstance(port, Shares)
    data = os.urandom(3 * MIB + 5)
    scratch = Scratch(port, data)
    free = port.memory_info()
    port.share(scratch.address)
    expect_memory(port, free)
    queue = port.queue()
    assert read_back(queue, scratch) == data
    queue.fill(scratch.address, 1, 100)
    assert read_back(queue, scratch) == b"\1" * 100 + data[100:]
    port.release(scratch.address)


@needs(Shares)
def test_share_rejects_unreserved_addresses(port: Port) -> None:
    assert isinstance(port, Shares)
    address = port.reserve(2 * MIB)
    port.release(address)
    for unreserved in (address, 1 << 50):
        with pytest.raises(DeviceError):
            port.share(unreserved)


@needs(Shares)
def test_invalid_shared_handles_are_rejected(port: Port) -> None:
    assert isinstance(port, Shares)
    for handle in (bytes(64), os.urandom(64), b"short"):
        with pytest.raises(DeviceError):
            port.open_shared(handle)
        with pytest.raises(DeviceError):
            port.open_mark(handle)
    with pytest.raises(DeviceError):  # a handle of this process
        port.open_shared(port.share(port.reserve(2 * MIB))[0])
    with pytest.raises(DeviceError):
        port.open_mark(port.make_mark().handle)
    with pytest.raises(DeviceError):
        port.close_shared(port.reserve(2 * MIB))


@needs(Shares)
def test_shared_marks_are_reached_in_queue_order(port: Port) -> None:
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
def test_queue_waits_for_shared_mark(port: Port) -> None:
    assert isinstance(port, Shares)
    mark, one, other = port.make_mark(), port.queue(), port.queue()
    recording = mark.record(one)
    mark.wait_for(other, recording)
    drain(other)
    assert mark.reached(recording)
    mark.wait_for(other, 0)  # nothing to wait for
    drain(other)


@needs(Shares)
def test_closed_port_rejects_share_and_make_mark(port: Port) -> None:
    assert isinstance(port, Shares)
    address = port.reserve(2 * MIB)
    port.close()
    with pytest.raises(WrongState):
        port.share(address)
    with pytest.raises(WrongState):
        port.make_mark()
