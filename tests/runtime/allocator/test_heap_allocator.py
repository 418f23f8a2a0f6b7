"""What only the allocator of heaps has to show, and its model has not."""

from __future__ import annotations

import pytest
from support.heaps_under_test import HeapsUnderTest
from support.scripted_port import ScriptedPort

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
        yield open_device.open_device(forebay.Device("mps", 0)).allocator


def test_a_snapshot_shows_the_heaps_of_every_pool(allocator):
    recording.start(allocator)
    buffers = [allocator.allocate_for(100, 0, usage) for usage in ("shared", "private", "scalar")]
    snapshot = torch_schema.of_allocators([allocator])
    assert [segment["segment_pool_id"] for segment in snapshot["segments"]] == [(0, 0)] * 3
    taken = [entry["addr"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert taken == [buffer.address for buffer in buffers]
    assert not [key for key in statistics.flat(allocator) if "private_pools" in key]


def test_a_function_on_a_queue_may_empty_the_cache():
    """Its own queue it cannot wait for: what is idle goes, once somebody else asks."""
    with forebay.emulate("mps"), forebay.Stream("mps") as stream:
        allocator = open_device.open_device(forebay.Device("mps", 0)).allocator
        allocator.allocate(1000).free()
        stream.queue.call(allocator.empty)
        stream.synchronize()
        allocator.empty()
        assert allocator.driver_allocated() == 0


@pytest.mark.parametrize("usage", [None, "private", "scalar"])
def test_the_explanation_follows_the_sentence(usage):
    device = HeapsUnderTest(64 * GIB, 48 * GIB, capacity=4 << 20)
    device.allocator.explains = True
    with pytest.raises(OutOfMemory) as told:
        device.allocate(1000, usage=usage)
    sentence, *explanation = str(told.value).splitlines()
    assert sentence.startswith("MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes,")
    assert explanation
    assert (told.value.wanted, told.value.capacity) == (1000, 4 << 20)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, GIB), "recommended is a number of bytes, not 0"),
        ((GIB, -1), "longest is a number of bytes, not -1"),
        ((1e9, GIB), "recommended is a number of bytes, not 1000000000.0"),
        ((True, GIB), "recommended is a number of bytes, not True"),
        ((GIB, 1 << 62), "longest is a number of bytes, not 4611686018427387904"),
        ((GIB, GIB, True, 0), "alignment is a power of two, 256 or more, not 0"),
        ((GIB, GIB, True, 768), "alignment is a power of two, 256 or more, not 768"),
    ],
)
def test_heaps_that_no_device_has(numbers, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        Heaps(*numbers)


@pytest.mark.parametrize("remedy", ["collect garbage", "release some", "empty"])
def test_a_forked_child_keeps_the_heaps_of_its_parent(remedy):
    """Its port has never seen them, so it must not be told to release them, whichever rung would."""
    device = HeapsUnderTest(4 * GIB, 3 * GIB, high=2.0, low=0.1)
    for block in [device.allocate(600 * MIB) for _ in range(2)]:
        device.free(block)
    device.port = ScriptedPort(device.port.props, 1 << 49, first=100)
    device.allocator.abandon_queues(device.port)
    device.port.others = GIB if remedy == "collect garbage" else 0
    device.port.refusals = {"collect garbage": 0, "release some": 1, "empty": 2}[remedy]
    device.allocate(700 * MIB)
    assert device.port.held
    assert device.allocator.num_device_free == 0
    assert device.broken() is None


def test_a_new_limit_counts_what_others_have_now():
    """The cached buffer would serve, but the device's memory is gone."""
    device = HeapsUnderTest(64 * GIB, 48 * GIB)
    device.free(device.allocate(100 * MIB))
    device.port.others = 64 * GIB
    device.set_high(1.0)
    with pytest.raises(OutOfMemory, match=r"other allocations: 64.00 GB, max allowed: 64.00 GB"):
        device.allocate(100 * MIB)


def test_a_program_says_what_memory_is_for():
    with forebay.emulate("mps"):
        shared, private = (forebay.allocate(100, "mps", usage=usage) for usage in ("shared", "private"))
        scalar = forebay.allocate(4, "mps", usage="scalar")
        assert forebay.memory.memory_reserved("mps") == 3 * (8 << 20)  # a heap of each
        assert len({shared.address >> 23, private.address >> 23, scalar.address >> 23}) == 3
        with pytest.raises(ValueError, match="usage is 'shared', 'private' or 'scalar', not 'managed'"):
            forebay.allocate(4, "mps", usage="managed")
        with pytest.raises(ValueError, match="a scalar has at most 1048576 bytes, not 2000000"):
            forebay.allocate(2_000_000, "mps", usage="scalar")
    with pytest.raises(forebay.Unsupported, match="the memory of host:0 is all of one mode: none of it is 'private'"):
        forebay.allocate(4, "host", usage="private")


@pytest.mark.parametrize("usage", ["", "shared", "private", "scalar"])
def test_a_graphs_memory_is_nobody_elses(usage):
    """Whatever it is for: what a replay writes to is not what the program was given since."""
    with forebay.emulate("mps"), forebay.Stream("mps") as stream:
        graph = Graph()
        graph.capture_begin()
        scratch = forebay.allocate(8, "mps", usage=usage)
        stream.queue.fill(scratch.address, 7, 8)
        del scratch
        graph.capture_end()
        mine = [forebay.allocate(8, "mps", usage=each) for each in ("", "shared", "private", "scalar")]
        tensor = forebay.full(8, 1, dtype="uint8", device="mps")
        before = {block.address for block in mine}
        graph.replay()
        assert tensor.tolist() == [1] * 8
        segments = forebay.memory.memory_snapshot("mps")["segments"]
        private = [segment for segment in segments if segment["segment_pool_id"] != (0, 0)]
        taken = {block["address"] for segment in private for block in segment["blocks"]}
        assert private
        assert not before & taken


def test_a_pool_has_memory_for_every_use():
    with forebay.emulate("mps"):
        pool = forebay.memory.MemPool()
        with forebay.memory.use_mem_pool(pool):
            held = [forebay.allocate(1000, "mps", usage=usage) for usage in ("", "shared", "private", "scalar")]
        (segment,) = pool.snapshot()
        live = {block["address"] for block in segment["blocks"] if block["state"] == "active_allocated"}
        assert live == {block.address for block in held}


def test_a_buffer_that_is_another_queues_by_now():
    """Between a look and a grip another thread gives it back, and another queue gets the address."""
    device = HeapsUnderTest(64 * GIB, 48 * GIB)
    allocator = device.allocator
    device.free(device.allocate(600 * MIB, 1))
    address, _, room = allocator.nearest(600 * MIB, 1, 0)
    assert not room
    assert allocator.take_at(address, 10 * MIB, 2, 0) is None
    assert allocator.take_at(address, 10 * MIB, 1, 7) is None
    assert allocator.take_at(address, 10 * MIB, 1, 0).address == address
