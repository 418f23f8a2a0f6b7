"""Memory of the runtime, as a program sees it on any kind of device: blocks, the cache, statistics, limits, pools."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

import forebay
from forebay import Device, OutOfMemory, Stream
from forebay import memory as mem
from forebay.spi import Launches
from forebay.testing.conformance.scenes import MIB, Gate, needs, not_imaginary, port_of

__all__ = [
    "test_a_block_goes_back_twice",
    "test_a_block_that_another_stream_uses_waits_for_it",
    "test_a_limit_holds_and_goes",
    "test_a_pool_is_apart_and_goes_with_its_memory",
    "test_a_thread_has_its_own_pool",
    "test_blocks_are_apart",
    "test_memory_is_kept_for_the_next",
    "test_one_streams_memory_is_not_anothers",
    "test_peaks_nest",
    "test_sizes_that_are_none",
    "test_statistics_are_a_recount_of_the_snapshot",
    "test_the_cache_goes_back_to_the_device",
    "test_the_history_tells_what_happened",
    "test_the_summary_is_a_table",
    "test_threads_allocate_at_once",
    "test_wanting_more_than_there_is_changes_nothing",
    "test_what_is_counted",
    "test_without_the_cache",
]


def _counted(device: Device, *names: str) -> list[int]:
    stats = mem.memory_stats(device)
    return [stats[name] for name in names]


@contextmanager
def _empty_cache(device: Device) -> Iterator[int]:
    """Gives how much is reserved without what the test takes."""
    mem.empty_cache(device)
    yield mem.memory_reserved(device)
    mem.empty_cache(device)


# ---- Blocks


def test_blocks_are_apart(device: Device) -> None:
    blocks = [forebay.allocate(nbytes, device) for nbytes in (1, 512, 513, MIB, 3 * MIB, 1)]
    spans = sorted((block.address, block.address + block.size) for block in blocks)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(block.size >= block.nbytes for block in blocks)


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, "4096", None])
def test_sizes_that_are_none(device: Device, nbytes: Any) -> None:
    before = mem.memory_allocated(device)
    with pytest.raises((ValueError, TypeError)):
        forebay.allocate(nbytes, device)
    assert mem.memory_allocated(device) == before


def test_a_block_goes_back_twice(device: Device) -> None:
    before = mem.memory_allocated(device)
    block = forebay.allocate(1000, device)
    block.free()
    block.free()
    assert block.freed
    assert mem.memory_allocated(device) == before
    with pytest.raises(ValueError, match="was given back already"):
        block.used_on(0)


def test_memory_is_kept_for_the_next(device: Device) -> None:
    first = forebay.allocate(5 * MIB, device)
    taken, address = _counted(device, "num_device_alloc"), first.address
    first.free()
    second = forebay.allocate(5 * MIB, device)
    assert second.address == address
    assert _counted(device, "num_device_alloc") == taken


def test_one_streams_memory_is_not_anothers(device: Device) -> None:
    freed = forebay.allocate(5 * MIB, device)
    address = freed.address
    freed.free()
    with Stream(device):
        assert forebay.allocate(5 * MIB, device).address != address


@needs(Launches)
@not_imaginary
def test_a_block_that_another_stream_uses_waits_for_it(device: Device) -> None:
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


def test_threads_allocate_at_once(device: Device) -> None:
    before = mem.memory_allocated(device)

    def work(number: int) -> int:
        blocks = [forebay.allocate(1 + 700 * number, device) for _ in range(20)]
        return len({block.address for block in blocks})

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [20] * 8
    assert mem.memory_allocated(device) == before


# ---- What there is


def test_what_is_counted(device: Device) -> None:
    mem.reset_accumulated_memory_stats(device)
    mem.reset_peak_memory_stats(device)
    start = mem.memory_allocated(device)
    held = [forebay.allocate(MIB, device) for _ in range(3)]
    taken = sum(block.size for block in held)
    held.clear()
    moved = _counted(device, "allocated_bytes.all.allocated", "allocated_bytes.all.freed", "allocation.all.allocated")
    assert moved == [taken, taken, 3]
    assert (mem.memory_allocated(device), mem.max_memory_allocated(device)) == (start, start + taken)
    mem.reset_peak_memory_stats(device)
    mem.reset_accumulated_memory_stats(device)
    assert mem.max_memory_allocated(device) == start
    assert _counted(device, "allocated_bytes.all.allocated", "allocated_bytes.all.freed") == [0, 0]


def test_statistics_are_a_recount_of_the_snapshot(device: Device) -> None:
    held = [forebay.allocate(nbytes, device) for nbytes in (100, MIB, 5 * MIB, 2 * MIB)]
    held[2].free()
    rows = mem.memory_snapshot(device)["segments"]
    blocks = [block for row in rows for block in row["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    assert sum(row["total_size"] for row in rows) == mem.memory_reserved(device)
    assert sum(block["size"] for block in live) == mem.memory_allocated(device)
    assert _counted(device, "allocation.all.current", "segment.all.current")[0] == len(live)
    assert all(sum(block["size"] for block in row["blocks"]) == row["total_size"] for row in rows)
    assert {block.address for block in held if not block.freed} <= {block["address"] for block in live}
    free, total = mem.mem_get_info(device)
    assert 0 <= free <= total - mem.memory_reserved(device)


def test_the_summary_is_a_table(device: Device) -> None:
    lines = mem.memory_summary(device).splitlines()
    assert {len(line) for line in lines} == {77}
    assert len(mem.memory_summary(device, abbreviated=True)) < len(mem.memory_summary(device))


def test_peaks_nest(device: Device) -> None:
    with mem.peak(device) as outer:
        large = forebay.allocate(24 * MIB, device)
        larger = large.size
        large.free()
        with mem.peak(device) as inner:
            mem.reset_peak_memory_stats(device)
            small = forebay.allocate(MIB, device)
    assert (outer.allocated_above, inner.allocated_above) == (larger, small.size)
    assert small.size < larger


def test_the_history_tells_what_happened(device: Device) -> None:
    mem.record_history(device=device)
    try:
        block = forebay.allocate(MIB, device)
        address = block.address
        block.free()
        trace = mem.memory_snapshot(device)["device_traces"][device.index or 0]
    finally:
        mem.record_history(None, device=device)
    mine = [entry["action"] for entry in trace if entry.get("addr") == address and "segment" not in entry["action"]]
    assert mine == ["alloc", "free_requested", "free_completed"]


# ---- How much there is


def test_the_cache_goes_back_to_the_device(device: Device) -> None:
    with _empty_cache(device) as reserved:
        free, _ = mem.mem_get_info(device)
        forebay.allocate(30 * MIB, device).free()
        assert mem.memory_reserved(device) >= reserved + 30 * MIB
        mem.empty_cache(device)
        assert mem.memory_reserved(device) == reserved
        assert mem.mem_get_info(device)[0] == free


def test_wanting_more_than_there_is_changes_nothing(device: Device) -> None:
    _, total = mem.mem_get_info(device)
    held, ooms = mem.memory_allocated(device), _counted(device, "num_ooms")[0]
    heaps = port_of(device).props.heaps
    wanted = total + 1 if heaps is None else heaps.longest - 1
    with pytest.raises(OutOfMemory, match=r"out of memory.*\. Tried to allocate") as caught:
        list(map(forebay.allocate, [wanted] * (total // wanted + 1), [device] * (total // wanted + 1)))
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.wanted, caught.value.capacity, caught.value.device) == (wanted, total, str(device))
    assert (mem.memory_allocated(device), _counted(device, "num_ooms")[0]) == (held, ooms + 1)
    assert forebay.allocate(MIB, device).size >= MIB


def test_a_limit_holds_and_goes(device: Device) -> None:
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


# ---- Other ways to memory


def test_a_pool_is_apart_and_goes_with_its_memory(device: Device) -> None:
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


def test_a_thread_has_its_own_pool(device: Device) -> None:
    pool = mem.MemPool()
    with mem.use_mem_pool(pool, device), ThreadPoolExecutor(1) as thread:
        outside = thread.submit(forebay.allocate, 5 * MIB, device).result(60)
        assert pool.snapshot(device) == []
    assert not outside.freed


def test_without_the_cache(device: Device) -> None:
    with _empty_cache(device) as reserved:
        free, _ = mem.mem_get_info(device)
        with mem.caching_allocator_disabled():
            block = forebay.allocate(5 * MIB, device)
            assert (mem.memory_reserved(device), mem.mem_get_info(device)[0]) == (reserved, free - 5 * MIB)
            block.free()
        assert mem.mem_get_info(device)[0] == free
