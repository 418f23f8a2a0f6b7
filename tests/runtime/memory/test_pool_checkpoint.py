"""Checkpoints of private pools, where forebay differs from PyTorch: errors have no effect, owners are exact."""

from __future__ import annotations

import threading

import pytest

import forebay
from forebay.runtime.devices import current
from forebay.runtime.memory import pool_checkpoint

pytestmark = pytest.mark.usefixtures("clean")
POOL = (0, 1 << 30)


@pytest.fixture
def opened():
    with forebay.emulate("cuda", profile="h200"):
        opened = current.opened_for("cuda")
        yield opened
        while not opened.allocator.private.decref(POOL):  # else the ended device stays open
            pass


def allocated(opened, count):
    """Return tensors of the pool and their storages."""
    with opened.allocator.private.use(POOL):
        made = [forebay.empty(100, device="cuda") for _ in range(count)]
    return made, [tensor.untyped_storage() for tensor in made]


def keep_pool(opened):
    opened.allocator.private.create_or_incref(POOL)


def test_error_has_no_effect(opened):
    keep_pool(opened)
    kept, kept_storages = allocated(opened, 1)
    state = pool_checkpoint.take(opened, POOL)
    _later, storages = allocated(opened, 2)
    foreign = forebay.empty(100, device="cuda").untyped_storage()
    invalid = [
        ((), (), "must be passed to set checkpoint"),
        ((storages[0], foreign), (), "has no live memory of the pool"),
        (storages, kept_storages, "Not expecting deleter function"),
    ]
    before = opened.allocator.tables(trace=False)[:2], forebay.memory.memory_stats("cuda")
    for stale, owners, message in invalid:
        with pytest.raises(forebay.ForebayError, match=message):
            pool_checkpoint.restore(opened, state, stale, owners)
        assert (opened.allocator.tables(trace=False)[:2], forebay.memory.memory_stats("cuda")) == before
        assert all(storage.owned for storage in storages)
    pool_checkpoint.restore(opened, state, storages, ())
    with pytest.raises(forebay.ForebayError, match=r"does not own its memory|no live memory"):
        pool_checkpoint.restore(opened, state, storages, ())
    assert pool_checkpoint.has_live(opened, POOL, {kept[0].data_ptr()})


def test_unknown_and_unused_pools_are_refused(opened):
    unknown = "Could not find pool of id"
    with pytest.raises(forebay.ForebayError, match=unknown):
        pool_checkpoint.take(opened, POOL)
    with pytest.raises(forebay.ForebayError, match=unknown):
        pool_checkpoint.has_live(opened, POOL, set())
    made, _ = allocated(opened, 1)  # which keeps a pool that has no user any more
    state = pool_checkpoint.take(opened, POOL)
    with pytest.raises(forebay.ForebayError, match=r"^Not expected to checkpoint freeable graph$"):
        pool_checkpoint.restore(opened, state, (), ())
    assert pool_checkpoint.has_live(opened, POOL, {made[0].data_ptr()})
    keep_pool(opened)


def test_pending_free_prevents_a_checkpoint(opened):
    keep_pool(opened)
    made, storages = allocated(opened, 1)
    gate, other = threading.Event(), forebay.Stream("cuda")
    other.queue.call(lambda: gate.wait(20))
    made[0].record_stream(other)
    made.clear()
    storages.clear()
    with pytest.raises(forebay.ForebayError) as caught:
        pool_checkpoint.take(opened, POOL)
    gate.set()
    assert "Events should have synchronized when checkpointing block" in str(caught.value)
    other.synchronize()
    forebay.memory.empty_cache("cuda")
    assert pool_checkpoint.take(opened, POOL).live() == []


def test_live_tensor_keeps_its_memory(opened):
    keep_pool(opened)
    kept, _ = allocated(opened, 1)
    state, address = pool_checkpoint.take(opened, POOL), kept[0].data_ptr()
    pool_checkpoint.restore(opened, state, (), ())
    assert opened.raw_blocks == {}
    assert _[0].owned
    kept.clear()
    _.clear()
    assert pool_checkpoint.has_live(opened, POOL, set())
    assert not pool_checkpoint.has_live(opened, POOL, {address})


def test_stale_storage_is_kept_by_address_and_must_own_memory(opened):
    """A stale storage whose memory was live at the checkpoint loses it, and cannot lose it again."""
    keep_pool(opened)
    _, storages = allocated(opened, 1)
    state, address = pool_checkpoint.take(opened, POOL), storages[0].address
    pool_checkpoint.restore(opened, state, storages, ())
    assert [*opened.raw_blocks] == [address]
    assert not storages[0].owned
    with pytest.raises(forebay.ForebayError, match=f"^the stale storage at {address:#x} does not own its memory$"):
        pool_checkpoint.restore(opened, state, storages, ())
    forebay.cuda.caching_allocator_delete(address)
    assert opened.raw_blocks == {}


def test_restoration_removes_freed_memory_from_the_table(opened):
    keep_pool(opened)
    _, storages = allocated(opened, 1)
    state, kept = pool_checkpoint.take(opened, POOL), storages[0].address
    with opened.allocator.private.use(POOL):
        raw = forebay.cuda.caching_allocator_alloc(100)
    assert [*opened.raw_blocks] == [raw]
    pool_checkpoint.restore(opened, state, storages, ())
    assert [*opened.raw_blocks] == [kept]
    with pytest.raises(RuntimeError):
        forebay.cuda.caching_allocator_delete(raw)
    forebay.cuda.caching_allocator_delete(kept)


def test_released_memory_is_reported(opened):
    with opened.allocator.private.use(POOL):
        tensor = forebay.empty(100, device="cuda")
        state = pool_checkpoint.take(opened, POOL)
        del tensor
    forebay.memory.empty_cache("cuda")
    keep_pool(opened)
    with pytest.raises(forebay.ForebayError, match="could not find 0x"):
        pool_checkpoint.restore(opened, state, (), ())


def test_tensor_whose_memory_a_storage_received_does_not_free_it(opened):
    keep_pool(opened)
    made, _ = allocated(opened, 1)
    state, address = pool_checkpoint.take(opened, POOL), made[0].data_ptr()
    receiver = forebay.UntypedStorage.borrowed(opened, 400, address)
    pool_checkpoint.restore(opened, state, (), (receiver,))
    made.clear()
    assert pool_checkpoint.has_live(opened, POOL, {address})
    del receiver
    assert pool_checkpoint.has_live(opened, POOL, set())


def test_memory_without_owner_is_kept_by_address(opened):
    keep_pool(opened)
    made, _ = allocated(opened, 2)
    state, addresses = pool_checkpoint.take(opened, POOL), [tensor.data_ptr() for tensor in made]
    made.clear()
    del _
    pool_checkpoint.restore(opened, state, (), ())
    assert sorted(opened.raw_blocks) == sorted(addresses)
    receiver = forebay.UntypedStorage.borrowed(opened, 400, addresses[0])
    pool_checkpoint.restore(opened, state, (), (receiver,))
    assert [*opened.raw_blocks] == addresses[1:]
    forebay.cuda.caching_allocator_delete(addresses[1])
    del receiver
    assert pool_checkpoint.has_live(opened, POOL, set())
    assert opened.raw_blocks == {}


def test_memory_without_owner_that_is_freed_again_leaves_the_table(opened):
    keep_pool(opened)
    empty = pool_checkpoint.take(opened, POOL)
    made, _ = allocated(opened, 1)
    full, address = pool_checkpoint.take(opened, POOL), made[0].data_ptr()
    made.clear()
    del _
    pool_checkpoint.restore(opened, full, (), ())
    block = opened.raw_blocks[address]
    with pytest.raises(forebay.ForebayError, match="must be passed"):
        pool_checkpoint.restore(opened, empty, (), ())
    assert not block.freed
    block.free()
    pool_checkpoint.restore(opened, full, (), ())
    assert not opened.raw_blocks[address].freed
    forebay.cuda.caching_allocator_delete(address)


def test_restored_memory_has_its_values(opened):
    keep_pool(opened)
    with opened.allocator.private.use(POOL):
        tensor = forebay.full((100,), 3.0, device="cuda")
    forebay.synchronize("cuda")
    state, address = pool_checkpoint.take(opened, POOL), tensor.data_ptr()
    del tensor
    storage = forebay.UntypedStorage.borrowed(opened, 400, address)
    again = forebay.empty(0, device="cuda").set_(storage)
    pool_checkpoint.restore(opened, state, (), (storage,))
    del storage
    assert again.tolist() == [3.0] * 100
    assert again.untyped_storage().owned
