"""Simulated devices: large memory, shared clocks and invalid arguments."""

from __future__ import annotations

import sys

import pytest

import forebay
from forebay._base.address_allocator import AddressAllocator
from forebay.simulate import Device, World
from forebay.spi import SEGMENT_ALIGNMENT

TIB = 1 << 40


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_terabytes_can_be_simulated(settings):
    gpu = Device(80 * TIB, settings)
    kept = [gpu.allocate(5 * TIB) for _ in range(15)]
    assert len({*kept}) == 15
    with pytest.raises(forebay.OutOfMemory, match="GPU 0 has a total capacity of 81920"):
        gpu.allocate(6 * TIB)
    for address in kept:
        gpu.free(address)
    gpu.empty_cache()
    assert gpu.device_used == 0
    assert gpu.broken() is None


def test_devices_of_one_world_share_address_space():
    world = World()
    first, second = (Device(1 << 30, "expandable_segments:True", index=index, world=world) for index in (0, 1))
    assert first.allocate(1000) != second.allocate(1000)
    assert first.new_pool() != second.new_pool()


def test_devices_of_different_worlds_are_independent():
    first, second = Device(1 << 30), Device(1 << 30)
    assert first.allocate(1000) == second.allocate(1000)
    assert first.new_pool() == second.new_pool()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Device(0), ValueError, "total_memory must be at least 1"),
        (lambda: Device(1.5), TypeError, "total_memory must be an int"),
        (lambda: Device(1 << 53), ValueError, "at most 4096.00 TiB"),
        (lambda: Device(1 << 30, None), TypeError, "settings must be a str"),
        (lambda: Device(1 << 30, other_used=-5), ValueError, "other_used"),
        (lambda: Device(1 << 30).fail_next("x"), TypeError, "n must be an int"),
        (lambda: Device(1 << 30).set_other_used(-1), ValueError, "nbytes"),
        (lambda: Device(1 << 30).hold_events("x"), ValueError, "level must be 1 or 2"),
        (lambda: Device(1 << 30).use_pool((0, 99)), forebay.ForebayError, r"no memory pool \(0, 99\)"),
        (lambda: Device(1 << 30).begin_capture("x"), TypeError, "stream must be an int"),
        (lambda: Device(1 << 30).allocate(-1), ValueError, "Invalid memory size: -1"),
        (lambda: Device(1 << 30).allocate(1 << 60), forebay.OutOfMemory, "more than 1EB memory"),
        (lambda: Device(1 << 30).allocate(1 << 70), forebay.OutOfMemory, "more than 1EB memory"),
        (lambda: Device(1 << 30).free(12345), forebay.ForebayError, "invalid device pointer: 0x3039"),
        (lambda: Device(1 << 30).free("a"), TypeError, "address must be an int"),
        (lambda: Device(1 << 30).apply_settings(5), TypeError, "settings must be a str"),
    ],
)
def test_invalid_arguments_are_rejected(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_released_pool_cannot_be_used():
    gpu = Device(1 << 30)
    pool = gpu.new_pool()
    with gpu.use_pool(pool):
        kept = gpu.allocate(1000)
    gpu.release_pool(pool)
    with pytest.raises(forebay.ForebayError, match="was released"):
        gpu.use_pool(pool)
    gpu.free(kept)


def test_lowest_free_address_is_allocated():
    addresses = AddressAllocator(0, 100 * SEGMENT_ALIGNMENT)
    first, second, third = (addresses.allocate(2 * SEGMENT_ALIGNMENT - 5) for _ in range(3))
    assert (first, second, third) == (0, 2 * SEGMENT_ALIGNMENT, 4 * SEGMENT_ALIGNMENT)
    assert addresses.free(second) == 2 * SEGMENT_ALIGNMENT - 5
    assert addresses.allocate(3 * SEGMENT_ALIGNMENT) == 6 * SEGMENT_ALIGNMENT
    assert addresses.allocate(1) == second
    assert [addresses.free(address) for address in (first, second)] == [2 * SEGMENT_ALIGNMENT - 5, 1]
    assert addresses.allocate(4 * SEGMENT_ALIGNMENT) == 0  # two free ranges were merged
    assert addresses.free(12345) is None
    with pytest.raises(MemoryError):
        addresses.allocate(92 * SEGMENT_ALIGNMENT)
    assert addresses.outside_allocation(4 * SEGMENT_ALIGNMENT + 10, 5) is False
    assert addresses.outside_allocation(50 * SEGMENT_ALIGNMENT, 1) is True


def test_block_is_freed_although_a_profiler_keeps_frames():
    gpu, frames = Device(1 << 30), []
    sys.setprofile(lambda frame, *_: frames.append(frame))
    try:
        gpu.free(gpu.allocate(40 << 20))
    finally:
        sys.setprofile(None)
    assert gpu.stats()["allocated_bytes.all.current"] == 0
