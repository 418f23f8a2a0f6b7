"""What is counted, against counting by hand, and the functions that tell it."""

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


def test_pytorchs_keys(fake):
    stats = memory.memory_stats("fake:0")  # which had no private pool yet
    assert list(stats) == sorted(stats)
    assert len(stats) == 123
    assert {"active_bytes.small_pool.peak", "num_ooms", "requested_bytes.all.freed"} < stats.keys()
    json.dumps(stats)


def test_the_functions_tell_the_same(fake):
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


def test_accumulated_numbers_start_again(fake):
    with pytest.raises(OutOfMemory):
        forebay.allocate(100 * MIB, "fake:0")
    forebay.allocate(1, "fake:0")
    memory.reset_accumulated_memory_stats("fake:0")
    stats = memory.memory_stats("fake:0")
    assert {stats[name] for name in statistics.COUNTERS} == {0}
    assert {stats[key] for key in stats if key.endswith((".allocated", ".freed"))} == {0}
    assert stats["reserved_bytes.all.current"] == 2 * MIB


def test_the_capacity_can_be_set(fake):
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


def test_a_capacity_that_cannot_be_set(fake, monkeypatch):
    monkeypatch.setattr("forebay.runtime.devices.open_device.Resizable", str)  # no port is one
    with pytest.raises(Unsupported, match="the memory of fake:0 is what it is") as caught:
        memory.set_capacity(MIB, "fake:0")
    assert caught.value.ability == "Resizable"


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "give", "use", "finish", "empty"]), st.integers(1, 30 * MIB), st.integers(0, 2)
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_the_ledger_is_a_recount(steps):
    """Blocks come, go, wait and are refused; every number is what counting gives."""
    port = FakePort(100 * MIB)
    queues = {i: port.queue() for i in range(3)}
    allocator = SegmentAllocator("fake:0", port, queues)
    live, ooms = [], 0
    for what, size, queue in steps:
        if what == "take":
            try:
                live.append(allocator.allocate(size, queue))
            except OutOfMemory:
                ooms += 1
        elif what == "give" and live:
            del live[size % len(live)]
        elif what == "use" and live:
            live[size % len(live)].used_on(queue)
            queues[queue].call(lambda: None)
        elif what == "finish":
            queues[queue].finish()
        elif what == "empty":
            allocator.empty()
        stats = statistics.flat(allocator)
        assert allocator.broken() is None
        assert stats["allocated_bytes.all.current"] == sum(block.size for block in live)
        assert stats["allocation.all.current"] == len(live)
        assert stats["num_ooms"] == ooms
        assert stats["reserved_bytes.all.current"] == port._reserved
        assert stats["segment.all.current"] == stats["num_device_alloc"] - stats["num_device_free"]
