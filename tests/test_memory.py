"""forebay.memory: private pools, settings, limits, disabled cache, out-of-memory observers, history annotations."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

import forebay
from forebay import memory
from forebay.runtime.settings import process_settings
from forebay.runtime.settings.allocator_settings import DEFAULT

CPU = "cpu"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def restore_settings():
    memory.empty_cache(CPU)
    yield
    memory.record_history(None, device=CPU)
    memory.set_per_process_memory_fraction(1, CPU)
    process_settings.apply("expandable_segments:False")  # which new settings would keep
    memory.empty_cache(CPU)


def private_pool_stats(stats):
    return {key: value for key, value in stats.items() if "private" in key and key.endswith("all.current")}


def test_private_pool_shares_no_segment():
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, CPU):
        mine = forebay.allocate(1000, CPU)
    other = forebay.allocate(1000, CPU)
    assert [s["segment_pool_id"] for s in pool.snapshot(CPU)] == [pool.id]
    (segment,) = pool.snapshot(CPU)
    assert segment["address"] <= mine.address < segment["address"] + segment["total_size"]
    assert not segment["address"] <= other.address < segment["address"] + segment["total_size"]


def test_deleted_pool_releases_its_cached_segments():
    reserved = memory.memory_reserved(CPU)
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, CPU):
        forebay.allocate(3 * MIB, CPU)  # freed at once: cached
        kept = forebay.allocate(1000, CPU)
    assert memory.memory_reserved(CPU) > reserved
    del pool
    (key,) = (key for key, value in private_pool_stats(memory.memory_stats(CPU)).items() if value)
    assert memory.memory_stats(CPU)[key] == 2 * MIB  # the segment that holds the other block
    del kept
    memory.empty_cache(CPU)
    assert memory.memory_stats(CPU)[key] == 0
    assert memory.memory_reserved(CPU) == reserved


def test_pools_nest_and_innermost_is_used():
    outer, inner = memory.MemPool(), memory.MemPool()
    with memory.use_mem_pool(outer, CPU):
        with memory.use_mem_pool(inner, CPU):
            assert (outer.use_count(CPU), inner.use_count(CPU)) == (2, 2)
            block = forebay.allocate(1000, CPU)
        assert (outer.use_count(CPU), inner.use_count(CPU)) == (2, 1)
    assert len(inner.snapshot(CPU)) == 1
    assert outer.snapshot(CPU) == []
    del block


def test_pool_in_use_cannot_be_entered_again():
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, CPU):
        with pytest.raises(forebay.ForebayError, match="already recording to mempool_id"):
            memory.use_mem_pool(pool, CPU).__enter__()
        assert pool.use_count(CPU) == 2
    assert pool.use_count(CPU) == 1


def test_threads_use_different_pools_concurrently():
    pools, wrong = [memory.MemPool() for _ in range(4)], []

    def work(pool):
        for _ in range(300):
            with memory.use_mem_pool(pool, CPU):
                blocks.append(forebay.allocate(512, CPU))
            if pool.use_count(CPU) != 1:
                wrong.append(pool)

    blocks: list[object] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert len(blocks) == 1200
    assert wrong == []
    sizes = [sum(b["state"] == "active_allocated" for s in pool.snapshot(CPU) for b in s["blocks"]) for pool in pools]
    assert sizes == [300] * 4


def test_set_allocator_settings_applies_to_open_devices():
    memory.set_allocator_settings("expandable_segments:True")
    tensor = forebay.empty(10 * MIB, dtype=forebay.uint8, device=CPU)
    segments = memory.memory_snapshot(CPU)["segments"]
    address = tensor.data_ptr()
    assert [s["is_expandable"] for s in segments if s["address"] <= address < s["address"] + s["total_size"]] == [True]
    with pytest.raises(ValueError, match="Unrecognized key 'foo'"):
        memory.set_allocator_settings("max_split_size_mb:64,foo:1")
    assert process_settings.current().max_split_size == 64 * MIB
    assert memory.memory_snapshot(CPU)["allocator_settings"]["max_split_size"] == 64 * MIB


def test_memory_fraction_limits_allocations():
    assert memory.get_per_process_memory_fraction(CPU) == 1
    memory.set_per_process_memory_fraction(0.25, CPU)
    _, total = memory.mem_get_info(CPU)
    assert memory.get_per_process_memory_fraction(CPU) == pytest.approx(0.25)
    with pytest.raises(forebay.OutOfMemory, match="allowed; "):
        forebay.allocate(total // 3, CPU)
    with pytest.raises(ValueError, match=r"Invalid fraction value: 1\.5"):
        memory.set_per_process_memory_fraction(1.5, CPU)


def test_memory_fraction_is_kept_when_capacity_changes():
    _, total = memory.mem_get_info(CPU)
    memory.set_per_process_memory_fraction(0.5, CPU)
    memory.set_capacity(total // 2, CPU)
    try:
        assert memory.get_per_process_memory_fraction(CPU) == pytest.approx(0.5)
    finally:
        memory.set_capacity(total, CPU)


def test_other_allocator_backend_warns(monkeypatch):
    monkeypatch.setenv("FOREBAY_ALLOC_CONF", "backend:cudaMallocAsync")
    monkeypatch.setattr(process_settings, "_current", None)
    with pytest.warns(forebay.ForebayWarning, match="backend:cudaMallocAsync is not available in forebay"):
        process_settings.current()


def test_disabled_cache_allocates_from_device_uncounted():
    before = memory.memory_stats(CPU)
    free, _ = memory.mem_get_info(CPU)
    with memory.caching_allocator_disabled():
        tensor = forebay.full((MIB,), 7, dtype=forebay.uint8, device=CPU)
        assert memory.mem_get_info(CPU)[0] == free - MIB
        copy = tensor.clone()
        assert int(copy.numpy()[0]) == 7
    stats = memory.memory_stats(CPU)
    assert {key: stats[key] for key in before} == before
    del tensor, copy  # released to the device although caching is enabled again
    gc.collect()
    assert memory.mem_get_info(CPU)[0] == free
    assert memory.memory_stats(CPU) == before


def test_out_of_memory_observer_is_called_until_detached():
    calls = []
    detach = memory.attach_out_of_memory_observer(lambda *arguments: calls.append(arguments), CPU)
    free, total = memory.mem_get_info(CPU)
    with pytest.raises(forebay.OutOfMemory):
        forebay.allocate(total + MIB, CPU)
    detach()
    detach()
    with pytest.raises(forebay.OutOfMemory):
        forebay.allocate(total + MIB, CPU)
    ((index, asked, allowed, was_free),) = calls
    assert (index, allowed) == (0, total)
    assert asked >= total + MIB
    assert was_free >= free


def test_history_has_metadata_context_and_annotations():
    memory.record_history(100, device=CPU, annotations=True, compile_context=True)
    memory.set_metadata({"step": 3})
    with memory.annotate("forward"), memory.compile_context("0/0"):
        tensor = forebay.empty(100, device=CPU)
    memory.set_metadata("")
    memory.annotate_tensor(tensor, "weights")
    del tensor
    taken = memory.memory_snapshot(CPU)
    entries = [(e["action"], e["compile_context"], e["user_metadata"]) for e in taken["device_traces"][0]]
    assert ("alloc", "0/0", '{"step":3}') in entries
    assert ("annotate", "N/A", "weights") in entries
    assert entries[-1] == ("free_completed", "N/A", "")
    assert [(mark["stage"], mark["name"]) for mark in taken["external_annotations"]] == [
        ("START", "forward"),
        ("END", "forward"),
    ]


def test_skipped_actions_are_not_recorded():
    memory.record_history(100, device=CPU, skip_actions=["free_requested", "segment_alloc"])
    forebay.allocate(1000, CPU)
    (trace,) = memory.memory_snapshot(CPU)["device_traces"]
    assert [entry["action"] for entry in trace] == ["alloc", "free_completed"]
    with pytest.raises(forebay.ForebayError, match="Unknown TraceEntry action: foo"):
        memory.record_history(100, device=CPU, skip_actions=["foo"])


@pytest.mark.parametrize(
    ("context", "of_blocks", "of_entries", "of_frees"),
    [
        (None, False, False, False),
        ("state", True, False, False),
        ("alloc", True, True, False),
        ("all", True, True, True),
    ],
)
def test_context_selects_captured_stacks(context, of_blocks, of_entries, of_frees):
    memory.record_history(100, device=CPU, context=context)
    block = forebay.allocate(1000, CPU)
    taken = memory.memory_snapshot(CPU)
    (live,) = (
        b
        for segment in taken["segments"]
        for b in segment["blocks"]
        if b["address"] == block.address and b["state"] == "active_allocated"
    )
    assert bool(live["frames"]) == of_blocks

    def free_it(block):
        block.free()

    free_it(block)
    (trace,) = memory.memory_snapshot(CPU)["device_traces"]
    by_action = {entry["action"]: entry.get("frames", []) for entry in trace}
    assert bool(by_action["alloc"]) == of_entries
    assert any("free_it" in frame["name"] for frame in by_action["free_requested"]) == of_frees


def test_record_history_can_keep_earlier_entries():
    memory.record_history(100, device=CPU)
    forebay.allocate(1000, CPU)
    memory.record_history(2, device=CPU, keep=True)
    (trace,) = memory.memory_snapshot(CPU)["device_traces"]
    assert [entry["action"] for entry in trace] == ["free_requested", "free_completed"]
    memory.record_history(100, device=CPU)
    assert memory.memory_snapshot(CPU)["device_traces"] == [[]]


def test_nested_and_flat_statistics_agree():
    flat, nested = memory.memory_stats(CPU), memory.memory_stats_as_nested_dict(CPU)
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    assert nested["num_ooms"] == flat["num_ooms"]
    assert len([key for key in flat if "private" not in key]) == 123
    assert nested["max_split_size"] == -1
    assert DEFAULT.max_split_size == (1 << 64) - 1
    assert "forebay CPU memory summary, device ID 0 " in memory.memory_summary(CPU)
