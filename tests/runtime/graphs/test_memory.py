"""Memory pools of captures: allocation, sharing and release."""

from __future__ import annotations

import threading

import pytest
from support.graph_scenes import capture, segment_pools

import forebay
from forebay.runtime.devices.open_device import open_device
from forebay.runtime.graphs.graph import Graph

MIB = 1 << 20


def test_capture_allocates_from_private_pool(stream):
    allocator = open_device(stream.device).allocator
    graph = Graph()
    made = capture(graph, lambda: forebay.empty(MIB).fill_(1))
    assert segment_pools(stream).count(graph.pool()) == 1
    before = made.data_ptr()
    del made
    assert forebay.empty(MIB).data_ptr() != before
    graph.reset()
    allocator.empty()
    assert graph._pools == []
    assert allocator.check_invariants() is None
    assert list(allocator.private) == []


def test_memory_stats_match_pytorch_after_each_step():
    """Reserved bytes, blocks and segments as recorded from PyTorch over the oracle's stand-in."""
    steps, graph = [], Graph()
    with forebay.emulate("cuda", profile="h200", memory=1 << 30), forebay.Stream("cuda:0"):

        def record_stats():
            stats = forebay.memory.memory_stats("cuda:0")
            steps.append([stats[f"{name}.all.current"] for name in ("reserved_bytes", "active", "segment")])

        graph.capture_begin()
        kept, freed = forebay.empty(3 * MIB, device="cuda"), forebay.empty(MIB, device="cuda")
        record_stats()
        del freed
        again = forebay.empty(MIB, device="cuda").zero_()
        record_stats()
        graph.capture_end()
        del again, kept
        record_stats()
        forebay.memory.empty_cache("cuda:0")
        record_stats()
        graph.reset()
        record_stats()
        forebay.memory.empty_cache("cuda:0")
        record_stats()
    assert steps == [
        [32 * MIB, 2, 2],
        [32 * MIB, 2, 2],
        [32 * MIB, 0, 2],
        [32 * MIB, 0, 2],
        [32 * MIB, 0, 2],
        [0, 0, 0],
    ]


def test_joined_stream_allocates_from_private_pool(stream):
    graph, side = Graph(), forebay.Stream(stream.device)
    graph.capture_begin()
    side.wait_stream(stream)
    with side:
        made = forebay.empty(100).fill_(1)
    stream.wait_stream(side)
    graph.capture_end()
    assert segment_pools(stream).count(graph.pool()) == 1
    graph.replay()
    assert made.tolist() == [1] * 100


def test_graphs_can_share_a_pool(stream):
    one, other, pool = Graph(), Graph(), forebay.memory.MemPool()
    capture(one, lambda: forebay.empty(10).fill_(1))
    capture(other, lambda: forebay.empty(10).fill_(1), pool=one.pool())
    assert one.pool() == other.pool()
    third = Graph()
    capture(third, lambda: forebay.empty(10).fill_(1), pool=pool)
    assert (third.pool(), pool.use_count(stream.device)) == (pool.id, 2)
    third.reset()
    assert pool.use_count(stream.device) == 1


def test_pool_allows_one_capture_at_a_time(stream):
    one, other = Graph(), Graph()
    handle = forebay.runtime.memory.mem_pool.new_id()
    one.capture_begin(pool=handle)
    with forebay.Stream(stream.device), pytest.raises(RuntimeError, match="already recording to mempool_id"):
        other.capture_begin(pool=handle)
    forebay.zeros(1).fill_(1)
    one.capture_end()


def test_retain_pool_keeps_other_pools(stream):
    graph, handle = Graph(), forebay.runtime.memory.mem_pool.new_id()
    with pytest.raises(RuntimeError, match="may only be called during capture"):
        graph._retain_pool(handle)
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="expected a non-default memory pool"):
        graph._retain_pool((0, 0))
    with pytest.raises(RuntimeError, match="expected a memory pool"):
        graph._retain_pool(None)
    graph._retain_pool(handle)
    graph._retain_pool(handle)
    forebay.zeros(1).fill_(1)
    graph.capture_end()
    assert graph.pools() == [graph.pool(), handle]
    graph.reset()
    with pytest.raises(RuntimeError):
        open_device(stream.device).allocator.private.decref(handle)  # the graph was its only user


def test_cache_can_be_emptied_during_capture(stream):
    """Emptying waits for the stream's work queued before the capture."""
    gate, numbers = threading.Event(), forebay.zeros(MIB)
    stream.queue.call(lambda: gate.wait(20))
    numbers.zero_()
    del numbers
    graph = Graph()
    graph.capture_begin(capture_error_mode="relaxed")
    threading.Timer(0.05, gate.set).start()
    open_device(stream.device).allocator.empty()
    assert gate.is_set()
    made = forebay.empty(10).fill_(1)
    graph.capture_end()
    graph.replay()
    assert made.tolist() == [1] * 10


def test_block_used_by_captured_stream_waits_for_earlier_work(stream):
    gate, side = threading.Event(), forebay.Stream(stream.device)
    with side:
        numbers = forebay.zeros(10)
    address, graph = numbers.data_ptr(), Graph()
    stream.queue.call(lambda: gate.wait(20))
    numbers.record_stream(stream)
    graph.capture_begin(capture_error_mode="relaxed")
    before = stream.capture.queues[stream.handle]
    del numbers
    with side:
        assert forebay.empty(10).data_ptr() != address
        gate.set()
        stream.queue.wait(before)
        assert forebay.empty(10).data_ptr() == address
    graph.reset()


def test_replay_reports_dead_input(stream):
    graph, given, out = Graph(), forebay.zeros(4), forebay.zeros(4)
    graph.capture_begin(check_input_liveness=True)
    out.copy_(forebay.empty(4).copy_(given))
    graph.capture_end()
    graph.replay()
    address = given.data_ptr()
    del given
    with pytest.raises(RuntimeError, match=rf"detected 1 dead tensor\(s\)\.\nDead tensor #1 \(data_ptr={address:#x}\)"):
        graph.replay()
