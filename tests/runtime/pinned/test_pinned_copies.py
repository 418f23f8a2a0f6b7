"""Asynchronous copies from and to pinned host memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import forebay
from forebay import Stream, Unsupported
from forebay.runtime.memory.storage import pinned_block

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def counts():
    """Return a function that reads current statistics of pinned memory: by default blocks in use and all blocks."""
    forebay.memory.empty_host_cache("cpu")

    def current(*names):
        stats = forebay.memory.host_memory_stats("cpu")
        return [stats[f"{name}.current"] for name in names or ("active_requests", "allocations")]

    return current


def test_empty_pinned_returns_array_in_pinned_block():
    array = forebay.empty_pinned(2, 3, dtype=np.int16)
    array[...] = 7
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((2, 3), np.int16, True)
    assert forebay.empty_pinned((4,)).dtype == np.float32
    assert forebay.empty_pinned(2, dtype="bfloat16").dtype.name == "bfloat16"
    for view in (array, array[1:], array.T, array.view(np.uint8), array.ravel()):
        assert pinned_block(view) is not None
    for other in (array.copy(), np.ones(3), array + 1, forebay.tensor([1]).numpy()):
        assert pinned_block(other) is None


def test_empty_array_pins_no_memory(counts):
    before = counts()
    assert forebay.empty_pinned(0, 3).shape == (0, 3)
    assert counts() == before


@pytest.mark.parametrize("size", [(-1,), (2.5,), (1 << 100,), (1 << 40,)])
def test_empty_pinned_rejects_invalid_sizes(size, counts):
    before = counts()
    with pytest.raises((TypeError, RuntimeError)):
        forebay.empty_pinned(*size)
    assert counts() == before


def test_non_blocking_copies_do_not_wait():
    stream, gate = Stream(), threading.Event()
    source = forebay.empty_pinned(1000)
    source[...] = 5
    with stream:
        target = forebay.zeros(1000)
        stream.queue.call(lambda: gate.wait(30))
        target.copy_(source, non_blocking=True)
        back = forebay.empty_pinned(1000)
        forebay.from_numpy(back).copy_(target, non_blocking=True)
        assert not stream.query()
        gate.set()
        stream.synchronize()
    assert back.tolist() == [5] * 1000


def test_blocking_and_unpinned_copies_wait():
    """A copy waits without non_blocking, and if the source is not pinned."""
    stream = Stream()
    with stream:
        target = forebay.zeros(1000)
        pinned = forebay.empty_pinned(1000)
        for source, non_blocking in ((pinned, False), (np.ones(1000, np.float32), True)):
            gate = threading.Event()
            stream.queue.call(lambda gate=gate: gate.wait(30))
            timer = threading.Timer(0.05, gate.set)
            timer.start()
            target.copy_(source, non_blocking=non_blocking)
            assert gate.is_set()
            timer.join()


@pytest.mark.parametrize("back", [False, True])
def test_block_is_not_reused_before_its_copy_is_done(counts, back):
    before = counts()
    stream, gate = Stream(), threading.Event()
    array = forebay.empty_pinned(1000)
    address = array.__array_interface__["data"][0]
    with stream:
        target = forebay.zeros(1000)
        stream.queue.call(lambda: gate.wait(30))
        if back:
            forebay.from_numpy(array).copy_(target, non_blocking=True)
        else:
            target.copy_(array, non_blocking=True)
    del array
    gc.collect()
    other = forebay.empty_pinned(1000)
    assert other.__array_interface__["data"][0] != address
    assert counts() == [before[0] + 2, before[1] + 2]
    gate.set()
    stream.synchronize()
    again = forebay.empty_pinned(1000)
    assert again.__array_interface__["data"][0] == address
    assert counts() == [before[0] + 2, before[1] + 2]


def test_recorded_stream_delays_reuse(counts):
    stream, gate = Stream(), threading.Event()
    array = forebay.empty_pinned(1000)
    stream.queue.call(lambda: gate.wait(30))
    forebay.from_numpy(array).record_stream(stream)
    used = counts()
    del array
    forebay.empty_pinned(1)
    assert counts("active_requests") == used[:1]
    gate.set()
    stream.synchronize()
    forebay.memory.empty_host_cache("cpu")
    assert counts("active_requests") == [used[0] - 1]


def test_views_keep_blocks_active(counts):
    before = counts("active_requests", "active_bytes")
    arrays = [forebay.empty_pinned(100) for _ in range(20)]
    views = [array[3:] for array in arrays]
    arrays.reverse()
    del arrays
    assert counts("active_requests", "active_bytes") == [before[0] + 20, before[1] + 20 * 512]
    del views
    gc.collect()
    assert counts("active_requests", "active_bytes") == before


def test_copies_to_device_the_host_cannot_access(fake):
    target = forebay.empty(1000, device="fake:0")
    source = forebay.empty_pinned(1000, device="cpu")
    target.copy_(source, non_blocking=True)
    assert not forebay.current_stream("fake:0").query()
    target.copy_(source)
    assert forebay.current_stream("fake:0").query()
    target.copy_(np.ones(1000), non_blocking=True)  # staged: does not wait
    assert not forebay.current_stream("fake:0").query()


def test_empty_pinned_raises_without_pinned_host(fake, monkeypatch):
    monkeypatch.setattr("forebay.runtime.devices.open_device.PinnedHost", str)  # no port is a PinnedHost
    with pytest.raises(Unsupported, match="fake does not provide pinned host memory") as caught:
        forebay.empty_pinned(3, device="fake:0")
    assert caught.value.ability == "PinnedHost"


def test_record_history_includes_pinned_memory():
    forebay.memory.record_history(100, context="all", depth=1, pinned=True, device="cpu")
    try:
        forebay.empty_pinned(1000, dtype=np.uint8, device="cpu").fill(1)
        taken = forebay.memory.memory_snapshot("cpu")
    finally:
        forebay.memory.record_history(None, device="cpu")
    assert [entry["action"] for entry in taken["host_traces"]][-3:] == ["alloc", "free_requested", "free_completed"]
    assert {len(entry["frames"]) for entry in taken["host_traces"]} == {1}
    assert 1024 in {segment["total_size"] for segment in taken["host_segments"]}
    assert forebay.memory.memory_snapshot("cpu")["host_segments"] == []


def test_max_cached_size_setting_applies(counts):
    forebay.memory.set_allocator_settings("pinned_max_cached_size_mb:1")
    try:
        before = counts("allocated_bytes")
        array = forebay.empty_pinned(3 << 20, dtype=np.uint8)
        assert counts("allocated_bytes") == [before[0] + (3 << 20)]
        del array
        assert counts("allocated_bytes") == before
    finally:
        forebay.memory.set_allocator_settings("pinned_max_cached_size_mb:17592186044415")
