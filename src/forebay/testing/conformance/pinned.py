"""Tests of the ability PinnedHost: page-locked host memory."""

from __future__ import annotations

import ctypes

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import PinnedHost, Port
from forebay.testing.conformance.helpers import BAD_SIZES, drain, expect_memory, needs, needs_memory

__all__ = [
    "test_closed_port_rejects_pin",
    "test_pin_rejects_invalid_sizes",
    "test_pinned_memory_is_not_counted_as_device_memory",
    "test_pinned_memory_round_trip",
    "test_unpin_rejects_addresses_not_pinned",
]

_SIZE = 16 << 10  # small: some systems limit locked memory


@needs(PinnedHost)
def test_pinned_memory_is_not_counted_as_device_memory(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    before = port.memory_info()
    address = port.pin(_SIZE)
    expect_memory(port, before)
    with pytest.raises(DeviceError):
        port.release(address)
    port.unpin(address)


@needs(PinnedHost)
@needs_memory
def test_pinned_memory_round_trip(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    queue, memory = port.queue(), port.reserve(_SIZE)
    source, target = port.pin(_SIZE), port.pin(_SIZE)
    ctypes.memset(source, 0x2A, _SIZE)
    queue.copy(memory, source, _SIZE)
    queue.copy(target, memory, _SIZE)
    drain(queue)
    assert ctypes.string_at(target, _SIZE) == b"\x2a" * _SIZE


@needs(PinnedHost)
def test_unpin_rejects_addresses_not_pinned(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    address, memory = port.pin(_SIZE), port.reserve(_SIZE)
    port.unpin(address)
    for unpinned in (address, memory, 0):
        with pytest.raises(DeviceError):
            port.unpin(unpinned)


@needs(PinnedHost)
def test_pin_rejects_invalid_sizes(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    for nbytes in BAD_SIZES:
        with pytest.raises((ValueError, TypeError)):
            port.pin(nbytes)


@needs(PinnedHost)
def test_closed_port_rejects_pin(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    port.pin(_SIZE)
    port.close()
    with pytest.raises(WrongState):
        port.pin(_SIZE)
