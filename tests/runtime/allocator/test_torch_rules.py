"""Regression tests for bugs that random programs found. Each expected behaviour is that of PyTorch 2.15."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay import OutOfMemory
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.settings.configuration import parse
from forebay.simulate import Device
from forebay.testing.conformance.helpers import run_in_child
from forebay.testing.fake import FakePort

MIB = 1 << 20
SPACE = 0x200000000000  # the address range of expandable segments


def actions(device):
    return [entry["action"] for entry in device.snapshot()["device_traces"][0]]


def lending_pool(device, **_):
    """Create a lending MemPool (`use_on_oom`) with one cached block."""
    pool = device.new_pool(use_on_oom=True)
    with device.use_pool(pool):
        address = device.allocate(1000)
        device.free(address)
    return pool, address


def test_expandable_segments_are_not_lent():
    device = Device(100 * MIB, "expandable_segments:True")
    lending_pool(device)
    device.set_memory_fraction(0.0)
    with pytest.raises(OutOfMemory):
        device.allocate(1000)
    device.set_memory_fraction(1.0)
    device.fail_next(1)
    assert device.allocate(1000) > SPACE + 100 * MIB  # a new segment of the default pool


def test_lent_block_is_split_by_the_rules_of_plain_segments():
    device = Device(100 * MIB)
    pool = device.new_pool(use_on_oom=True)
    with device.use_pool(pool):
        device.free(device.allocate(12 * MIB))
    device.apply_settings("expandable_segments:True")
    device.set_memory_fraction(0.0)
    device.allocate(12 * MIB - 1000)
    (segment,) = device.snapshot()["segments"]
    assert len(segment["blocks"]) == 1  # the remainder is too small to split


def test_released_pool_lends_nothing_while_a_graph_uses_it():
    device = Device(100 * MIB)
    pool, _ = lending_pool(device)
    device.begin_capture(1, pool)
    device.end_capture()
    device.release_pool(pool)
    device.set_memory_fraction(0.0)
    with pytest.raises(OutOfMemory):
        device.allocate(1000)


def test_existing_segment_grows_beyond_a_smaller_reserve():
    device = Device(1000 * MIB, "expandable_segments:True")
    first = device.allocate(50 * MIB)
    device.apply_settings("expandable_segments:True,expandable_segments_reserve:0.05")
    assert device.allocate(90 * MIB) == first + 50 * MIB
    with pytest.raises(OutOfMemory, match=r"exceeds the expandable-segment reserve of 50\.00 MiB"):
        device.allocate(90 * MIB, 1)


def test_fitting_block_of_an_expandable_segment_keeps_larger_segments():
    """PyTorch considers the smallest fitting segment, and only smaller ones if that cannot be released."""
    device = Device(160 * MIB, "max_split_size_mb:25")
    plain = device.allocate(64 * MIB)
    device.free(plain)
    device.apply_settings("expandable_segments:True,max_split_size_mb:25")
    piece = device.allocate(30 * MIB)
    kept = device.allocate(10 * MIB)
    device.free(piece)
    device.set_other_used(50 * MIB)
    device.record_history(context=None)
    assert device.allocate(23 * MIB) == piece  # after emptying the cache: the block is no longer oversize
    assert actions(device)[:2] == ["segment_free", "segment_unmap"]
    device.free(kept)


def test_too_large_request_processes_no_pending_frees():
    device = Device(100 * MIB)
    address = device.allocate(1000)
    device.record_stream(address, 1)
    device.free(address)
    with pytest.raises(OutOfMemory, match="more than 1EB"):
        device.allocate(1 << 62)
    assert device.stats()["active.all.current"] == 1
    device.allocate(1000)
    assert device.stats()["active.all.current"] == 1


def test_pages_of_an_odd_size_are_counted_when_released():
    device = Device(100 * MIB, "expandable_segments:True,large_segment_size_mb:11")
    device.free(device.allocate(2 * MIB))
    assert device.device_used == 11 * MIB
    device.empty_cache()
    assert device.device_used == 0


@pytest.mark.parametrize("rules", ["", "expandable_segments:True"])
def test_error_code_belongs_to_the_current_request(rules):
    """The error code of an earlier request is not reported again."""
    port = FakePort(100 * MIB)
    allocator = SegmentAllocator("fake:0", port, {0: port.queue()}, parse(rules))
    call = "commit" if rules else "reserve"
    for _ in range(2):
        port.fail(call, error=OutOfMemory("system out of memory", code=12, call="mmap"))
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(1000)
    assert (caught.value.code, caught.value.call) == (12, "mmap")
    allocator.set_memory_fraction(0.0)
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(1000)
    assert (caught.value.code, caught.value.__cause__) == (0, None)


@pytest.mark.parametrize("rules", ["garbage_collection_threshold:0.1", "max_split_size_mb:20"])
def test_forked_child_releases_its_own_copy_of_segments(rules):
    def check():
        port.after_fork_in_child()
        allocator.after_fork_in_child(usable=True)
        for nbytes in (30, 35, 70, 12):
            try:
                allocator.allocate(nbytes * MIB)
            except OutOfMemory:
                assert nbytes == 70
        assert ("release", cached) in port.calls
        assert allocator.check_invariants() is None

    port = FakePort(100 * MIB)
    allocator = SegmentAllocator("fake:0", port, {0: port.queue()}, parse(rules))
    allocator.set_memory_fraction(0.9)
    block = allocator.allocate(25 * MIB)
    cached = block.address
    del block
    assert run_in_child(check) == ""
    assert ("release", cached) not in port.calls


@pytest.mark.parametrize("fine", [False, True])
def test_pool_without_pages_is_deleted_with_its_address_space(fine):
    """PyTorch keeps both; forebay does so only where it reproduces PyTorch's addresses (no fine segments)."""
    port = FakePort(100 * MIB)
    port.props = replace(port.props, fine_segments=fine)
    allocator = SegmentAllocator("fake:0", port, {0: port.queue()}, parse("expandable_segments:True"))
    allocator.private.create_or_incref((0, 1))
    for _ in range(2):
        port.fail("commit", error=OutOfMemory("system out of memory"))
    with allocator.private.use((0, 1)), pytest.raises(OutOfMemory):
        allocator.allocate(1000)
    allocator.release_pool((0, 1))
    assert len(port._spaces._spaces) == len([*allocator.private]) == (0 if fine else 1)
    assert allocator.check_invariants() is None
