"""Tests of the ability Resizable: an exact, settable capacity."""

from __future__ import annotations

import pytest

from forebay.errors import OutOfMemory, WrongState
from forebay.spi import Port, Resizable
from forebay.testing.conformance.helpers import BAD_SIZES, MIB, needs

__all__ = [
    "test_capacity_is_exact",
    "test_set_capacity_below_reserved_memory_raises",
    "test_set_capacity_rejects_invalid_sizes",
]


@needs(Resizable)
def test_capacity_is_exact(port: Port) -> None:
    assert isinstance(port, Resizable)
    port.set_capacity(10 * MIB)
    assert port.memory_info() == (10 * MIB, 10 * MIB)
    addresses = [port.reserve(4 * MIB), port.reserve(4 * MIB), port.reserve(2 * MIB)]
    assert port.memory_info() == (0, 10 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        port.reserve(1)
    error = caught.value
    assert (error.wanted, error.free, error.reserved, error.capacity) == (1, 0, 10 * MIB, 10 * MIB)
    port.release(addresses[1])
    port.reserve(4 * MIB)
    port.set_capacity(11 * MIB)
    port.reserve(MIB)
    assert port.memory_info() == (0, 11 * MIB)


@needs(Resizable)
def test_set_capacity_below_reserved_memory_raises(port: Port) -> None:
    assert isinstance(port, Resizable)
    port.reserve(4 * MIB)
    before = port.memory_info()
    with pytest.raises(WrongState):
        port.set_capacity(4 * MIB - 1)
    assert port.memory_info() == before
    port.set_capacity(4 * MIB)
    assert port.memory_info() == (0, 4 * MIB)


@needs(Resizable)
def test_set_capacity_rejects_invalid_sizes(port: Port) -> None:
    assert isinstance(port, Resizable)
    before = port.memory_info()
    for nbytes in BAD_SIZES:
        with pytest.raises((ValueError, TypeError)):
            port.set_capacity(nbytes)
    assert port.memory_info() == before
