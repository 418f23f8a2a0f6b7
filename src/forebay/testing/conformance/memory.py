"""Tests of Port: reserve, release, memory_info, close."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.errors import DeviceError, OutOfMemory, WrongState
from forebay.spi import Port
from forebay.testing.conformance.helpers import BAD_SIZES, MIB, Scratch, expect_memory, needs_memory, read_back

__all__ = [
    "test_closed_port_rejects_reserve_and_queue",
    "test_concurrent_reserve_and_release",
    "test_host_visible_memory_is_readable_by_host",
    "test_memory_retains_written_data",
    "test_port_close_is_idempotent",
    "test_release_rejects_unreserved_addresses",
    "test_release_restores_free_memory",
    "test_reserve_beyond_capacity_raises_out_of_memory",
    "test_reserve_rejects_invalid_sizes",
    "test_reserved_segments_are_aligned_and_disjoint",
]


def test_reserved_segments_are_aligned_and_disjoint(port: Port) -> None:
    sizes = [1, 512, 2 * MIB, 2 * MIB + 1, 5 * MIB, 1]
    segments = sorted((port.reserve(nbytes), nbytes) for nbytes in sizes)
    alignment = port.props.heaps.alignment if port.props.heaps else 2 * MIB
    assert [address % alignment for address, _ in segments] == [0] * len(sizes)
    ends = [address + nbytes for address, nbytes in segments]
    assert all(end <= address for end, (address, _) in zip(ends, segments[1:], strict=False))


def test_release_restores_free_memory(port: Port) -> None:
    free, total = port.memory_info()
    addresses = [port.reserve(4 * MIB) for _ in range(4)]
    free_during, total_during = port.memory_info()
    assert 0 <= free_during <= free - 16 * MIB
    for address in addresses:
        port.release(address)
    assert total_during == total
    expect_memory(port, (free, total))


def test_reserve_beyond_capacity_raises_out_of_memory(port: Port) -> None:
    before = free, total = port.memory_info()
    for nbytes in (total + 1, 1 << 62):
        with pytest.raises(OutOfMemory) as caught:
            port.reserve(nbytes)
        assert isinstance(caught.value, MemoryError)
        assert (caught.value.wanted, caught.value.free, caught.value.capacity) == (nbytes, free, total)
        assert caught.value.device
    expect_memory(port, before)
    port.release(port.reserve(MIB))


@pytest.mark.parametrize("nbytes", BAD_SIZES)
def test_reserve_rejects_invalid_sizes(port: Port, nbytes: int) -> None:
    before = port.memory_info()
    with pytest.raises((ValueError, TypeError)):
        port.reserve(nbytes)
    expect_memory(port, before)


def test_release_rejects_unreserved_addresses(port: Port) -> None:
    address, other = port.reserve(4 * MIB), port.reserve(4 * MIB)
    port.release(other)
    before = port.memory_info()
    for unreserved in (other, address + 1, address + 2 * MIB, 0, 4096):
        with pytest.raises(DeviceError):
            port.release(unreserved)
    expect_memory(port, before)
    port.release(address)


def test_concurrent_reserve_and_release(port: Port) -> None:
    before = port.memory_info()

    def reserve_some(_: int) -> list[int]:
        held = [port.reserve(MIB) for _ in range(4)]
        for address in held:
            port.release(address)
        return [port.reserve(MIB)]

    with ThreadPoolExecutor(4) as pool:
        addresses = [address for held in pool.map(reserve_some, range(20)) for address in held]
    assert len({*addresses}) == 20
    assert port.memory_info()[0] <= before[0] - 20 * MIB
    for address in addresses:
        port.release(address)
    expect_memory(port, before)


@needs_memory
def test_memory_retains_written_data(port: Port) -> None:
    first, second = Scratch(port, b"\x07" * MIB), Scratch(port, bytes(range(256)) * 64)
    queue = port.queue()
    assert read_back(queue, first) == b"\x07" * MIB
    assert read_back(queue, second) == bytes(range(256)) * 64


@needs_memory
def test_host_visible_memory_is_readable_by_host(port: Port) -> None:
    if not port.props.host_visible:
        pytest.skip("the host cannot access this device's memory")
    assert ctypes.string_at(Scratch(port, b"readable").address, 8) == b"readable"


def test_closed_port_rejects_reserve_and_queue(port: Port) -> None:
    port.reserve(MIB)
    port.close()
    with pytest.raises(WrongState):
        port.reserve(MIB)
    with pytest.raises(WrongState):
        port.queue()


def test_port_close_is_idempotent(port: Port) -> None:
    port.queue().signal()
    port.close()
    port.close()
