"""Behaviour of the heap allocator that its model does not have."""

from __future__ import annotations

import re

import pytest
from support.heaps_under_test import HeapsUnderTest

import forebay
from forebay.accelerator import Graph
from forebay.errors import OutOfMemory
from forebay.runtime.allocator import statistics
from forebay.runtime.devices import open_device
from forebay.runtime.history import recording, torch_schema
from forebay.spi import Heaps

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def allocator():
    with forebay.emulate("mps"):
        yield open_device.open_device(forebay.device("mps", 0)).allocator


def test_snapshot_contains_the_heaps_of_every_pool(allocator):
    recording.start(allocator)
    buffers = [allocator.allocate_for(100, 0, usage) for usage in ("shared", "private", "scalar")]
    snapshot = torch_schema.snapshot_allocators([allocator], allocator.settings)
    assert [segment["segment_pool_id"] for segment in snapshot["segments"]] == [(0, 0)] * 3
    allocated = [entry["addr"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert allocated == [buffer.address for buffer in buffers]
    assert not [key for key in statistics.flat_stats(allocator) if "private_pools" in key]


def test_queued_function_may_empty_the_cache():
    """The queue's thread cannot wait for itself: cached memory is released when another thread empties the cache."""
    with forebay.emulate("mps"), forebay.Stream("mps") as stream:
        allocator = open_device.open_device(forebay.device("mps", 0)).allocator
        allocator.allocate(1000).free()
        stream.queue.call(allocator.empty)
        stream.synchronize()
        allocator.empty()
        assert allocator.driver_allocated() == 0


@pytest.mark.parametrize("usage", [None, "private", "scalar"])
def test_explanation_follows_the_text_of_pytorch(usage):
    device = HeapsUnderTest(64 * GIB, 48 * GIB, capacity=4 << 20)
    device.allocator.explains_oom = True
    with pytest.raises(OutOfMemory) as caught:
        device.allocate(1000, usage=usage)
    message, *explanation = str(caught.value).splitlines()
    assert message.startswith("MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes,")
    assert explanation
    assert (caught.value.wanted, caught.value.capacity) == (1000, 4 << 20)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, GIB), "recommended must be a number of bytes from 1 to 2**62 - 1, not 0"),
        ((GIB, -1), "longest must be a number of bytes from 1 to 2**62 - 1, not -1"),
        ((1e9, GIB), "recommended must be a number of bytes from 1 to 2**62 - 1, not 1000000000.0"),
        ((True, GIB), "recommended must be a number of bytes from 1 to 2**62 - 1, not True"),
        ((GIB, 1 << 62), "longest must be a number of bytes from 1 to 2**62 - 1, not 4611686018427387904"),
        ((GIB, GIB, True, 0), "alignment must be a power of two, 256 or more, not 0"),
        ((GIB, GIB, True, 768), "alignment must be a power of two, 256 or more, not 768"),
    ],
)
def test_invalid_heap_properties_are_rejected(numbers, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Heaps(*numbers)


def test_new_limit_counts_memory_of_other_processes():
    """The cached buffer fits, but other processes use all of the device's memory."""
    device = HeapsUnderTest(64 * GIB, 48 * GIB)
    device.free(device.allocate(100 * MIB))
    device.port.others = 64 * GIB
    device.set_high(1.0)
    with pytest.raises(OutOfMemory, match=r"other allocations: 64.00 GB, max allowed: 64.00 GB"):
        device.allocate(100 * MIB)


def test_usage_selects_the_heap():
    with forebay.emulate("mps"):
        shared, private = (forebay.allocate(100, "mps", usage=usage) for usage in ("shared", "private"))
        scalar = forebay.allocate(4, "mps", usage="scalar")
        assert forebay.memory.memory_reserved("mps") == 3 * (8 << 20)  # one heap each
        assert len({shared.address >> 23, private.address >> 23, scalar.address >> 23}) == 3
        with pytest.raises(ValueError, match="usage must be 'shared', 'private' or 'scalar', not 'managed'"):
            forebay.allocate(4, "mps", usage="managed")
        with pytest.raises(ValueError, match="a scalar has at most 1048576 bytes, not 2000000"):
            forebay.allocate(2_000_000, "mps", usage="scalar")
    with pytest.raises(forebay.Unsupported, match="cpu has no storage modes, so usage='private' is not available"):
        forebay.allocate(4, "cpu", usage="private")


@pytest.mark.parametrize("usage", ["", "shared", "private", "scalar"])
def test_memory_of_a_graph_is_not_reused_outside(usage):
    """A replay never writes to memory that was allocated after the capture."""
    with forebay.emulate("mps"), forebay.Stream("mps") as stream:
        graph = Graph()
        graph.capture_begin()
        scratch = forebay.allocate(8, "mps", usage=usage)
        stream.queue.fill(scratch.address, 7, 8)
        del scratch
        graph.capture_end()
        blocks = [forebay.allocate(8, "mps", usage=each) for each in ("", "shared", "private", "scalar")]
        tensor = forebay.full((8,), 1, dtype="uint8", device="mps")
        before = {block.address for block in blocks}
        graph.replay()
        assert tensor.tolist() == [1] * 8
        segments = forebay.memory.memory_snapshot("mps")["segments"]
        private = [segment for segment in segments if segment["segment_pool_id"] != (0, 0)]
        captured = {block["address"] for segment in private for block in segment["blocks"]}
        assert private
        assert not before & captured


def test_private_pool_serves_every_usage():
    with forebay.emulate("mps"):
        pool = forebay.memory.MemPool()
        with forebay.memory.use_mem_pool(pool):
            held = [forebay.allocate(1000, "mps", usage=usage) for usage in ("", "shared", "private", "scalar")]
        (segment,) = pool.snapshot()
        live = {block["address"] for block in segment["blocks"] if block["state"] == "active_allocated"}
        assert live == {block.address for block in held}


def test_take_at_rejects_a_buffer_of_another_queue_or_pool():
    """Between `best_fit_buffer` and `allocate_at` another thread may release and reuse the buffer."""
    device = HeapsUnderTest(64 * GIB, 48 * GIB)
    allocator = device.allocator
    device.free(device.allocate(600 * MIB, 1))
    address, _, has_room = allocator.best_fit_buffer(600 * MIB, 1, 0)
    assert not has_room
    assert allocator.allocate_at(address, 10 * MIB, 2, 0) is None
    assert allocator.allocate_at(address, 10 * MIB, 1, 7) is None
    assert allocator.allocate_at(address, 10 * MIB, 1, 0).address == address
