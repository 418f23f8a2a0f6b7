"""Tests of the ability ExternalQueues. A queue of the port itself stands for one that another library created."""

from __future__ import annotations

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import ExternalQueues, Port
from forebay.testing.conformance.helpers import Scratch, drain, needs, needs_memory, read_back

__all__ = [
    "test_closed_external_queue_leaves_the_other_library_its_queue",
    "test_closed_port_rejects_external_queues",
    "test_device_wide_wait_includes_external_queues",
    "test_external_queue_is_ordered_with_its_creator",
    "test_external_queue_is_the_same_object_for_a_handle",
]


def _two(port: Port) -> tuple[int, ExternalQueues]:
    """Return the handle of a queue, and the port."""
    port.queue()  # the first queue has the handle 0, which denotes no queue of another library
    assert isinstance(port, ExternalQueues)
    return port.queue().handle, port


@needs(ExternalQueues)
def test_external_queue_is_the_same_object_for_a_handle(port: Port) -> None:
    handle, wrapping = _two(port)
    queue = wrapping.external_queue(handle)
    assert queue.handle == handle
    assert wrapping.external_queue(handle) is queue
    assert queue.close()
    again = wrapping.external_queue(handle)
    assert again is not queue
    drain(again)


@needs(ExternalQueues)
@needs_memory
def test_external_queue_is_ordered_with_its_creator(port: Port) -> None:
    port.queue()
    theirs, scratch = port.queue(), Scratch(port, bytes(64))
    assert isinstance(port, ExternalQueues)
    queue, last = port.external_queue(theirs.handle), port.queue()
    theirs.fill(scratch.address, 1, 64)
    queue.fill(scratch.address, 2, 32)
    theirs.fill(scratch.address, 3, 16)
    last.wait_for(queue, queue.signal())
    assert read_back(last, scratch) == b"\x03" * 16 + b"\x02" * 16 + b"\x01" * 32


@needs(ExternalQueues)
def test_device_wide_wait_includes_external_queues(port: Port) -> None:
    handle, wrapping = _two(port)
    queue = wrapping.external_queue(handle)
    tick = queue.signal()
    wrapping.synchronize()
    assert queue.reached() >= tick
    assert queue.idle()


@needs(ExternalQueues)
def test_closed_external_queue_leaves_the_other_library_its_queue(port: Port) -> None:
    port.queue()
    theirs = port.queue()
    assert isinstance(port, ExternalQueues)
    queue = port.external_queue(theirs.handle)
    tick = queue.signal()
    assert queue.close()
    assert queue.reached() >= tick
    with pytest.raises(WrongState):
        queue.signal()
    drain(theirs)


@needs(ExternalQueues)
def test_closed_port_rejects_external_queues(port: Port) -> None:
    handle, wrapping = _two(port)
    port.close()
    with pytest.raises((WrongState, DeviceError)):
        wrapping.external_queue(handle)
    with pytest.raises((WrongState, DeviceError)):
        wrapping.synchronize()
