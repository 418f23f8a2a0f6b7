"""Tests of the ability StorageModes: memory that is shared with the host, and private memory."""

from __future__ import annotations

import ctypes

import pytest

from forebay.errors import OutOfMemory
from forebay.spi import Port, StorageModes
from forebay.testing.conformance.helpers import BAD_SIZES, MIB, drain, expect_memory, needs, needs_memory

__all__ = [
    "test_memory_of_both_modes_holds_data",
    "test_memory_of_both_modes_is_counted_and_released",
    "test_storage_modes_reject_invalid_and_excessive_sizes",
]


@needs(StorageModes)
def test_memory_of_both_modes_is_counted_and_released(port: Port) -> None:
    assert isinstance(port, StorageModes)
    for reserve in (port.reserve_private, port.reserve_shared):
        before = port.memory_info()
        address = reserve(4 * MIB)
        assert port.memory_info()[0] <= before[0] - 4 * MIB
        port.release(address)
        expect_memory(port, before)


@needs(StorageModes)
@needs_memory
def test_memory_of_both_modes_holds_data(port: Port) -> None:
    assert isinstance(port, StorageModes)
    queue, target = port.queue(), ctypes.create_string_buffer(300)
    private, shared = port.reserve_private(MIB), port.reserve_shared(MIB)
    queue.fill(private, 5, 300)
    queue.fill(shared, 6, 300)
    queue.copy(shared + 100, private + 1, 100)
    queue.copy(private, shared, 150)
    queue.copy(ctypes.addressof(target), private, 300)
    drain(queue)
    assert target.raw == b"\6" * 100 + b"\5" * 200
    assert ctypes.string_at(shared, 300) == b"\6" * 100 + b"\5" * 100 + b"\6" * 100  # the host reads it in place


@needs(StorageModes)
def test_storage_modes_reject_invalid_and_excessive_sizes(port: Port) -> None:
    assert isinstance(port, StorageModes)
    before = port.memory_info()
    for reserve in (port.reserve_private, port.reserve_shared):
        for nbytes in BAD_SIZES:
            with pytest.raises((ValueError, TypeError)):
                reserve(nbytes)
        with pytest.raises(OutOfMemory):
            reserve(before[1] + 1)
    expect_memory(port, before)
