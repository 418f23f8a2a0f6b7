"""Python bindings of the pool: blocks, hooks, errors, statistics, tables."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from forebay._core import METRICS, MIN_BLOCK_SIZE, Block, Pool
from forebay.records.model import BLOCK, ENTRY, SEGMENT, State

MIB = 1 << 20
BASE = 64 * MIB
ALLOCATED, ACTIVE = METRICS.index("allocated_bytes"), METRICS.index("active_bytes")
SMALL, LARGE = 1, 2


@pytest.fixture
def pool() -> Pool:
    """A pool with one segment of the small class, for queue 0."""
    pool = Pool()
    pool.adopt(BASE, 2 * MIB, 0, small=True)
    yield pool
    assert pool.check_invariants() is None


def collect_unraisable(monkeypatch):
    """Return a list of the exceptions that are passed to sys.unraisablehook; no fixture, whose hook pytest replaces."""
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: caught.append(args.exc_value))
    return caught


class Growing(Pool):
    """Pool that adopts a new segment for each refill, and acknowledges deferred frees immediately."""

    def __init__(self):
        self.refilled, self.deferrals, self.end = [], [], BASE

    def _refill(self, nbytes, queue, pool_number):
        self.refilled.append((nbytes, queue, pool_number))
        size, small = self.segment_size(nbytes)
        self.adopt(self.end, size, queue, small, pool_number=pool_number)
        self.end += size
        return self.try_allocate(nbytes, queue, pool_number)

    def _defer(self):
        self.deferrals += self.deferred()
        self.acknowledge_deferred(self.deferrals[-1][0])


# Blocks


def test_block_properties(pool):
    block = pool.try_allocate(1000)
    properties = (block.address, block.nbytes, block.size, block.queue, block.pool, block.freed)
    assert properties == (BASE, 1000, 1024, 0, pool, False)
    assert repr(block) == f"<Block at {BASE:#x}, 1000 bytes>"


def test_dropping_a_block_frees_it(pool):
    block = pool.try_allocate(1000)
    assert pool.current(ALLOCATED) == 1024
    del block
    assert pool.current(ALLOCATED) == 0


def test_free_is_idempotent(pool):
    block = pool.try_allocate(1000)
    block.free()
    assert block.freed
    again = pool.try_allocate(1000)
    assert again.address == block.address
    block.free()
    del block
    assert pool.current(ALLOCATED) == 1024
    assert not again.freed


def test_freed_block_has_only_its_address(pool):
    block = pool.try_allocate(1000)
    block.free()
    assert block.address == BASE
    assert block.pool is pool
    assert repr(block) == f"<Block at {BASE:#x}, freed>"
    for access in (lambda: block.nbytes, lambda: block.size, lambda: block.queue, lambda: block.record_stream(1)):
        with pytest.raises(ValueError, match=f"the block at {BASE:#x} was already freed"):
            access()


def test_block_keeps_its_pool_alive():
    pool = Growing()
    alive = weakref.ref(pool)
    block = pool.allocate(512)
    del pool
    gc.collect()
    assert block.pool.current(ALLOCATED) == 512
    del block
    gc.collect()
    assert alive() is None


def test_block_cannot_be_constructed():
    with pytest.raises(TypeError, match=r"try_allocate\(\) or allocate\(\)"):
        Block()


# Refill and routing


def test_allocate_without_refill_raises_memory_error(pool):
    assert pool.try_allocate(3 * MIB) is None
    with pytest.raises(MemoryError, match=f"no free block of {3 * MIB} bytes"):
        pool.allocate(3 * MIB)


def test_allocate_calls_refill_when_no_block_fits():
    pool = Growing()
    first = pool.allocate(3 * MIB, 5)
    second = pool.allocate(3 * MIB, queue=5)
    assert (first.address, second.address) == (BASE, BASE + 3 * MIB)
    assert pool.refilled == [(3 * MIB, 5, 0)]


def test_routed_allocations_use_a_private_pool():
    class Routing(Growing):
        def _route(self, queue):
            return 7 if queue == 5 else 0

    pool = Routing()
    pool.create_pool(7)
    pool.routed = True
    private, common = pool.allocate(1000, 5), pool.allocate(1000, 4)
    assert pool.refilled == [(1000, 5, 7), (1000, 4, 0)]
    assert pool.try_allocate(1000, 5) is None
    pool.routed = False
    other = pool.allocate(1000, 5)
    assert pool.refilled[2:] == [(1000, 5, 0)]
    assert len({block.address for block in (private, common, other)}) == 3
    assert (pool.reserved_by(7)[0], pool.free_bytes(7)) == (2 * MIB, 2 * MIB - 1024)
    assert not pool.remove_pool(7)
    assert pool.check_invariants() is None


def test_exception_of_refill_propagates():
    class Failing(Pool):
        def _refill(self, nbytes, queue, pool_number):
            raise OSError(nbytes, queue, pool_number)

    with pytest.raises(OSError, match="512") as caught:
        Failing().allocate(512, 3)
    assert caught.value.errno == 512  # the third argument of OSError is a file name


def test_allocate_processes_pending_frees_first():
    class ProcessesPendingFrees(Growing):
        def _process_pending_frees(self, queue):
            while self.deferrals:
                self.complete_free(self.deferrals.pop()[0])
            self.has_pending_frees = False

        def _defer(self):
            super()._defer()
            self.has_pending_frees = True

    pool = ProcessesPendingFrees()
    block = pool.allocate(512)
    block.record_stream(1)
    block.free()
    assert pool.has_pending_frees
    assert pool.try_allocate(512).address == block.address + 512  # try_allocate does not process pending frees
    assert pool.allocate(512).address == block.address
    assert not pool.has_pending_frees


# Blocks used on other queues


def test_block_used_on_other_queues_is_pending_when_freed():
    pool = Growing()
    block = pool.allocate(512, queue=1)
    for queue in (1, 2, 3, 2):  # the block's own queue is ignored
        block.record_stream(queue)
    block.free()
    [(token, queues, *_)] = pool.deferrals
    assert sorted(queues) == [2, 3]
    assert (pool.current(ALLOCATED), pool.current(ACTIVE)) == (0, 512)
    other = pool.try_allocate(512, queue=1)
    assert other.address != block.address
    pool.complete_free(token)
    assert pool.current(ACTIVE) == 512
    assert pool.try_allocate(512, queue=1).address == block.address


def test_each_deferred_free_is_reported_once():
    pool = Growing()
    blocks = [pool.allocate(512) for _ in range(3)]
    for block in blocks:
        block.record_stream(1)
    blocks.pop().free()
    assert len(pool.deferrals) == 1
    blocks.clear()
    assert len(pool.deferrals) == 3
    assert len({token for token, *_ in pool.deferrals}) == 3
    assert pool.deferred() == []


def test_block_used_on_its_own_queue_is_freed_immediately():
    pool = Growing()
    block = pool.allocate(512)
    block.record_stream(0)
    block.free()
    assert pool.deferrals == []
    assert pool.current(ACTIVE) == 0


class FailingDefer(Growing):
    def _defer(self):
        raise KeyError("defer")


@pytest.mark.parametrize("how", ["free", "drop"])
def test_exception_of_defer_is_unraisable(monkeypatch, how):
    unraisable = collect_unraisable(monkeypatch)
    pool = FailingDefer()
    block = pool.allocate(512)
    block.record_stream(1)
    if how == "free":
        block.free()
    del block
    assert [type(error) for error in unraisable] == [KeyError]
    assert len(pool.deferred()) == 1
    assert pool.check_invariants() is None


def test_propagating_exception_is_not_replaced(monkeypatch):
    unraisable = collect_unraisable(monkeypatch)

    def raise_with_live_block(pool):
        block = pool.allocate(512)
        block.record_stream(1)
        raise RuntimeError("the first")

    with pytest.raises(RuntimeError, match="the first") as caught:
        raise_with_live_block(FailingDefer())
    caught.value.__traceback__ = None  # drops the frame and so the block
    del caught
    gc.collect()
    assert [type(error) for error in unraisable] == [KeyError]


# Errors


@pytest.mark.parametrize("nbytes", [0, -1, -(1 << 62)])
def test_size_must_be_positive(pool, nbytes):
    for method in (pool.try_allocate, pool.allocate):
        with pytest.raises(ValueError, match=f"cannot allocate {nbytes} bytes"):
            method(nbytes)


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 60) + 1, sys.maxsize])
def test_sizes_from_one_exbibyte_fail(pool, nbytes):
    assert pool.try_allocate(nbytes) is None
    with pytest.raises(MemoryError):
        pool.allocate(nbytes)


def test_out_of_range_arguments_raise_overflow_error(pool):
    with pytest.raises(OverflowError):
        pool.try_allocate(sys.maxsize + 1)
    with pytest.raises(OverflowError):
        pool.try_allocate(512, -1)


@pytest.mark.parametrize(("address", "nbytes"), [(0, 512), (513, 512), (512, 0), (512, 511)])
def test_misaligned_segment_is_rejected(address, nbytes):
    pool = Pool()
    with pytest.raises(ValueError, match="multiples of 512"):
        pool.adopt(address, nbytes, 0, small=True)
    assert pool.counts() == Pool().counts()


@pytest.mark.parametrize(("address", "nbytes"), [(BASE, 512), (BASE - 512, 1024), (BASE + 2 * MIB - 512, 1024)])
def test_overlapping_segment_is_rejected(pool, address, nbytes):
    with pytest.raises(ValueError, match="would overlap another"):
        pool.adopt(address, nbytes, 0, small=True)


def test_adjacent_segments_are_not_merged(pool):
    pool.adopt(BASE - 512, 512, 0, small=True)
    pool.adopt(BASE + 2 * MIB, 512, 0, small=True)
    assert [size for _, size, *_ in pool.evictable(True)] == [512, 512, 2 * MIB]


def test_segment_in_use_is_not_evicted(pool):
    block = pool.try_allocate(512)
    assert not pool.evict(BASE)
    assert pool.evictable(small=True) == []
    block.free()
    assert not pool.evict(BASE + 512)
    assert pool.evictable(small=True) == [(BASE, 2 * MIB, 0, 0, False, 0)]
    assert pool.evictable(small=False) == pool.evictable(small=True, pool_number=3) == []
    assert pool.evict(BASE)
    assert not pool.evict(BASE)


def test_segment_with_pending_free_is_not_evicted():
    pool = Growing()
    block = pool.allocate(512)
    block.record_stream(1)
    block.free()
    assert not pool.evict(BASE)


def test_complete_free_rejects_unknown_tokens():
    pool = Growing()
    block = pool.allocate(512)
    block.record_stream(1)
    block.free()
    [(token, *_)] = pool.deferrals
    assert pool.complete_free(token)
    assert not any(pool.complete_free(bad) for bad in (token, 0, 12345))


# Statistics, tables and sizes


def test_current_and_peak_match_counts(pool):
    pool.adopt(BASE + 2 * MIB, 20 * MIB, 0, small=False)
    blocks = [pool.try_allocate(1000), pool.try_allocate(5 * MIB), pool.try_allocate(700)]
    blocks.pop().free()
    counts = np.array(pool.counts()).reshape(len(METRICS), 3, 4)
    for metric in range(len(METRICS)):
        for kind in range(3):
            assert pool.current(metric, kind) == counts[metric, kind, 0]
            assert pool.peak(metric, kind) == counts[metric, kind, 1]
    assert counts[ALLOCATED].tolist() == [
        [1024 + 5 * MIB, 1024 + 5 * MIB + 1024, 1024 + 5 * MIB + 1024, 1024],
        [1024, 2048, 2048, 1024],
        [5 * MIB, 5 * MIB, 5 * MIB, 0],
    ]
    assert pool.current(ALLOCATED, LARGE) + pool.current(ALLOCATED, SMALL) == pool.current(ALLOCATED)


def test_resets_clear_peaks_and_totals(pool):
    pool.try_allocate(1000).free()
    pool.reset_peaks()
    pool.reset_accumulated()
    assert pool.peak(ALLOCATED) == 0
    assert pool.counts()[ALLOCATED * 12 : ALLOCATED * 12 + 4] == [0, 0, 0, 0]


def test_tables_match_the_snapshot_schema():
    """Rows of each table have the layout of its dtype."""
    pool = Growing()
    pool.record_history(100)
    live, pending = pool.allocate(1000), pool.allocate(3 * MIB, 4)
    pending.record_stream(1)
    pending.free()
    segments, blocks, history, lost, nodes = pool.tables()
    segments, blocks = np.frombuffer(segments, SEGMENT), np.frombuffer(blocks, BLOCK)
    assert segments[["address", "nbytes", "queue", "small"]].tolist() == [
        (BASE, 2 * MIB, 0, 1),
        (BASE + 2 * MIB, 20 * MIB, 4, 0),
    ]
    assert blocks[["address", "nbytes", "requested", "segment", "state"]].tolist() == [
        (live.address, 1024, 1000, 0, State.LIVE),
        (BASE + 1024, 2 * MIB - 1024, 0, 0, State.FREE),
        (BASE + 2 * MIB, 3 * MIB, 3 * MIB, 1, State.PENDING_FREE),
        (BASE + 5 * MIB, 17 * MIB, 0, 1, State.FREE),
    ]
    assert np.frombuffer(history, ENTRY)["address"].tolist() == [BASE, BASE, *[BASE + 2 * MIB] * 3]
    assert lost == 0
    assert all(parent <= row for row, (parent, *_) in enumerate(nodes))


def test_tables_can_omit_the_history(pool):
    pool.record_history(10)
    pool.try_allocate(512).free()
    segments, _, history, lost, _ = pool.tables(False)
    assert (len(segments), history, lost) == (SEGMENT.itemsize, b"", 0)


def test_empty_pool_has_empty_tables():
    assert Pool().tables() == (b"", b"", b"", 0, [])


def test_owns_covers_exactly_the_segment(pool):
    assert [pool.owns(at) for at in (BASE - 1, BASE, BASE + 2 * MIB - 1, BASE + 2 * MIB)] == [False, True, True, False]


def test_pool_rounds_block_and_segment_sizes():
    pool = Pool()
    assert [pool.block_size(n) for n in (1, MIN_BLOCK_SIZE, MIN_BLOCK_SIZE + 1)] == [512, 512, 1024]
    sizes = {n: pool.segment_size(n) for n in (1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 511, 10 * MIB + 1)}
    assert sizes == {
        1: (2 * MIB, True),
        MIB: (2 * MIB, True),
        MIB + 1: (20 * MIB, False),
        10 * MIB - 512: (20 * MIB, False),
        10 * MIB - 511: (10 * MIB, False),
        10 * MIB + 1: (12 * MIB, False),
    }


DEFAULT_POLICY = {
    "divisions": (1,) * 16,
    "max_split": (1 << 64) - 1,
    "max_non_split_rounding": 20 * MIB,
    "large_segment": 20 * MIB,
    "expandable": False,
    "track_age": False,
    "exact_segments": False,
}


def test_policy_changes_sizes():
    pool = Pool()
    pool.set_policy(**DEFAULT_POLICY | {"divisions": (4,) * 16, "large_segment": 12 * MIB})
    assert [pool.block_size(n) for n in (1, 4097, 5 * MIB + 1)] == [512, 5120, 6 * MIB]
    assert pool.segment_size(2 * MIB) == (12 * MIB, False)
    pool.set_policy(**DEFAULT_POLICY | {"exact_segments": True})
    assert pool.segment_size(700 << 10) == (2112 << 10, True)  # three blocks, in steps of 64 KiB
    assert pool.segment_size(5 * MIB) == (5 * MIB, False)
    pool.set_policy(**DEFAULT_POLICY)
    assert pool.segment_size(2 * MIB) == (20 * MIB, False)


@pytest.mark.parametrize(
    ("invalid", "error"),
    [
        ({"divisions": (1,) * 15}, ValueError),
        ({"divisions": None}, TypeError),
        ({"max_split": -1}, OverflowError),
        ({"large_segment": "12"}, TypeError),
    ],
)
def test_invalid_policy_has_no_effect(pool, invalid, error):
    with pytest.raises(error):
        pool.set_policy(**DEFAULT_POLICY | {"divisions": (4,) * 16} | invalid)
    assert (pool.block_size(4097), pool.segment_size(2 * MIB)) == (4608, (20 * MIB, False))


def test_pages_are_committed_and_decommitted():
    pool = Pool()
    pool.set_policy(**DEFAULT_POLICY | {"expandable": True})
    pool.adopt_expandable(BASE, 100 * MIB, 20 * MIB, 0, small=False)
    assert pool.try_allocate(30 * MIB) is None
    address, nbytes = pool.choose_pages(30 * MIB, 0)
    assert (address, nbytes) == (BASE, 40 * MIB)
    block = pool.commit_done(address, 30 * MIB)
    assert (block.address, block.size, block.queue) == (BASE, 30 * MIB, 0)
    assert pool.choose_pages(5 * MIB, 0) == (BASE + 30 * MIB, 0)  # already committed
    other = pool.allocate_at(BASE + 30 * MIB, 5 * MIB)
    assert (pool.allocate_at(BASE + 30 * MIB, 5 * MIB), other.size) == (None, 5 * MIB)
    segments = np.frombuffer(pool.tables()[0], SEGMENT)
    assert segments[["address", "nbytes", "growing"]].tolist() == [(BASE, 40 * MIB, 1)]
    del block
    assert pool.idle_pages(small=False) == [(BASE, 20 * MIB)]
    assert pool.begin_decommit(BASE, 20 * MIB)
    assert not pool.begin_decommit(BASE, 20 * MIB)
    assert not pool.decommit_done(BASE)
    del other
    assert pool.begin_decommit(BASE + 20 * MIB, 20 * MIB)
    assert pool.decommit_done(BASE + 20 * MIB)
    assert pool.evict_expandable(BASE)
    assert pool.counts() == [0 if i % 4 == 0 else n for i, n in enumerate(pool.counts())]
    assert pool.check_invariants() is None


def test_invalid_expandable_segment_is_rejected(pool):
    with pytest.raises(ValueError, match="would overlap another"):
        pool.adopt_expandable(BASE, 20 * MIB, 2 * MIB, 0, small=True)
    for page in (0, 100, 3 * MIB):
        with pytest.raises(ValueError, match="pages"):
            pool.adopt_expandable(2 * BASE, 20 * MIB, page, 0, small=True)


def test_completing_unknown_transition_has_no_effect(pool):
    for address in (0, 1, BASE, BASE + 512, 2**64 - 1):
        assert (pool.commit_done(address, 512), pool.decommit_done(address), pool.begin_decommit(address, 512)) == (
            None,
            False,
            False,
        )
        pool.rollback(address)
        assert not pool.evict_expandable(address)
    assert pool.allocate_at(BASE, 0) is None
    assert pool.allocate_at(BASE, 512).address == BASE


def test_adopt_and_allocate_uses_the_new_segment(pool):
    block = pool.adopt_and_allocate(3 * MIB, 2 * BASE, 20 * MIB, 0)
    assert (block.address, block.size) == (2 * BASE, 3 * MIB)
    with pytest.raises(ValueError, match="would overlap another"):
        pool.adopt_and_allocate(3 * MIB, 2 * BASE, 20 * MIB, 0)
    assert pool.adopt_and_allocate(30 * MIB, 3 * BASE, 20 * MIB, 0) is None  # too small, but adopted
    assert pool.owns(3 * BASE)


def test_queue_handles_may_be_any_64_bit_number():
    pool = Pool()
    assert pool.try_allocate(1, 2**63 - 1) is None
    assert pool.try_allocate(1, 2**64 - 1) is None
    pool.adopt(BASE, 2 * MIB, 2**64 - 1, small=True)
    assert pool.try_allocate(1, 0) is None
    assert pool.try_allocate(1, 2**64 - 1).address == BASE
    assert pool.check_invariants() is None


def test_segments_of_equal_rank_are_ordered_by_address():
    pool = Pool()
    for at in (2, 0, 1):
        pool.adopt(BASE + at * 4 * MIB, 2 * MIB, 0, small=False, rank=7)
    taken = [pool.try_allocate(2 * MIB) for _ in range(3)]
    assert [block.address for block in taken] == [BASE + at * 4 * MIB for at in range(3)]
    for block in (taken[1], taken[2], taken[0]):
        block.free()
        assert pool.check_invariants() is None
