"""Tests of the ability IdentifiesMemory."""

from __future__ import annotations

import ctypes

from forebay.spi import IdentifiesMemory, PinnedHost, Port
from forebay.testing.conformance.helpers import MIB, needs

__all__ = ["test_memory_of_a_device_is_identified_and_that_of_the_host_is_not"]


@needs(IdentifiesMemory)
def test_memory_of_a_device_is_identified_and_that_of_the_host_is_not(port: Port) -> None:
    assert isinstance(port, IdentifiesMemory)
    segment, host = port.reserve(2 * MIB), ctypes.create_string_buffer(64)
    for address in (segment, segment + 2 * MIB - 1):
        assert port.memory_device(address) == port.props.index
    assert port.memory_device(ctypes.addressof(host)) is None
    if isinstance(port, PinnedHost):
        pinned = port.pin(4096)
        assert port.memory_device(pinned) == port.props.index
        port.unpin(pinned)
    port.release(segment)
