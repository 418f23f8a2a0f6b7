"""Idle memory: which segments are released before a reservation, and which after they were unused for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.errors import DeviceError
from forebay.runtime.allocator.idle_memory import KEPT
from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.testing.fake import FakePort

MIB = 1 << 20


class Scene:
    """An allocator over a fake port of 8 GiB that reserves memory cheaply."""

    def __init__(self, *, fine: bool = True) -> None:
        self.port = FakePort(8192 * MIB)
        self.port.props = replace(self.port.props, fine_segments=fine)
        self.queues = {handle: self.port.queue() for handle in range(2)}
        self.allocator = SegmentAllocator("fake:0", self.port, self.queues)

    def allocate(self, nbytes: int):
        return self.allocator.allocate(nbytes, 0)

    @property
    def reserved(self) -> int:
        return self.allocator.current(RESERVED_BYTES)


@pytest.fixture
def scene():
    scene = Scene()
    yield scene
    assert scene.allocator.check_invariants() is None


def grow(scene: Scene) -> int:
    """Reallocate an array to 1, 2, ..., 100 MiB, as numpy.append does. Returns the maximum of reserved bytes."""
    array, peak = None, 0
    for size in range(1, 101):
        array = scene.allocate(size * MIB)
        peak = max(peak, scene.reserved)
    assert array is not None
    return peak


def test_growing_array_needs_twice_its_size_and_what_is_kept(scene):
    assert grow(scene) <= 199 * MIB + KEPT


def test_growing_array_is_cached_without_limit_where_reserving_is_expensive():
    assert grow(Scene(fine=False)) > 1000 * MIB


def test_segments_free_for_longest_are_released_first(scene):
    blocks = {size: scene.allocate(size * MIB) for size in (20, 21, 22)}
    for size in (21, 22, 20):
        del blocks[size]
        assert scene.allocator.try_allocate(500 * MIB, 0) is None  # a request between them
    blocks[30] = scene.allocate(30 * MIB)
    assert [row[1] for row in scene.allocator.evictable(small=False)] == [20 * MIB]


def test_each_size_class_has_its_own_order(scene):
    small = [scene.allocate(1000) for _ in range(6000)]
    del small  # three segments of the small class, whose clock is far ahead
    older, newer = scene.allocate(50 * MIB), scene.allocate(20 * MIB)
    del older
    assert scene.allocator.try_allocate(500 * MIB, 0) is None  # a request between them
    del newer
    kept = scene.allocate(60 * MIB)
    assert [row[1] for row in scene.allocator.evictable(small=False)] == [20 * MIB]
    del kept


def test_small_reservations_do_not_release_a_large_working_set(scene):
    kept = []
    for _ in range(200):
        temporary = scene.allocate(300 * MIB)
        del temporary
        kept.append(scene.allocate(200 << 10))
    assert [call for call in scene.port.calls if call[0] == "release"] == []
    kept += [scene.allocate(2 * MIB) for _ in range(150)]
    del kept


def test_reservation_succeeds_if_nothing_can_be_released(scene):
    scene.allocate(100 * MIB)
    scene.port.fail("release", error=DeviceError("no more mappings", code=12, call="munmap", device="fake:0"))
    block = scene.allocate(200 * MIB)
    assert block.size >= 200 * MIB
    scene.allocator.empty()
    assert scene.reserved == 200 * MIB
    del block


def test_detached_queues_end_the_return_of_memory(scene):
    scene.allocate(100 * MIB)
    scene.allocator.detach_queues()
    block = scene.allocate(200 * MIB)
    assert scene.reserved == 300 * MIB
    del block


def test_working_set_of_a_loop_is_not_released(scene):
    for _ in range(10):
        first, second = scene.allocate(300 * MIB), scene.allocate(200 * MIB)
        del first, second
    assert [call for call in scene.port.calls if call[0] == "release"] == []


def test_nothing_is_released_while_work_is_queued(scene):
    scene.allocate(100 * MIB)
    scene.queues[1].call(lambda: None)
    kept = scene.allocate(150 * MIB)
    scene.allocator.idle.release_unused()
    scene.allocator.idle.release_unused()
    assert scene.reserved == 250 * MIB
    scene.queues[1].wait(scene.queues[1].signal())
    scene.allocator.idle.release_unused()
    assert scene.reserved == 150 * MIB
    del kept


def test_only_segments_unused_since_the_previous_call_are_released(scene):
    idle, used = scene.allocate(40 * MIB), scene.allocate(50 * MIB)
    del idle, used
    scene.allocator.idle.release_unused()
    assert scene.reserved == 90 * MIB
    scene.allocate(50 * MIB)
    scene.allocator.idle.release_unused()
    assert scene.reserved == 50 * MIB
    scene.allocator.idle.release_unused()
    assert scene.reserved == 0


def test_segments_in_use_stay(scene):
    in_use, part = scene.allocate(64 * MIB), scene.allocate(1000)
    for _ in range(3):
        scene.allocator.idle.release_unused()
    assert scene.reserved >= 64 * MIB
    del in_use, part


def test_watch_is_called_when_more_than_the_kept_memory_is_reserved(scene):
    calls = []
    scene.allocator.idle.watch = lambda: calls.append(scene.reserved)
    first = scene.allocate(KEPT - MIB)
    assert calls == []
    second = scene.allocate(2 * MIB)
    assert calls == [KEPT + MIB]
    del first, second
