"""Tests of runtime memory on any device kind: blocks, cache, statistics, limits, pools."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

import forebay
from forebay import OutOfMemory, Stream
from forebay import memory as mem
from forebay._base.device_spec import Device
from forebay.spi import Launches
from forebay.testing.conformance.helpers import MIB, Gate, needs, needs_memory, port_of

__all__ = [
    "test_allocate_rejects_invalid_sizes",
    "test_block_free_is_idempotent",
    "test_blocks_are_disjoint",
    "test_cached_block_is_not_reused_on_another_stream",
    "test_concurrent_allocations_are_disjoint",
    "test_disabled_caching_allocator_bypasses_the_cache",
    "test_empty_cache_releases_memory_to_the_device",
    "test_free_is_deferred_until_recorded_stream_completes",
    "test_freed_block_is_cached_and_reused",
    "test_history_records_allocation_and_free",
    "test_mem_pool_applies_to_the_calling_thread_only",
    "test_mem_pool_is_separate_and_releases_its_memory",
    "test_memory_fraction_limits_allocations",
    "test_memory_summary_is_a_table",
    "test_out_of_memory_leaves_statistics_unchanged",
    "test_peak_measurements_nest",
    "test_statistics_count_allocations_and_frees",
    "test_statistics_match_the_snapshot",
]


def _stats(device: Device, *names: str) -> list[int]:
    stats = mem.memory_stats(device)
    return [stats[name] for name in names]


@contextmanager
def _empty_cache(device: Device) -> Iterator[int]:
    """Empty the cache before and after the block. Yield the bytes that are reserved without those of the test."""
    mem.empty_cache(device)
    yield mem.memory_reserved(device)
    mem.empty_cache(device)


# ---- Blocks


def test_blocks_are_disjoint(device: Device) -> None:
    blocks = [forebay.allocate(nbytes, device) for nbytes in (1, 512, 513, MIB, 3 * MIB, 1)]
    spans = sorted((block.address, block.address + block.size) for block in blocks)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(block.size >= block.nbytes for block in blocks)


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, "4096", None])
def test_allocate_rejects_invalid_sizes(device: Device, nbytes: Any) -> None:
    before = mem.memory_allocated(device)
    with pytest.raises((ValueError, TypeError)):
        forebay.allocate(nbytes, device)
    assert mem.memory_allocated(device) == before


def test_block_free_is_idempotent(device: Device) -> None:
    before = mem.memory_allocated(device)
    block = forebay.allocate(1000, device)
    block.free()
    block.free()
    assert block.freed
    assert mem.memory_allocated(device) == before
    with pytest.raises(ValueError, match="was already freed"):
        block.record_stream(0)


def test_freed_block_is_cached_and_reused(device: Device) -> None:
    first = forebay.allocate(5 * MIB, device)
    device_allocations, address = _stats(device, "num_device_alloc"), first.address
    first.free()
    second = forebay.allocate(5 * MIB, device)
    assert second.address == address
    assert _stats(device, "num_device_alloc") == device_allocations


def test_cached_block_is_not_reused_on_another_stream(device: Device) -> None:
    freed = forebay.allocate(5 * MIB, device)
    address = freed.address
    freed.free()
    with Stream(device):
        assert forebay.allocate(5 * MIB, device).address != address


@needs(Launches)
@needs_memory
def test_free_is_deferred_until_recorded_stream_completes(device: Device) -> None:
    tensor, other = forebay.empty(5 * MIB, dtype="uint8", device=device), Stream(device)
    address, allocated = tensor.data_ptr(), mem.memory_allocated(device)
    gate = Gate()
    try:
        assert isinstance(other.queue, Launches)
        other.queue.call(gate)
        tensor.record_stream(other)
        del tensor
        assert mem.memory_allocated(device) < allocated
        assert forebay.allocate(5 * MIB, device).address != address
    finally:
        gate.open()
    other.synchronize()
    assert forebay.allocate(5 * MIB, device).size >= 5 * MIB
    assert mem.memory_stats(device)["active_bytes.all.current"] == mem.memory_allocated(device)


def test_concurrent_allocations_are_disjoint(device: Device) -> None:
    before = mem.memory_allocated(device)

    def work(number: int) -> int:
        blocks = [forebay.allocate(1 + 700 * number, device) for _ in range(20)]
        return len({block.address for block in blocks})

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [20] * 8
    assert mem.memory_allocated(device) == before


# ---- Statistics, snapshot and history


def test_statistics_count_allocations_and_frees(device: Device) -> None:
    mem.reset_accumulated_memory_stats(device)
    mem.reset_peak_memory_stats(device)
    start = mem.memory_allocated(device)
    held = [forebay.allocate(MIB, device) for _ in range(3)]
    total = sum(block.size for block in held)
    held.clear()
    counted = _stats(device, "allocated_bytes.all.allocated", "allocated_bytes.all.freed", "allocation.all.allocated")
    assert counted == [total, total, 3]
    assert (mem.memory_allocated(device), mem.max_memory_allocated(device)) == (start, start + total)
    mem.reset_peak_memory_stats(device)
    mem.reset_accumulated_memory_stats(device)
    assert mem.max_memory_allocated(device) == start
    assert _stats(device, "allocated_bytes.all.allocated", "allocated_bytes.all.freed") == [0, 0]


def test_statistics_match_the_snapshot(device: Device) -> None:
    held = [forebay.allocate(nbytes, device) for nbytes in (100, MIB, 5 * MIB, 2 * MIB)]
    held[2].free()
    rows = mem.memory_snapshot(device)["segments"]
    blocks = [block for row in rows for block in row["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    assert sum(row["total_size"] for row in rows) == mem.memory_reserved(device)
    assert sum(block["size"] for block in live) == mem.memory_allocated(device)
    assert _stats(device, "allocation.all.current", "segment.all.current")[0] == len(live)
    assert all(sum(block["size"] for block in row["blocks"]) == row["total_size"] for row in rows)
    assert {block.address for block in held if not block.freed} <= {block["address"] for block in live}
    free, total = mem.mem_get_info(device)
    assert 0 <= free <= total - mem.memory_reserved(device)


def test_memory_summary_is_a_table(device: Device) -> None:
    lines = mem.memory_summary(device).splitlines()
    assert {len(line) for line in lines} == {77}
    assert len(mem.memory_summary(device, abbreviated=True)) < len(mem.memory_summary(device))


def test_peak_measurements_nest(device: Device) -> None:
    with mem.peak(device) as outer:
        large = forebay.allocate(24 * MIB, device)
        larger = large.size
        large.free()
        with mem.peak(device) as inner:
            mem.reset_peak_memory_stats(device)
            small = forebay.allocate(MIB, device)
    assert (outer.allocated_above, inner.allocated_above) == (larger, small.size)
    assert small.size < larger


def test_history_records_allocation_and_free(device: Device) -> None:
    mem.record_history(device=device)
    try:
        block = forebay.allocate(MIB, device)
        address = block.address
        block.free()
        trace = mem.memory_snapshot(device)["device_traces"][device.index or 0]
    finally:
        mem.record_history(None, device=device)
    actions = [entry["action"] for entry in trace if entry.get("addr") == address and "segment" not in entry["action"]]
    assert actions == ["alloc", "free_requested", "free_completed"]


# ---- Cache and limits


def test_empty_cache_releases_memory_to_the_device(device: Device) -> None:
    with _empty_cache(device) as reserved:
        free, _ = mem.mem_get_info(device)
        forebay.allocate(30 * MIB, device).free()
        assert mem.memory_reserved(device) >= reserved + 30 * MIB
        mem.empty_cache(device)
        assert mem.memory_reserved(device) == reserved
        assert mem.mem_get_info(device)[0] == free


def test_out_of_memory_leaves_statistics_unchanged(device: Device) -> None:
    _, total = mem.mem_get_info(device)
    held, ooms = mem.memory_allocated(device), _stats(device, "num_ooms")[0]
    heaps = port_of(device).props.heaps
    wanted = total + 1 if heaps is None else heaps.longest - 1
    with pytest.raises(OutOfMemory, match=r"out of memory.*\. Tried to allocate") as caught:
        list(map(forebay.allocate, [wanted] * (total // wanted + 1), [device] * (total // wanted + 1)))
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.wanted, caught.value.capacity, caught.value.device) == (wanted, total, str(device))
    assert (mem.memory_allocated(device), _stats(device, "num_ooms")[0]) == (held, ooms + 1)
    assert forebay.allocate(MIB, device).size >= MIB


def test_memory_fraction_limits_allocations(device: Device) -> None:
    with _empty_cache(device) as reserved:
        heaps, before = port_of(device).props.heaps, mem.get_per_process_memory_fraction(device)
        whole = mem.mem_get_info(device)[1] if heaps is None else heaps.recommended
        mem.set_per_process_memory_fraction((reserved + 40 * MIB) / whole, device)
        try:
            assert mem.get_per_process_memory_fraction(device) < before
            held = forebay.allocate(30 * MIB, device)
            with pytest.raises(OutOfMemory, match="allowed"):
                forebay.allocate(30 * MIB, device)
            assert heaps is not None or mem.memory_reserved(device) <= reserved + 40 * MIB
        finally:
            mem.set_per_process_memory_fraction(before, device)
        assert forebay.allocate(30 * MIB, device).address != held.address
        del held


# ---- Memory pools and the disabled cache


def test_mem_pool_is_separate_and_releases_its_memory(device: Device) -> None:
    with _empty_cache(device) as reserved:
        pool = mem.MemPool()
        with mem.use_mem_pool(pool, device):
            inside = forebay.allocate(5 * MIB, device)
        address = inside.address
        inside.free()
        assert forebay.allocate(5 * MIB, device).address != address
        with mem.use_mem_pool(pool, device):
            assert forebay.allocate(5 * MIB, device).address == address
        del pool
        mem.empty_cache(device)
        assert mem.memory_reserved(device) == reserved


def test_mem_pool_applies_to_the_calling_thread_only(device: Device) -> None:
    pool = mem.MemPool()
    with mem.use_mem_pool(pool, device), ThreadPoolExecutor(1) as thread:
        outside = thread.submit(forebay.allocate, 5 * MIB, device).result(60)
        assert pool.snapshot(device) == []
    assert not outside.freed


def test_disabled_caching_allocator_bypasses_the_cache(device: Device) -> None:
    with _empty_cache(device) as reserved:
        free, _ = mem.mem_get_info(device)
        with mem.caching_allocator_disabled():
            block = forebay.allocate(6 * MIB, device)  # a multiple of the pages of GPUs
            assert (mem.memory_reserved(device), mem.mem_get_info(device)[0]) == (reserved, free - 6 * MIB)
            block.free()
        assert mem.mem_get_info(device)[0] == free
