"""Private pools that are deleted while an allocation for them reserves memory."""

from __future__ import annotations

import pytest

from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.statistics import flat_stats
from forebay.runtime.settings.configuration import parse
from forebay.spi import DeviceProps
from forebay.testing.fake import FakePort

MIB = 1 << 20
POOL = (7, 0)


@pytest.fixture(params=["expandable_segments:False", "expandable_segments:True"])
def allocator(request):
    port = FakePort(64 * MIB)
    port.props = DeviceProps("fake", 0, "test", 64 * MIB)
    return SegmentAllocator("test:0", port, {0: port.queue()}, settings=parse(request.param))


def during_reservation(allocator, monkeypatch, act) -> None:
    """Call a function once, as another thread could, between the routing of an allocation and its memory."""
    name = "reserve_space" if allocator.uses_expandable_segments else "reserve"
    reserve = getattr(allocator.port, name)

    def replaced(*arguments):
        monkeypatch.setattr(allocator.port, name, reserve)
        act()
        return reserve(*arguments)

    monkeypatch.setattr(allocator.port, name, replaced)


def check_recount(allocator, reserved: int) -> None:
    assert allocator.check_invariants() is None
    assert flat_stats(allocator)["reserved_bytes.all.current"] == allocator.port.reserved == reserved


def test_memory_of_a_deleted_pool_is_released(allocator, monkeypatch):
    private = allocator.private
    private.push_route(POOL, lambda _: True)

    def delete() -> None:
        private.pop_route(POOL)
        allocator.release_pool(POOL)
        assert private.get(POOL) is None

    during_reservation(allocator, monkeypatch, delete)
    block = allocator.allocate(MIB // 2, 0)
    check_recount(allocator, 2 * MIB)
    allocator.empty()
    check_recount(allocator, 2 * MIB)  # the block is live
    del block
    allocator.empty()
    check_recount(allocator, 0)
    assert private.abandoned() == []


def test_memory_of_a_deleted_pool_serves_other_requests(allocator, monkeypatch):
    """It is released before an allocation fails for lack of memory."""
    private = allocator.private
    private.push_route(POOL, lambda _: True)
    during_reservation(
        allocator, monkeypatch, lambda: (private.pop_route(POOL), allocator.release_pool(POOL), allocator.empty())
    )
    allocator.allocate(40 * MIB, 0).free()
    check_recount(allocator, 40 * MIB)
    assert private.abandoned() == [1]
    block = allocator.allocate(60 * MIB, 0)
    check_recount(allocator, 60 * MIB)
    del block


def test_pool_with_the_id_of_a_deleted_one_has_memory_of_its_own(allocator, monkeypatch):
    private = allocator.private
    private.push_route(POOL, lambda _: True)

    def replace() -> None:
        private.pop_route(POOL)
        allocator.release_pool(POOL)
        private.create_or_incref(POOL)

    during_reservation(allocator, monkeypatch, replace)
    allocator.allocate(MIB // 2, 0).free()
    with private.use(POOL):
        other = allocator.allocate(MIB // 2, 0)
        check_recount(allocator, 4 * MIB)
        allocator.empty()
        check_recount(allocator, 2 * MIB)
    del other
    allocator.empty()
    check_recount(allocator, 2 * MIB)  # the pool has a user
    allocator.release_pool(POOL)
    check_recount(allocator, 0)


def test_live_pool_is_not_abandoned(allocator):
    with allocator.private.use(POOL):
        block = allocator.allocate(MIB // 2, 0)
        assert allocator.private.abandoned() == []
    assert allocator.private.abandoned() == []
    del block
