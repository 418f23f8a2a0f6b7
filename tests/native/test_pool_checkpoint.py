"""Checkpoints of a pool: what becomes of the `Block` objects. native/tests/test_checkpoint.cpp tests the tables."""

from __future__ import annotations

import pytest

from forebay._core import Pool

MIB = 1 << 20
BASE = 64 * MIB
PRIVATE = 7


class Deferring(Pool):
    """Pool that counts calls of `_defer`."""

    def __init__(self):
        self.deferrals = 0

    def _defer(self):
        self.deferrals += 1


@pytest.fixture
def pool() -> Deferring:
    """A pool with a private pool of one small segment."""
    pool = Deferring()
    pool.create_pool(PRIVATE)
    pool.adopt(BASE, 2 * MIB, 0, small=True, pool_number=PRIVATE)
    yield pool
    assert pool.check_invariants() is None


def allocate(pool, nbytes):
    return pool.try_allocate(nbytes, 0, PRIVATE)


def test_checkpoint_lists_the_blocks_of_each_segment(pool):
    kept = allocate(pool, 100)
    assert pool.checkpoint(PRIVATE) == [
        [
            {"address": BASE, "size": 512, "live": True, "committed": True},
            {"address": BASE + 512, "size": 2 * MIB - 512, "live": False, "committed": True},
        ]
    ]
    kept.free()


def test_block_keeps_memory_that_is_live_again(pool):
    kept = allocate(pool, 100)
    assert pool.restore(PRIVATE, pool.checkpoint(PRIVATE)) == []
    assert (kept.freed, kept.address, kept.nbytes) == (False, BASE, 512)
    del kept
    assert pool.live_addresses(PRIVATE) == []


def test_block_whose_memory_is_not_live_is_freed(pool):
    state = pool.checkpoint(PRIVATE)
    gone = allocate(pool, 100)
    pool.restore(PRIVATE, state)
    assert gone.freed
    with pytest.raises(ValueError, match="already freed"):
        gone.record_stream(3)
    again = allocate(pool, 100)
    assert again.address == gone.address
    del gone  # owns nothing, so it frees nothing
    assert pool.live_addresses(PRIVATE) == [BASE]
    again.free()


def test_memory_without_a_block_can_be_claimed(pool):
    blocks = [allocate(pool, 100), allocate(pool, 100)]
    state, addresses = pool.checkpoint(PRIVATE), [block.address for block in blocks]
    blocks.clear()
    assert pool.restore(PRIVATE, state) == addresses
    blocks = [pool.claim(address) for address in addresses]
    assert [block.address for block in blocks] == addresses
    assert pool.restore(PRIVATE, state) == []
    blocks.clear()
    assert pool.live_addresses(PRIVATE) == []
    assert pool.claim(BASE) is None


def test_claimed_memory_leaves_its_previous_block(pool):
    first = allocate(pool, 100)
    second = pool.claim(first.address)
    assert (first.freed, second.freed) == (True, False)
    del first
    assert pool.live_addresses(PRIVATE) == [BASE]
    second.free()


def test_restored_blocks_of_other_queues_are_deferred(pool):
    state = pool.checkpoint(PRIVATE)
    allocate(pool, 100)
    used = [allocate(pool, 100), allocate(pool, 100)][1]
    used.record_stream(3)
    pool.restore(PRIVATE, [])
    assert pool.deferrals == 1
    assert used.freed
    ((token, queues, *_),) = pool.deferred()
    assert queues == [3]
    assert pool.complete_free(token)
    pool.restore(PRIVATE, state)


@pytest.mark.parametrize("call", ["checkpoint", "restore"])
def test_unknown_partition_raises(pool, call):
    with pytest.raises(RuntimeError, match="the pool does not exist"):
        getattr(pool, call)(99, *([[]] if call == "restore" else []))


def test_block_that_a_finalizer_restores_is_freed_once(pool):
    """A free that records its own stack may run finalizers before it takes the block's record."""

    class Annotating(Deferring):
        def _annotation_id(self):
            if self.state is not None:
                state, self.state = self.state, None
                self.restore(PRIVATE, state)
            return 0

    pool = Annotating()
    pool.state = None
    pool.create_pool(PRIVATE)
    pool.adopt(BASE, 2 * MIB, 0, small=True, pool_number=PRIVATE)
    pool.record_history(100, frees=True)
    pool.annotating = True
    kept, freed = allocate(pool, 100), allocate(pool, 100)
    pool.state = pool.checkpoint(PRIVATE)
    freed.free()
    assert pool.live_addresses(PRIVATE) == [kept.address]
    assert pool.check_invariants() is None
    pool.state = []
    kept.free()
    assert pool.live_addresses(PRIVATE) == []
    assert pool.check_invariants() is None
