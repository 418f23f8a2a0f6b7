"""Allocator statistics: keys, the functions that return them, and a comparison with a recount."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay
from forebay import OutOfMemory, Unsupported, WrongState, memory
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.testing.fake import FakePort

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("clean")


def test_statistics_have_the_keys_of_pytorch(fake):
    stats = memory.memory_stats("fake:0")  # without private pools
    assert list(stats) == sorted(stats)
    assert len(stats) == 123
    assert {"active_bytes.small_pool.peak", "num_ooms", "requested_bytes.all.freed"} < stats.keys()
    json.dumps(stats)


def test_functions_agree_with_the_statistics(fake):
    block = forebay.allocate(3 * MIB, "fake:1")
    stats = memory.memory_stats("fake:1")
    assert memory.memory_allocated("fake:1") == stats["allocated_bytes.all.current"] == block.size
    assert memory.memory_reserved("fake:1") == stats["reserved_bytes.all.current"] == 20 * MIB
    del block
    assert memory.memory_allocated("fake:1") == 0
    assert memory.max_memory_allocated("fake:1") == 3 * MIB
    assert memory.mem_get_info("fake:1") == (44 * MIB, 64 * MIB)
    assert memory.memory_allocated("fake:0") == 0
    memory.empty_cache("fake:1")
    assert memory.memory_reserved("fake:1") == 0
    assert memory.max_memory_reserved("fake:1") == 20 * MIB
    memory.reset_peak_memory_stats("fake:1")
    assert memory.max_memory_allocated("fake:1") == memory.max_memory_reserved("fake:1") == 0


def test_accumulated_statistics_can_be_reset(fake):
    with pytest.raises(OutOfMemory):
        forebay.allocate(100 * MIB, "fake:0")
    forebay.allocate(1, "fake:0")
    memory.reset_accumulated_memory_stats("fake:0")
    stats = memory.memory_stats("fake:0")
    assert {stats[name] for name in statistics.COUNTERS} == {0}
    assert {stats[key] for key in stats if key.endswith((".allocated", ".freed"))} == {0}
    assert stats["reserved_bytes.all.current"] == 2 * MIB


def test_capacity_can_be_set(fake):
    memory.set_capacity("16MiB", "fake:0")
    assert memory.mem_get_info("fake:0") == (16 * MIB, 16 * MIB)
    with pytest.raises(OutOfMemory):
        forebay.allocate(20 * MIB, "fake:0")
    kept = forebay.allocate(10 * MIB, "fake:0")
    with pytest.raises(WrongState, match="release memory first"):
        memory.set_capacity(kept.size - 1, "fake:0")
    with pytest.raises(ValueError, match="is not a size"):
        memory.set_capacity("12 bananas", "fake:0")
    for wrong, kind in ((0, ValueError), (-5, ValueError), (1.5, TypeError), (None, TypeError)):
        with pytest.raises(kind):
            memory.set_capacity(wrong, "fake:0")
    assert memory.mem_get_info("fake:0")[1] == 16 * MIB


def test_set_capacity_is_unsupported_without_a_resizable_port(fake, monkeypatch):
    monkeypatch.setattr("forebay.runtime.devices.open_device.Resizable", str)  # no port is one
    with pytest.raises(Unsupported, match="fake:0: memory capacity cannot be changed") as caught:
        memory.set_capacity(MIB, "fake:0")
    assert caught.value.ability == "Resizable"


steps = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "free", "use", "finish", "empty"]),
        st.integers(1, 30 * MIB),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_statistics_equal_a_recount(steps):
    """Every statistic equals a recount after allocations, frees, deferred frees and OutOfMemory errors."""
    port = FakePort(100 * MIB)
    queues = {i: port.queue() for i in range(3)}
    allocator = SegmentAllocator("fake:0", port, queues)
    live, ooms = [], 0
    for step, size, queue in steps:
        if step == "allocate":
            try:
                live.append(allocator.allocate(size, queue))
            except OutOfMemory:
                ooms += 1
        elif step == "free" and live:
            del live[size % len(live)]
        elif step == "use" and live:
            live[size % len(live)].record_stream(queue)
            queues[queue].call(lambda: None)
        elif step == "finish":
            queues[queue].finish()
        elif step == "empty":
            allocator.empty()
        stats = statistics.flat_stats(allocator)
        assert allocator.check_invariants() is None
        assert stats["allocated_bytes.all.current"] == sum(block.size for block in live)
        assert stats["allocation.all.current"] == len(live)
        assert stats["num_ooms"] == ooms
        assert stats["reserved_bytes.all.current"] == port._reserved
        assert stats["segment.all.current"] == stats["num_device_alloc"] - stats["num_device_free"]
