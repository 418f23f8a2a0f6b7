"""Where a capture's memory comes from, and when it goes."""

from __future__ import annotations

import threading

import pytest
from support.graph_scenes import captured, pools_of

import forebay
from forebay.runtime.devices.open_device import open_device
from forebay.runtime.graphs.graph import Graph

MIB = 1 << 20


def test_memory_of_a_capture_is_the_graphs_own(stream):
    allocator = open_device(stream.device).allocator
    graph = Graph()
    made = captured(graph, lambda: forebay.empty(MIB).fill_(1))
    assert pools_of(stream).count(graph.pool()) == 1
    before = made.data_ptr()
    del made
    assert forebay.empty(MIB).data_ptr() != before
    graph.reset()
    allocator.empty()
    assert graph._pools == []
    assert allocator.broken() is None
    assert list(allocator.private) == []


def test_how_much_there_is_after_each_step():
    """Bytes reserved, blocks and segments: as the real PyTorch tells them, over the oracle's stand-in."""
    told, graph = [], Graph()
    with forebay.emulate("cuda", profile="h200", memory=1 << 30), forebay.Stream("cuda:0"):

        def look():
            stats = forebay.memory.memory_stats("cuda:0")
            told.append([stats[f"{name}.all.current"] for name in ("reserved_bytes", "active", "segment")])

        graph.capture_begin()
        kept, gone = forebay.empty(3 * MIB), forebay.empty(MIB)
        look()
        del gone
        again = forebay.empty(MIB).zero_()
        look()
        graph.capture_end()
        del again, kept
        look()
        forebay.memory.empty_cache("cuda:0")
        look()
        graph.reset()
        look()
        forebay.memory.empty_cache("cuda:0")
        look()
    assert told == [[32 * MIB, 2, 2], [32 * MIB, 2, 2], [32 * MIB, 0, 2], [32 * MIB, 0, 2], [32 * MIB, 0, 2], [0, 0, 0]]


def test_a_second_stream_of_the_capture_allocates_there_too(stream):
    graph, side = Graph(), forebay.Stream(stream.device)
    graph.capture_begin()
    side.wait_stream(stream)
    with side:
        made = forebay.empty(100).fill_(1)
    stream.wait_stream(side)
    graph.capture_end()
    assert pools_of(stream).count(graph.pool()) == 1
    graph.replay()
    assert made.tolist() == [1] * 100


def test_graphs_share_a_pool(stream):
    one, other, pool = Graph(), Graph(), forebay.memory.MemPool()
    captured(one, lambda: forebay.empty(10).fill_(1))
    captured(other, lambda: forebay.empty(10).fill_(1), pool=one.pool())
    assert one.pool() == other.pool()
    third = Graph()
    captured(third, lambda: forebay.empty(10).fill_(1), pool=pool)
    assert (third.pool(), pool.use_count(stream.device)) == (pool.id, 2)
    third.reset()
    assert pool.use_count(stream.device) == 1


def test_a_pool_serves_one_capture_at_a_time(stream):
    one, other = Graph(), Graph()
    handle = forebay.runtime.memory.mem_pool.new_id()
    one.capture_begin(pool=handle)
    with forebay.Stream(stream.device), pytest.raises(RuntimeError, match="already recording to mempool_id"):
        other.capture_begin(pool=handle)
    forebay.zeros(1).fill_(1)
    one.capture_end()


def test_pools_that_are_kept_besides(stream):
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
        open_device(stream.device).allocator.private.leave(handle)  # it had one user


def test_memory_can_be_given_back_during_a_capture(stream):
    """The cache is emptied, though the stream's last work of before is still held."""
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


def test_a_block_that_the_captured_stream_used_waits_for_its_work_of_before(stream):
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


def test_an_input_that_is_gone_is_found(stream):
    graph, given, out = Graph(), forebay.zeros(4), forebay.zeros(4)
    graph.capture_begin(check_input_liveness=True)
    out.copy_(forebay.empty(4).copy_(given))
    graph.capture_end()
    graph.replay()
    address = given.data_ptr()
    del given
    with pytest.raises(RuntimeError, match=rf"detected 1 dead tensor\(s\)\.\nDead tensor #1 \(data_ptr={address:#x}\)"):
        graph.replay()
