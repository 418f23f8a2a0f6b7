"""Port: reserve, release, memory_info, close."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.errors import DeviceError, OutOfMemory, WrongState
from forebay.spi import Port
from forebay.testing.conformance.scenes import BAD_SIZES, MIB, Scratch, not_imaginary, read

__all__ = [
    "test_a_closed_port_gives_no_memory",
    "test_a_refused_size_changes_nothing",
    "test_addresses_are_aligned_and_apart",
    "test_closing_a_port_twice_is_closing_it_once",
    "test_host_visible_memory_is_read_by_the_cpu",
    "test_memory_keeps_what_was_written",
    "test_only_what_reserve_gave_is_released",
    "test_released_memory_is_free_again",
    "test_several_threads_reserve_at_once",
    "test_wanting_more_than_there_is",
]


def test_addresses_are_aligned_and_apart(port: Port) -> None:
    sizes = [1, 512, 2 * MIB, 2 * MIB + 1, 5 * MIB, 1]
    segments = sorted((port.reserve(nbytes), nbytes) for nbytes in sizes)
    assert [address % (2 * MIB) for address, _ in segments] == [0] * len(sizes)
    ends = [address + nbytes for address, nbytes in segments]
    assert all(end <= address for end, (address, _) in zip(ends, segments[1:], strict=False))


def test_released_memory_is_free_again(port: Port) -> None:
    free, total = port.memory_info()
    addresses = [port.reserve(4 * MIB) for _ in range(4)]
    during, same = port.memory_info()
    assert 0 <= during <= free - 16 * MIB
    for address in addresses:
        port.release(address)
    assert same == total
    assert port.memory_info() == (free, total)


def test_wanting_more_than_there_is(port: Port) -> None:
    before = free, total = port.memory_info()
    for nbytes in (total + 1, 1 << 62):
        with pytest.raises(OutOfMemory) as caught:
            port.reserve(nbytes)
        assert isinstance(caught.value, MemoryError)
        assert (caught.value.wanted, caught.value.free, caught.value.capacity) == (nbytes, free, total)
        assert caught.value.device
    assert port.memory_info() == before
    port.release(port.reserve(MIB))


@pytest.mark.parametrize("nbytes", BAD_SIZES)
def test_a_refused_size_changes_nothing(port: Port, nbytes: int) -> None:
    before = port.memory_info()
    with pytest.raises((ValueError, TypeError)):
        port.reserve(nbytes)
    assert port.memory_info() == before


def test_only_what_reserve_gave_is_released(port: Port) -> None:
    address, other = port.reserve(4 * MIB), port.reserve(4 * MIB)
    port.release(other)
    before = port.memory_info()
    for foreign in (other, address + 1, address + 2 * MIB, 0, 4096):
        with pytest.raises(DeviceError):
            port.release(foreign)
    assert port.memory_info() == before
    port.release(address)


def test_several_threads_reserve_at_once(port: Port) -> None:
    before = port.memory_info()

    def use(_: int) -> list[int]:
        held = [port.reserve(MIB) for _ in range(4)]
        for address in held:
            port.release(address)
        return [port.reserve(MIB)]

    with ThreadPoolExecutor(4) as pool:
        addresses = [address for held in pool.map(use, range(20)) for address in held]
    assert len({*addresses}) == 20
    assert port.memory_info()[0] <= before[0] - 20 * MIB
    for address in addresses:
        port.release(address)
    assert port.memory_info() == before


@not_imaginary
def test_memory_keeps_what_was_written(port: Port) -> None:
    first, second = Scratch(port, b"\x07" * MIB), Scratch(port, bytes(range(256)) * 64)
    queue = port.queue()
    assert read(queue, first) == b"\x07" * MIB
    assert read(queue, second) == bytes(range(256)) * 64


@not_imaginary
def test_host_visible_memory_is_read_by_the_cpu(port: Port) -> None:
    if not port.props.host_visible:
        pytest.skip("the CPU does not see this device's memory")
    assert ctypes.string_at(Scratch(port, b"in sight").address, 8) == b"in sight"


def test_a_closed_port_gives_no_memory(port: Port) -> None:
    port.reserve(MIB)
    port.close()
    with pytest.raises(WrongState):
        port.reserve(MIB)
    with pytest.raises(WrongState):
        port.queue()


def test_closing_a_port_twice_is_closing_it_once(port: Port) -> None:
    port.queue().signal()
    port.close()
    port.close()
