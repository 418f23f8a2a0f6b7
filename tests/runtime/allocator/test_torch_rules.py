"""Rules that random programs found broken, each decided by PyTorch 2.15's own allocator, as scenes of a few lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay import OutOfMemory
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.settings.allocator_settings import parse
from forebay.simulate import Device
from forebay.testing.conformance.scenes import in_child
from forebay.testing.fake import FakePort

MIB = 1 << 20
SPACE = 0x200000000000  # where growing segments lie


def actions(device):
    return [entry["action"] for entry in device.snapshot()["device_traces"][0]]


def lent(device, **_):
    """What a MemPool has idle, then a request elsewhere that the device refuses."""
    pool = device.new_pool(use_on_oom=True)
    with device.use_pool(pool):
        address = device.allocate(1000)
        device.free(address)
    return pool, address


def test_nothing_is_lent_from_growing_segments():
    device = Device(100 * MIB, "expandable_segments:True")
    lent(device)
    device.set_memory_fraction(0.0)
    with pytest.raises(OutOfMemory):
        device.allocate(1000)
    device.set_memory_fraction(1.0)
    device.fail_next(1)
    assert device.allocate(1000) > SPACE + 100 * MIB  # a segment of the common pool's own


def test_what_is_lent_is_split_as_if_nothing_grew():
    device = Device(100 * MIB)
    pool = device.new_pool(use_on_oom=True)
    with device.use_pool(pool):
        device.free(device.allocate(12 * MIB))
    device.apply_settings("expandable_segments:True")
    device.set_memory_fraction(0.0)
    device.allocate(12 * MIB - 1000)
    (segment,) = device.snapshot()["segments"]
    assert len(segment["blocks"]) == 1  # the rest is not worth it


def test_a_released_pool_lends_nothing_even_while_a_graph_has_it():
    device = Device(100 * MIB)
    pool, _ = lent(device)
    device.begin_capture(1, pool)
    device.end_capture()
    device.release_pool(pool)
    device.set_memory_fraction(0.0)
    with pytest.raises(OutOfMemory):
        device.allocate(1000)


def test_an_older_segment_grows_beyond_a_smaller_reserve():
    device = Device(1000 * MIB, "expandable_segments:True")
    first = device.allocate(50 * MIB)
    device.apply_settings("expandable_segments:True,expandable_segments_reserve:0.05")
    assert device.allocate(90 * MIB) == first + 50 * MIB
    with pytest.raises(OutOfMemory, match=r"exceeds the expandable-segment reserve of 50\.00 MiB"):
        device.allocate(90 * MIB, 1)


def test_a_free_piece_of_a_growing_segment_keeps_larger_idle_segments():
    """PyTorch looks at the smallest that would serve, and only below that for others to release."""
    device = Device(160 * MIB, "max_split_size_mb:25")
    plain = device.allocate(64 * MIB)
    device.free(plain)
    device.apply_settings("expandable_segments:True,max_split_size_mb:25")
    piece = device.allocate(30 * MIB)
    kept = device.allocate(10 * MIB)
    device.free(piece)
    device.set_other_used(50 * MIB)
    device.record_history(context=None)
    assert device.allocate(23 * MIB) == piece  # once all was released: that is no longer an oversize piece
    assert actions(device)[:2] == ["segment_free", "segment_unmap"]
    device.free(kept)


def test_a_request_that_is_refused_at_once_settles_nothing():
    device = Device(100 * MIB)
    address = device.allocate(1000)
    device.record_stream(address, 1)
    device.free(address)
    with pytest.raises(OutOfMemory, match="more than 1EB"):
        device.allocate(1 << 62)
    assert device.stats()["active.all.current"] == 1
    device.allocate(1000)
    assert device.stats()["active.all.current"] == 1


def test_pages_of_an_odd_size_are_counted_back():
    device = Device(100 * MIB, "expandable_segments:True,large_segment_size_mb:11")
    device.free(device.allocate(2 * MIB))
    assert device.device_used == 11 * MIB
    device.empty_cache()
    assert device.device_used == 0


@pytest.mark.parametrize("rules", ["", "expandable_segments:True"])
def test_a_refusals_code_is_of_its_own_request(rules):
    """Not of one long ago."""
    port = FakePort(100 * MIB)
    allocator = SegmentAllocator("fake:0", port, {0: port.queue()}, parse(rules))
    call = "commit" if rules else "reserve"
    for _ in range(2):
        port.fail(call, error=OutOfMemory("the system has none", code=12, call="mmap"))
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(1000)
    assert (caught.value.code, caught.value.call) == (12, "mmap")
    allocator.set_memory_fraction(0.0)
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(1000)
    assert (caught.value.code, caught.value.__cause__) == (0, None)


@pytest.mark.parametrize("rules", ["garbage_collection_threshold:0.1", "max_split_size_mb:20"])
def test_a_child_collects_none_of_its_parents_segments(rules):
    def check():
        port.abandon()
        fresh = FakePort(100 * MIB)
        fresh.reserve(40 * MIB)  # and so gives other addresses
        allocator.abandon_queues(fresh)
        for nbytes in (30, 35, 70, 12):
            try:
                allocator.allocate(nbytes * MIB)
            except OutOfMemory:
                assert nbytes == 70
        assert ("release", inherited) not in fresh.calls
        assert allocator.broken() is None

    port = FakePort(100 * MIB)
    allocator = SegmentAllocator("fake:0", port, {0: port.queue()}, parse(rules))
    allocator.set_memory_fraction(0.9)
    block = allocator.allocate(25 * MIB)
    inherited = block.address
    del block
    assert in_child(check) == ""


@pytest.mark.parametrize("fine", [False, True])
def test_a_pool_that_never_got_a_page_goes_with_its_address_space(fine):
    """Where PyTorch's allocator is not followed to the last address: there, both stay."""
    port = FakePort(100 * MIB)
    port.props = replace(port.props, fine_segments=fine)
    allocator = SegmentAllocator("fake:0", port, {0: port.queue()}, parse("expandable_segments:True"))
    allocator.private.make((0, 1))
    for _ in range(2):
        port.fail("commit", error=OutOfMemory("the system has none"))
    with allocator.private.use((0, 1)), pytest.raises(OutOfMemory):
        allocator.allocate(1000)
    allocator.release_pool((0, 1))
    assert len(port._spaces._spaces) == len([*allocator.private]) == (0 if fine else 1)
    assert allocator.broken() is None
