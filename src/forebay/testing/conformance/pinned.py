"""PinnedHost: host memory that queues copy from and to without the host waiting."""

from __future__ import annotations

import ctypes

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import PinnedHost, Port
from forebay.testing.conformance.scenes import BAD_SIZES, drain, needs, not_imaginary

__all__ = [
    "test_a_closed_port_pins_nothing",
    "test_a_refused_pin_size",
    "test_only_what_pin_gave_is_unpinned",
    "test_pinned_memory_goes_there_and_back",
    "test_pinned_memory_is_not_the_devices",
]

_SIZE = 16 << 10  # small: some systems allow little


@needs(PinnedHost)
def test_pinned_memory_is_not_the_devices(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    before = port.memory_info()
    address = port.pin(_SIZE)
    assert port.memory_info() == before
    with pytest.raises(DeviceError):
        port.release(address)
    port.unpin(address)


@needs(PinnedHost)
@not_imaginary
def test_pinned_memory_goes_there_and_back(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    queue, memory = port.queue(), port.reserve(_SIZE)
    there, back = port.pin(_SIZE), port.pin(_SIZE)
    ctypes.memset(there, 0x2A, _SIZE)
    queue.copy(memory, there, _SIZE)
    queue.copy(back, memory, _SIZE)
    drain(queue)
    assert ctypes.string_at(back, _SIZE) == b"\x2a" * _SIZE


@needs(PinnedHost)
def test_only_what_pin_gave_is_unpinned(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    address, memory = port.pin(_SIZE), port.reserve(_SIZE)
    port.unpin(address)
    for foreign in (address, memory, 0):
        with pytest.raises(DeviceError):
            port.unpin(foreign)


@needs(PinnedHost)
def test_a_refused_pin_size(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    for nbytes in BAD_SIZES:
        with pytest.raises((ValueError, TypeError)):
            port.pin(nbytes)


@needs(PinnedHost)
def test_a_closed_port_pins_nothing(port: Port) -> None:
    assert isinstance(port, PinnedHost)
    port.pin(_SIZE)
    port.close()
    with pytest.raises(WrongState):
        port.pin(_SIZE)
