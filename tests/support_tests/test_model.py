"""Tests of the allocator model, with results worked out by hand."""

from __future__ import annotations

import pytest
from support.model import MIB, ModelDevice
from support.model.settings import Settings, format_size

from forebay.errors import OutOfMemory
from forebay.runtime.allocator.torch_iteration_order import pool_set, stream_set

START, RESERVED = 0x100000000000, 0x200000000000


def reserved(device):
    return device.stats()["reserved_bytes.all.current"]


def blocks(device):
    """Return size and state of every block, by segment."""
    return [[(b["size"], b["state"]) for b in s["blocks"]] for s in device.snapshot()["segments"]]


def actions(device):
    return [entry["action"] for entry in device.snapshot()["device_traces"][0]]


def test_small_blocks_are_split_from_two_mebibyte_segments():
    device = ModelDevice(64 * MIB)
    assert [device.allocate(n) - START for n in (1, 513, 512)] == [0, 512, 1536]
    assert device.allocate(0) == 0
    live = [(size, "active_allocated") for size in (512, 1024, 512)]
    assert blocks(device) == [[*live, (2 * MIB - 2048, "inactive")]]
    assert device.device_used == reserved(device) == 2 * MIB


def test_equal_blocks_are_used_by_age_of_segment():
    device = ModelDevice(64 * MIB)
    low, high = device.allocate(12 * MIB), device.allocate(12 * MIB)
    device.free(low)
    device.empty_cache()
    assert device.allocate(12 * MIB) == low  # its segment is now the younger one
    device.free(low)
    device.free(high)
    assert device.allocate(12 * MIB) == high


def test_block_used_on_another_stream_is_pending():
    device = ModelDevice(64 * MIB)
    address = device.allocate(512)
    device.record_stream(address, 1)
    device.record_stream(address, 0)  # its own stream is ignored
    device.hold_events()
    device.free(address)
    assert device.allocate(512) == address + 512
    assert blocks(device)[0][0] == (512, "active_pending_free")
    device.release_events(1)
    assert device.allocate(512) == address


def test_cached_segments_are_released_before_out_of_memory():
    device = ModelDevice(100 * MIB, other_used=10 * MIB)
    device.free(device.allocate(60 * MIB))
    device.record_history()
    device.allocate(80 * MIB)
    assert actions(device) == ["segment_free", "segment_alloc", "alloc"]
    message = r"Tried to allocate 20.00 MiB\. GPU 0 .* of which 10.00 MiB is free\. .* process has 90.00 MiB .* forebay"
    with pytest.raises(OutOfMemory, match=message) as caught:
        device.allocate(2 * MIB)
    assert (caught.value.wanted, caught.value.free, caught.value.capacity) == (20 * MIB, 10 * MIB, 100 * MIB)
    assert (device.stats()["num_alloc_retries"], device.stats()["num_ooms"]) == (2, 1)


def test_memory_fraction_limits_reserved_memory():
    device = ModelDevice(100 * MIB)
    device.set_memory_fraction(0.5)
    device.allocate(30 * MIB)
    with pytest.raises(OutOfMemory, match=r"50.00 MiB allowed; "):
        device.allocate(30 * MIB)
    device.set_memory_fraction(1.0)
    device.allocate(30 * MIB)


def test_throw_on_cudamalloc_oom_rejects_preemptively():
    device = ModelDevice(100 * MIB, "throw_on_cudamalloc_oom:True")
    device.free(device.allocate(60 * MIB))
    with pytest.raises(OutOfMemory, match=r"preemptively rejected .* Requested size: 70.00 MiB"):
        device.allocate(70 * MIB)
    assert reserved(device) == 60 * MIB
    assert (device.stats()["num_oom_rejections"], device.stats()["num_ooms"]) == (1, 0)


def test_garbage_collection_releases_oldest_blocks():
    device = ModelDevice(100 * MIB, "garbage_collection_threshold:0.5,per_process_memory_fraction:0.99")
    old, new = device.allocate(20 * MIB), device.allocate(26 * MIB)
    device.free(old)
    device.allocate(2 * MIB, 1)  # 46 MiB are reserved, and the collector starts above 49.5
    device.free(new)
    device.allocate(12 * MIB, 2)
    assert [s["address"] for s in device.snapshot()["segments"]] == [old, new, new + 26 * MIB]
    assert reserved(device) == (12 + 26 + 20) * MIB  # only blocks older than the average were released


def test_oversize_blocks_serve_oversize_requests_only():
    device = ModelDevice(300 * MIB, "max_split_size_mb:20")
    big = device.allocate(100 * MIB)
    device.free(big)
    assert device.allocate(10 * MIB) != big
    assert device.allocate(80 * MIB) != big  # 20 MiB too large
    assert device.allocate(81 * MIB) == big
    assert device.stats()["oversize_allocations.current"] == 2
    assert device.stats()["oversize_segments.current"] == 2


def test_one_fitting_oversize_block_is_released():
    device = ModelDevice(100 * MIB, "max_split_size_mb:20")
    for address in [device.allocate(n * MIB) for n in (30, 40)]:
        device.free(address)
    device.record_history()
    device.allocate(31 * MIB, 1)
    assert actions(device) == [
        "segment_free",
        "segment_free",
        "segment_alloc",
        "alloc",
    ]  # none of stream 1
    device = ModelDevice(100 * MIB, "max_split_size_mb:20")
    for address in [device.allocate(n * MIB) for n in (30, 65)]:
        device.free(address)
    device.allocate(44 * MIB)
    assert [s["total_size"] for s in device.snapshot()["segments"]] == [30 * MIB, 44 * MIB]


def test_expandable_segment_grows_by_pages():
    device = ModelDevice(160 * MIB, "expandable_segments:True")
    device.record_history()
    first = device.allocate(5 * MIB)
    assert (first, device.device_used) == (RESERVED, 20 * MIB)
    second = device.allocate(30 * MIB)
    assert (second, device.device_used) == (RESERVED + 5 * MIB, 40 * MIB)
    assert device.allocate(1) == RESERVED + 180 * MIB  # small blocks have their own segment
    device.free(second)
    device.empty_cache()
    assert device.device_used == 22 * MIB
    assert actions(device) == [
        *("segment_map", "alloc", "segment_map", "alloc", "segment_map", "alloc"),
        *("free_requested", "free_completed", "segment_unmap"),
    ]
    assert device.stats()["segment.all.current"] == device.stats()["inactive_split.all.allocated"] == 0


def test_request_larger_than_expandable_segment_fails():
    device = ModelDevice(1024 * MIB, "expandable_segments:True,expandable_segments_reserve:0.25")
    device.allocate(260 * MIB)  # 256 MiB, in whole pages
    with pytest.raises(OutOfMemory, match=r"reserve of 256.00 MiB for this stream, .* at least 262.00 MiB\.$"):
        device.allocate(261 * MIB)


def test_private_pools_nest_and_do_not_share_memory():
    device = ModelDevice(200 * MIB)
    outer, inner = device.new_pool(), device.new_pool()
    with device.use_pool(outer):
        first = device.allocate(2 * MIB)
        with device.use_pool(inner):
            second = device.allocate(2 * MIB)
        assert device.allocate(2 * MIB) == first + 2 * MIB
    assert second == first + 20 * MIB
    assert [s["segment_pool_id"] for s in device.snapshot()["segments"]] == [(0, 1), (0, 2)]
    device.free(second)
    device.empty_cache()
    assert reserved(device) == 40 * MIB
    device.release_pool(inner)
    assert reserved(device) == 20 * MIB
    assert device.stats()["reserved_bytes_by_private_pools.0_2.all.freed"] == 20 * MIB


def test_use_on_oom_pool_serves_default_requests():
    device = ModelDevice(100 * MIB)
    pool = device.new_pool(use_on_oom=True)
    with device.use_pool(pool):
        address = device.allocate(60 * MIB)
        with pytest.raises(RuntimeError, match="already recording"), device.use_pool(pool):
            pass
    device.free(address)
    assert device.allocate(50 * MIB) == address
    device.release_pool(pool)
    with pytest.raises(OutOfMemory, match=r"with 10.00 MiB allocated in private pools"):
        device.allocate(50 * MIB)


def test_no_split_pool_allocates_whole_blocks():
    device = ModelDevice(100 * MIB)
    with device.use_pool(device.new_pool(no_split=True)):
        device.allocate(512)
    assert blocks(device) == [[(2 * MIB, "active_allocated")]]


@pytest.mark.parametrize("calls", range(4))
def test_failure_of_each_device_call(calls):
    device = ModelDevice(200 * MIB, "expandable_segments:True")
    device.allocate(5 * MIB)
    device.fail_next(calls)
    before = device.device_used
    if calls < 2:  # the retry succeeds
        device.allocate(50 * MIB)
        assert device.device_used == before + 40 * MIB
    else:
        with pytest.raises(OutOfMemory):
            device.allocate(50 * MIB)
        assert device.device_used == reserved(device) == before


def test_freeing_an_invalid_address_fails():
    device = ModelDevice(10 * MIB)
    device.free(0)
    with pytest.raises(RuntimeError, match="invalid device pointer: 0x3039"):
        device.free(12345)


def test_later_settings_text_resets_some_keys():
    settings = Settings()
    settings.read("max_split_size_mb:50, max_non_split_rounding_mb:30,expandable_segments:True")
    settings.read("garbage_collection_threshold:0.5,large_segment_size_mb:40")
    assert settings.max_split_size == Settings().max_split_size
    assert settings.max_non_split_rounding == settings.large_segment_size == 40 * MIB
    assert settings.expandable_segments


@pytest.mark.parametrize(
    ("text", "nbytes", "size"),
    [
        ("", 1, 512),
        ("roundup_power2_divisions:4", 1200, 1536),
        ("roundup_power2_divisions:4", 2100, 2560),
        ("roundup_power2_divisions:4", 1 << 21, 1 << 21),
        ("roundup_power2_divisions:[1:8,>:2]", 5 * MIB, 6 * MIB),
        ("roundup_power2_divisions:[1:8,>:2]", MIB + 1, MIB + MIB // 8),
        ("roundup_power2_divisions:[4:1,16:4]", 9 * MIB, 9 * MIB),
    ],
)
def test_rounding_with_divisions(text, nbytes, size):
    settings = Settings()
    settings.read(text)
    assert settings.rounded(nbytes) == size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1024, "1024 bytes"), (1025, "1.00 KiB"), (MIB, "1024.00 KiB"), (1 << 30, "1024.00 MiB"), (3 << 29, "1.50 GiB")],
)
def test_format_size(nbytes, text):
    assert format_size(nbytes) == text


def test_capture_routes_its_stream_and_delays_pending_frees():
    device = ModelDevice(200 * MIB)
    used = device.allocate(512)
    device.record_stream(used, 2)
    graph = device.begin_capture(1)
    assert device.allocate(512) == used + 512
    inside = device.allocate(512, 1)
    device.free(used)
    assert device.allocate(512, 1) == inside + 512
    assert blocks(device)[0][0] == (512, "active_pending_free")  # a mark cannot be recorded during a capture
    device.end_capture()
    assert device.allocate(512) == used
    assert [s["segment_pool_id"] for s in device.snapshot()["segments"]] == [(0, 0), graph]
    device.free(inside)
    device.free(inside + 512)
    device.release_capture(graph)
    assert reserved(device) == 4 * MIB
    device.empty_cache()
    assert reserved(device) == 2 * MIB


def test_iteration_order_is_that_of_a_hash_table():
    order = stream_set(0)
    for stream in (0, 1, 2, 3, 2):
        order.add(stream)
    by_bucket = [stream for _, stream in sorted((order._table.bucket(stream), stream) for stream in order)]
    assert list(order) == by_bucket
    for stream in range(200):
        order.add(stream)
    for stream in range(0, 200, 2):
        order.discard(stream)
    assert sorted(order) == list(range(1, 200, 2))
    assert all(order._table.distance(order._table.slots.index(stream)) >= 0 for stream in order)
    pools = pool_set()
    for pool in [(0, 1), (1, 0), (0, 2)]:
        pools.add(pool)
    pools.discard((1, 0))
    assert sorted(pools) == [(0, 1), (0, 2)]
