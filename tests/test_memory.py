"""forebay.memory: pools of one's own, settings, the fraction, no cache, observers, what a program says of itself."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

import forebay
from forebay import memory
from forebay.runtime.settings import process_settings
from forebay.runtime.settings.allocator_settings import DEFAULT

HOST = "host:0"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def settings_as_before():
    memory.empty_cache(HOST)
    yield
    memory.record_history(None, device=HOST)
    memory.set_per_process_memory_fraction(1, HOST)
    process_settings.apply("expandable_segments:False")  # which a new text would keep
    memory.empty_cache(HOST)


def private(numbers):
    return {key: value for key, value in numbers.items() if "private" in key and key.endswith("all.current")}


def test_a_pool_of_ones_own_shares_with_nobody():
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, HOST):
        mine = forebay.allocate(1000, HOST)
    other = forebay.allocate(1000, HOST)
    assert [s["segment_pool_id"] for s in pool.snapshot(HOST)] == [pool.id]
    (segment,) = pool.snapshot(HOST)
    assert segment["address"] <= mine.address < segment["address"] + segment["total_size"]
    assert not segment["address"] <= other.address < segment["address"] + segment["total_size"]


def test_a_pool_gives_its_idle_memory_back_when_it_goes():
    reserved = memory.memory_reserved(HOST)
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, HOST):
        forebay.allocate(3 * MIB, HOST)  # dropped at once: idle
        kept = forebay.allocate(1000, HOST)
    assert memory.memory_reserved(HOST) > reserved
    del pool
    (key,) = (key for key, value in private(memory.memory_stats(HOST)).items() if value)
    assert memory.memory_stats(HOST)[key] == 2 * MIB  # the segment that holds the other block
    del kept
    memory.empty_cache(HOST)
    assert memory.memory_stats(HOST)[key] == 0
    assert memory.memory_reserved(HOST) == reserved


def test_pools_nest_and_the_innermost_counts():
    outer, inner = memory.MemPool(), memory.MemPool()
    with memory.use_mem_pool(outer, HOST):
        with memory.use_mem_pool(inner, HOST):
            assert (outer.use_count(HOST), inner.use_count(HOST)) == (2, 2)
            block = forebay.allocate(1000, HOST)
        assert (outer.use_count(HOST), inner.use_count(HOST)) == (2, 1)
    assert len(inner.snapshot(HOST)) == 1
    assert outer.snapshot(HOST) == []
    del block


def test_a_pool_in_use_cannot_be_used_again():
    pool = memory.MemPool()
    with memory.use_mem_pool(pool, HOST):
        with pytest.raises(forebay.ForebayError, match="already recording to mempool_id"):
            memory.use_mem_pool(pool, HOST).__enter__()
        assert pool.use_count(HOST) == 2
    assert pool.use_count(HOST) == 1


def test_threads_use_their_own_pools_at_once():
    pools, wrong = [memory.MemPool() for _ in range(4)], []

    def work(pool):
        for _ in range(300):
            with memory.use_mem_pool(pool, HOST):
                blocks.append(forebay.allocate(512, HOST))
            if pool.use_count(HOST) != 1:
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
    sizes = [sum(b["state"] == "active_allocated" for s in pool.snapshot(HOST) for b in s["blocks"]) for pool in pools]
    assert sizes == [300] * 4


def test_settings_for_all_devices():
    memory.set_allocator_settings("expandable_segments:True")
    tensor = forebay.empty(10 * MIB, dtype=forebay.uint8, device=HOST)
    segments = memory.memory_snapshot(HOST)["segments"]
    at = tensor.data_ptr()
    assert [s["is_expandable"] for s in segments if s["address"] <= at < s["address"] + s["total_size"]] == [True]
    with pytest.raises(ValueError, match="Unrecognized key 'foo'"):
        memory.set_allocator_settings("max_split_size_mb:64,foo:1")
    assert process_settings.current().max_split_size == 64 * MIB
    assert memory.memory_snapshot(HOST)["allocator_settings"]["max_split_size"] == 64 * MIB


def test_the_fraction_is_a_limit():
    assert memory.get_per_process_memory_fraction(HOST) == 1
    memory.set_per_process_memory_fraction(0.25, HOST)
    _, total = memory.mem_get_info(HOST)
    assert memory.get_per_process_memory_fraction(HOST) == pytest.approx(0.25)
    with pytest.raises(forebay.OutOfMemory, match="allowed; "):
        forebay.allocate(total // 3, HOST)
    with pytest.raises(ValueError, match=r"Invalid fraction value: 1\.5"):
        memory.set_per_process_memory_fraction(1.5, HOST)


def test_the_fraction_stays_one_when_the_capacity_changes():
    _, total = memory.mem_get_info(HOST)
    memory.set_per_process_memory_fraction(0.5, HOST)
    memory.set_capacity(total // 2, HOST)
    try:
        assert memory.get_per_process_memory_fraction(HOST) == pytest.approx(0.5)
    finally:
        memory.set_capacity(total, HOST)


def test_another_backend_is_not_ours(monkeypatch):
    monkeypatch.setenv("FOREBAY_ALLOC_CONF", "backend:cudaMallocAsync")
    monkeypatch.setattr(process_settings, "_now", None)
    with pytest.warns(forebay.ForebayWarning, match="backend:cudaMallocAsync is not forebay's"):
        process_settings.current()


def test_without_a_cache_memory_comes_and_goes_uncounted():
    before = memory.memory_stats(HOST)
    free, _ = memory.mem_get_info(HOST)
    with memory.caching_allocator_disabled():
        tensor = forebay.full((MIB,), 7, dtype=forebay.uint8, device=HOST)
        assert memory.mem_get_info(HOST)[0] == free - MIB
        copy = tensor.clone()
        assert int(copy.numpy()[0]) == 7
    kept = memory.memory_stats(HOST)
    assert {key: kept[key] for key in before} == before
    del tensor, copy  # back to the device though caching is on again
    gc.collect()
    assert memory.mem_get_info(HOST)[0] == free
    assert memory.memory_stats(HOST) == before


def test_an_observer_hears_before_the_error_does():
    heard = []
    end = memory.attach_out_of_memory_observer(lambda *said: heard.append(said), HOST)
    free, total = memory.mem_get_info(HOST)
    with pytest.raises(forebay.OutOfMemory):
        forebay.allocate(total + MIB, HOST)
    end()
    end()
    with pytest.raises(forebay.OutOfMemory):
        forebay.allocate(total + MIB, HOST)
    ((index, asked, allowed, was_free),) = heard
    assert (index, allowed) == (0, total)
    assert asked >= total + MIB
    assert was_free >= free


def test_the_history_says_what_the_program_said():
    memory.record_history(100, device=HOST, annotations=True, compile_context=True)
    memory.set_metadata({"step": 3})
    with memory.annotate("forward"), memory.compile_context("0/0"):
        tensor = forebay.empty(100, device=HOST)
    memory.set_metadata("")
    memory.annotate_tensor(tensor, "weights")
    del tensor
    taken = memory.memory_snapshot(HOST)
    said = [(e["action"], e["compile_context"], e["user_metadata"]) for e in taken["device_traces"][0]]
    assert ("alloc", "0/0", '{"step":3}') in said
    assert ("annotate", "N/A", "weights") in said
    assert said[-1] == ("free_completed", "N/A", "")
    assert [(mark["stage"], mark["name"]) for mark in taken["external_annotations"]] == [
        ("START", "forward"),
        ("END", "forward"),
    ]


def test_skipped_actions_are_not_recorded():
    memory.record_history(100, device=HOST, skip_actions=["free_requested", "segment_alloc"])
    forebay.allocate(1000, HOST)
    (trace,) = memory.memory_snapshot(HOST)["device_traces"]
    assert [entry["action"] for entry in trace] == ["alloc", "free_completed"]
    with pytest.raises(forebay.ForebayError, match="Unknown TraceEntry action: foo"):
        memory.record_history(100, device=HOST, skip_actions=["foo"])


@pytest.mark.parametrize(
    ("context", "of_blocks", "of_entries", "own"),
    [
        (None, False, False, False),
        ("state", True, False, False),
        ("alloc", True, True, False),
        ("all", True, True, True),
    ],
)
def test_whose_stacks_are_taken(context, of_blocks, of_entries, own):
    memory.record_history(100, device=HOST, context=context)
    block = forebay.allocate(1000, HOST)
    taken = memory.memory_snapshot(HOST)
    (live,) = (
        b
        for segment in taken["segments"]
        for b in segment["blocks"]
        if b["address"] == block.address and b["state"] == "active_allocated"
    )
    assert bool(live["frames"]) == of_blocks

    def give_back(block):
        block.free()

    give_back(block)
    (trace,) = memory.memory_snapshot(HOST)["device_traces"]
    by_action = {entry["action"]: entry.get("frames", []) for entry in trace}
    assert bool(by_action["alloc"]) == of_entries
    assert any("give_back" in frame["name"] for frame in by_action["free_requested"]) == own


def test_an_earlier_recording_can_be_kept():
    memory.record_history(100, device=HOST)
    forebay.allocate(1000, HOST)
    memory.record_history(2, device=HOST, keep=True)
    (trace,) = memory.memory_snapshot(HOST)["device_traces"]
    assert [entry["action"] for entry in trace] == ["free_requested", "free_completed"]
    memory.record_history(100, device=HOST)
    assert memory.memory_snapshot(HOST)["device_traces"] == [[]]


def test_nested_and_flat_numbers_agree():
    flat, nested = memory.memory_stats(HOST), memory.memory_stats_as_nested_dict(HOST)
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    assert nested["num_ooms"] == flat["num_ooms"]
    assert len([key for key in flat if "private" not in key]) == 123
    assert nested["max_split_size"] == -1
    assert DEFAULT.max_split_size == (1 << 64) - 1
    assert "forebay HOST memory summary, device ID 0 " in memory.memory_summary(HOST)
