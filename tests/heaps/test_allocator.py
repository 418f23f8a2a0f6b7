"""What only the allocator of heaps has to show, and its model has not."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import OutOfMemory
from penstock.runtime import open_device, recording, statistics, torch_snapshot
from penstock.spi import Heaps
from penstock.testing.heaps_under_test import HeapsUnderTest
from penstock.testing.scripted_port import ScriptedPort

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def allocator():
    with penstock.emulate("mps"):
        yield open_device.open_device(penstock.Device("mps", 0)).allocator


def test_a_snapshot_shows_the_heaps_of_every_pool(allocator):
    recording.start(allocator)
    buffers = [allocator.allocate_for(100, 0, usage) for usage in ("shared", "private", "scalar")]
    snapshot = torch_snapshot.of_allocators([allocator])
    assert [segment["segment_pool_id"] for segment in snapshot["segments"]] == [(0, 0)] * 3
    taken = [entry["addr"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert taken == [buffer.address for buffer in buffers]
    assert not [key for key in statistics.flat(allocator) if "private_pools" in key]


def test_a_function_on_a_queue_may_empty_the_cache():
    """Its own queue it cannot wait for: what is idle goes, once somebody else asks."""
    with penstock.emulate("mps"), penstock.Stream("mps") as stream:
        allocator = open_device.open_device(penstock.Device("mps", 0)).allocator
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
