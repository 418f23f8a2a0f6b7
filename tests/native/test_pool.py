"""The pool's face in small stories, whose number makes the lines: blocks, subclasses, refusals, what can be read."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from forebay._core import METRICS, QUANTUM, Block, Pool
from forebay.snapshot.model import BLOCK, ENTRY, SEGMENT, State

MIB = 1 << 20
HERE = 64 * MIB
ALLOCATED, ACTIVE = METRICS.index("allocated_bytes"), METRICS.index("active_bytes")
SMALL, LARGE = 1, 2


@pytest.fixture
def pool() -> Pool:
    """One segment of the small kind, for queue 0."""
    pool = Pool()
    pool.adopt(HERE, 2 * MIB, 0, small=True)
    yield pool
    assert pool.broken() is None


@pytest.fixture
def unraisable(monkeypatch):
    """The exceptions that could not be raised where they happened."""
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: caught.append(args.exc_value))
    return caught


class Growing(Pool):
    """Gets what it lacks from an endless device."""

    def __init__(self):
        self.refilled, self.deferrals, self.end = [], [], HERE

    def _refill(self, nbytes, queue, home):
        self.refilled.append((nbytes, queue, home))
        size, small = self.segment_size(nbytes)
        self.adopt(self.end, size, queue, small, home=home)
        self.end += size
        return self.take(nbytes, queue, home)

    def _defer(self):
        self.deferrals += self.deferred()
        self.heard(self.deferrals[-1][0])


# A block


def test_a_block_says_what_it_is(pool):
    block = pool.take(1000)
    said = (block.address, block.nbytes, block.size, block.queue, block.pool, block.freed)
    assert said == (HERE, 1000, 1024, 0, pool, False)
    assert repr(block) == f"<Block at {HERE:#x}, 1000 bytes>"


def test_dropping_a_block_gives_it_back(pool):
    block = pool.take(1000)
    assert pool.current(ALLOCATED) == 1024
    del block
    assert pool.current(ALLOCATED) == 0


def test_freeing_twice_is_freeing_once(pool):
    block = pool.take(1000)
    block.free()
    assert block.freed
    again = pool.take(1000)
    assert again.address == block.address
    block.free()
    del block
    assert pool.current(ALLOCATED) == 1024
    assert not again.freed


def test_a_block_given_back_knows_only_where_it_was(pool):
    block = pool.take(1000)
    block.free()
    assert block.address == HERE
    assert block.pool is pool
    assert repr(block) == f"<Block at {HERE:#x}, given back>"
    for use in (lambda: block.nbytes, lambda: block.size, lambda: block.queue, lambda: block.used_on(1)):
        with pytest.raises(ValueError, match=f"the block at {HERE:#x} was given back already"):
            use()


def test_a_block_keeps_its_pool():
    pool = Growing()
    alive = weakref.ref(pool)
    block = pool.allocate(512)
    del pool
    gc.collect()
    assert block.pool.current(ALLOCATED) == 512
    del block
    gc.collect()
    assert alive() is None


def test_blocks_come_from_a_pool_only():
    with pytest.raises(TypeError, match=r"take\(\) or allocate\(\)"):
        Block()


# More memory


def test_a_pool_alone_has_nobody_to_ask(pool):
    assert pool.take(3 * MIB) is None
    with pytest.raises(MemoryError, match=f"no free block of {3 * MIB} bytes"):
        pool.allocate(3 * MIB)


def test_a_subclass_is_asked_for_what_is_missing():
    pool = Growing()
    first = pool.allocate(3 * MIB, 5)
    second = pool.allocate(3 * MIB, queue=5)
    assert (first.address, second.address) == (HERE, HERE + 3 * MIB)
    assert pool.refilled == [(3 * MIB, 5, 0)]


def test_a_subclass_sends_some_to_homes_of_their_own():
    class Routing(Growing):
        def _home(self, queue):
            return 7 if queue == 5 else 0

    pool = Routing()
    pool.make_home(7)
    pool.routed = True
    private, common = pool.allocate(1000, 5), pool.allocate(1000, 4)
    assert pool.refilled == [(1000, 5, 7), (1000, 4, 0)]
    assert pool.take(1000, 5) is None
    pool.routed = False
    other = pool.allocate(1000, 5)
    assert pool.refilled[2:] == [(1000, 5, 0)]
    assert len({block.address for block in (private, common, other)}) == 3
    assert (pool.reserved_by(7)[0], pool.idle_in(7)) == (2 * MIB, 2 * MIB - 1024)
    assert not pool.drop_home(7)
    assert pool.broken() is None


def test_what_a_refill_raises_is_raised():
    class Failing(Pool):
        def _refill(self, nbytes, queue, home):
            raise OSError(nbytes, queue, home)

    with pytest.raises(OSError, match="512") as caught:
        Failing().allocate(512, 3)
    assert caught.value.errno == 512  # a third argument is a file name's place


def test_settling_comes_before_allocating_while_something_waits():
    class Settling(Growing):
        def _settle(self, queue):
            while self.deferrals:
                self.settle(self.deferrals.pop()[0])
            self.waiting = False

        def _defer(self):
            super()._defer()
            self.waiting = True

    pool = Settling()
    block = pool.allocate(512)
    block.used_on(1)
    block.free()
    assert pool.waiting
    assert pool.take(512).address == block.address + 512  # take settles nothing
    assert pool.allocate(512).address == block.address
    assert not pool.waiting


# Other queues


def test_a_block_used_elsewhere_waits_for_that_queue():
    pool = Growing()
    block = pool.allocate(512, queue=1)
    for queue in (1, 2, 3, 2):  # its own does not count
        block.used_on(queue)
    block.free()
    [(token, queues, _)] = pool.deferrals
    assert sorted(queues) == [2, 3]
    assert (pool.current(ALLOCATED), pool.current(ACTIVE)) == (0, 512)
    other = pool.take(512, queue=1)
    assert other.address != block.address
    pool.settle(token)
    assert pool.current(ACTIVE) == 512
    assert pool.take(512, queue=1).address == block.address


def test_a_pool_hears_once_of_each_block_that_waits():
    pool = Growing()
    blocks = [pool.allocate(512) for _ in range(3)]
    for block in blocks:
        block.used_on(1)
    blocks.pop().free()
    assert len(pool.deferrals) == 1
    blocks.clear()
    assert len(pool.deferrals) == 3
    assert len({token for token, *_ in pool.deferrals}) == 3
    assert pool.deferred() == []


def test_a_block_used_nowhere_else_defers_nothing():
    pool = Growing()
    block = pool.allocate(512)
    block.used_on(0)
    block.free()
    assert pool.deferrals == []
    assert pool.current(ACTIVE) == 0


class Clumsy(Growing):
    def _defer(self):
        raise KeyError("clumsy")


@pytest.mark.parametrize("how", ["free", "drop"])
def test_what_a_deferral_raises_is_reported_not_raised(unraisable, how):
    pool = Clumsy()
    block = pool.allocate(512)
    block.used_on(1)
    if how == "free":
        block.free()
    del block
    assert [type(error) for error in unraisable] == [KeyError]
    assert len(pool.deferred()) == 1
    assert pool.broken() is None


def test_an_exception_on_its_way_is_not_replaced(unraisable):
    def fails(pool):
        block = pool.allocate(512)
        block.used_on(1)
        raise RuntimeError("the first")

    with pytest.raises(RuntimeError, match="the first") as caught:
        fails(Clumsy())
    caught.value.__traceback__ = None  # drops the frame and with it the block
    del caught
    gc.collect()
    assert [type(error) for error in unraisable] == [KeyError]


# Refusals


@pytest.mark.parametrize("nbytes", [0, -1, -(1 << 62)])
def test_a_block_has_at_least_a_byte(pool, nbytes):
    for method in (pool.take, pool.allocate):
        with pytest.raises(ValueError, match=f"cannot take {nbytes} bytes"):
            method(nbytes)


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 60) + 1, sys.maxsize])
def test_no_device_has_an_exbibyte(pool, nbytes):
    assert pool.take(nbytes) is None
    with pytest.raises(MemoryError):
        pool.allocate(nbytes)


def test_more_than_an_address_can_say_is_an_overflow(pool):
    with pytest.raises(OverflowError):
        pool.take(sys.maxsize + 1)
    with pytest.raises(OverflowError):
        pool.take(512, -1)


@pytest.mark.parametrize(("address", "nbytes"), [(0, 512), (513, 512), (512, 0), (512, 511)])
def test_a_segment_is_aligned(address, nbytes):
    pool = Pool()
    with pytest.raises(ValueError, match="multiples of 512"):
        pool.adopt(address, nbytes, 0, small=True)
    assert pool.counts() == Pool().counts()


@pytest.mark.parametrize(("address", "nbytes"), [(HERE, 512), (HERE - 512, 1024), (HERE + 2 * MIB - 512, 1024)])
def test_segments_do_not_overlap(pool, address, nbytes):
    with pytest.raises(ValueError, match="would overlap another"):
        pool.adopt(address, nbytes, 0, small=True)


def test_segments_may_touch(pool):
    pool.adopt(HERE - 512, 512, 0, small=True)
    pool.adopt(HERE + 2 * MIB, 512, 0, small=True)
    assert [size for _, size, *_ in pool.evictable(True)] == [512, 512, 2 * MIB]  # and are not merged


def test_a_used_segment_stays(pool):
    block = pool.take(512)
    assert not pool.evict(HERE)
    assert pool.evictable(small=True) == []
    block.free()
    assert not pool.evict(HERE + 512)
    assert pool.evictable(small=True) == [(HERE, 2 * MIB, 0, 0, False)]
    assert pool.evictable(small=False) == pool.evictable(small=True, home=3) == []
    assert pool.evict(HERE)
    assert not pool.evict(HERE)


def test_a_segment_with_a_waiting_block_stays():
    pool = Growing()
    block = pool.allocate(512)
    block.used_on(1)
    block.free()
    assert not pool.evict(HERE)


def test_only_a_waiting_block_can_be_settled():
    pool = Growing()
    block = pool.allocate(512)
    block.used_on(1)
    block.free()
    [(token, *_)] = pool.deferrals
    assert pool.settle(token)
    assert not any(pool.settle(bad) for bad in (token, 0, 12345))


# What can be read


def test_one_number_is_that_of_the_whole_list(pool):
    pool.adopt(HERE + 2 * MIB, 20 * MIB, 0, small=False)
    blocks = [pool.take(1000), pool.take(5 * MIB), pool.take(700)]
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


def test_resets(pool):
    pool.take(1000).free()
    pool.reset_peaks()
    pool.reset_accumulated()
    assert pool.peak(ALLOCATED) == 0
    assert pool.counts()[ALLOCATED * 12 : ALLOCATED * 12 + 4] == [0, 0, 0, 0]


def test_the_core_and_the_schema_agree():
    """A row of each table is one of its dtype; `lost` and places are plain."""
    pool = Growing()
    pool.record(100)
    kept, waits = pool.allocate(1000), pool.allocate(3 * MIB, 4)
    waits.used_on(1)
    waits.free()
    segments, blocks, history, lost, places = pool.tables()
    segments, blocks = np.frombuffer(segments, SEGMENT), np.frombuffer(blocks, BLOCK)
    assert segments[["address", "nbytes", "queue", "small"]].tolist() == [
        (HERE, 2 * MIB, 0, 1),
        (HERE + 2 * MIB, 20 * MIB, 4, 0),
    ]
    assert blocks[["address", "nbytes", "requested", "segment", "state"]].tolist() == [
        (kept.address, 1024, 1000, 0, State.LIVE),
        (HERE + 1024, 2 * MIB - 1024, 0, 0, State.FREE),
        (HERE + 2 * MIB, 3 * MIB, 3 * MIB, 1, State.AWAITING),
        (HERE + 5 * MIB, 17 * MIB, 0, 1, State.FREE),
    ]
    assert np.frombuffer(history, ENTRY)["address"].tolist() == [HERE, HERE, *[HERE + 2 * MIB] * 3]
    assert lost == 0
    assert all(parent <= row for row, (parent, *_) in enumerate(places))


def test_tables_without_the_trace(pool):
    pool.record(10)
    pool.take(512).free()
    segments, _, history, lost, _ = pool.tables(False)
    assert (len(segments), history, lost) == (SEGMENT.itemsize, b"", 0)


def test_an_empty_pool_has_empty_tables():
    assert Pool().tables() == (b"", b"", b"", 0, [])


def test_whose_an_address_is(pool):
    assert [pool.owns(at) for at in (HERE - 1, HERE, HERE + 2 * MIB - 1, HERE + 2 * MIB)] == [False, True, True, False]


def test_sizes():
    pool = Pool()
    assert [pool.rounded(n) for n in (1, QUANTUM, QUANTUM + 1)] == [512, 512, 1024]
    sizes = {n: pool.segment_size(n) for n in (1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 511, 10 * MIB + 1)}
    assert sizes == {
        1: (2 * MIB, True),
        MIB: (2 * MIB, True),
        MIB + 1: (20 * MIB, False),
        10 * MIB - 512: (20 * MIB, False),
        10 * MIB - 511: (10 * MIB, False),
        10 * MIB + 1: (12 * MIB, False),
    }


PLAIN = {
    "divisions": (1,) * 16,
    "max_split": (1 << 64) - 1,
    "max_non_split_rounding": 20 * MIB,
    "large_segment": 20 * MIB,
    "growing": False,
    "ages": False,
    "fine": False,
}


def test_sizes_follow_the_policy():
    pool = Pool()
    pool.set_policy(**PLAIN | {"divisions": (4,) * 16, "large_segment": 12 * MIB})
    assert [pool.rounded(n) for n in (1, 4097, 5 * MIB + 1)] == [512, 5120, 6 * MIB]
    assert pool.segment_size(2 * MIB) == (12 * MIB, False)
    pool.set_policy(**PLAIN | {"fine": True})
    assert pool.segment_size(700 << 10) == (2112 << 10, True)  # three blocks, in steps of 64 KiB
    assert pool.segment_size(5 * MIB) == (5 * MIB, False)
    pool.set_policy(**PLAIN)
    assert pool.segment_size(2 * MIB) == (20 * MIB, False)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"divisions": (1,) * 15}, ValueError),
        ({"divisions": None}, TypeError),
        ({"max_split": -1}, OverflowError),
        ({"large_segment": "12"}, TypeError),
    ],
)
def test_a_policy_that_cannot_be_set_changes_nothing(pool, wrong, kind):
    with pytest.raises(kind):
        pool.set_policy(**PLAIN | {"divisions": (4,) * 16} | wrong)
    assert (pool.rounded(4097), pool.segment_size(2 * MIB)) == (4608, (20 * MIB, False))


def test_pages_come_and_go():
    pool = Pool()
    pool.set_policy(**PLAIN | {"growing": True})
    pool.adopt_space(HERE, 100 * MIB, 20 * MIB, 0, small=False)
    assert pool.take(30 * MIB) is None
    address, nbytes = pool.room(30 * MIB, 0)
    assert (address, nbytes) == (HERE, 40 * MIB)
    block = pool.came(address, 30 * MIB)
    assert (block.address, block.size, block.queue) == (HERE, 30 * MIB, 0)
    assert pool.room(5 * MIB, 0) == (HERE + 30 * MIB, 0)  # it is there
    other = pool.take_at(HERE + 30 * MIB, 5 * MIB)
    assert (pool.take_at(HERE + 30 * MIB, 5 * MIB), other.size) == (None, 5 * MIB)
    segments = np.frombuffer(pool.tables()[0], SEGMENT)
    assert segments[["address", "nbytes", "growing"]].tolist() == [(HERE, 40 * MIB, 1)]
    del block
    assert pool.idle_pages(small=False) == [(HERE, 20 * MIB)]
    assert pool.leave(HERE, 20 * MIB)
    assert not pool.leave(HERE, 20 * MIB)
    assert not pool.left(HERE)
    del other
    assert pool.leave(HERE + 20 * MIB, 20 * MIB)
    assert pool.left(HERE + 20 * MIB)
    assert pool.evict_space(HERE)
    assert pool.counts() == [0 if i % 4 == 0 else n for i, n in enumerate(pool.counts())]
    assert pool.broken() is None


def test_no_space_overlaps(pool):
    with pytest.raises(ValueError, match="would overlap another"):
        pool.adopt_space(HERE, 20 * MIB, 2 * MIB, 0, small=True)
    for page in (0, 100, 3 * MIB):
        with pytest.raises(ValueError, match="pages"):
            pool.adopt_space(2 * HERE, 20 * MIB, page, 0, small=True)


def test_news_of_pages_that_are_not_on_their_way(pool):
    for address in (0, 1, HERE, HERE + 512, 2**64 - 1):
        assert (pool.came(address, 512), pool.left(address), pool.leave(address, 512)) == (None, False, False)
        pool.stayed(address)
        assert not pool.evict_space(address)
    assert pool.take_at(HERE, 0) is None
    assert pool.take_at(HERE, 512).address == HERE


def test_a_segment_serves_first_who_brought_it(pool):
    block = pool.adopt_for(3 * MIB, 2 * HERE, 20 * MIB, 0)
    assert (block.address, block.size) == (2 * HERE, 3 * MIB)
    with pytest.raises(ValueError, match="would overlap another"):
        pool.adopt_for(3 * MIB, 2 * HERE, 20 * MIB, 0)
    assert pool.adopt_for(30 * MIB, 3 * HERE, 20 * MIB, 0) is None  # but the segment is there
    assert pool.owns(3 * HERE)


def test_any_queue_handle_will_do():
    pool = Pool()
    assert pool.take(1, 2**63 - 1) is None
    assert pool.take(1, 2**64 - 1) is None
    pool.adopt(HERE, 2 * MIB, 2**64 - 1, small=True)
    assert pool.take(1, 0) is None
    assert pool.take(1, 2**64 - 1).address == HERE
    assert pool.broken() is None


def test_segments_of_one_rank_go_by_address():
    pool = Pool()
    for at in (2, 0, 1):
        pool.adopt(HERE + at * 4 * MIB, 2 * MIB, 0, small=False, rank=7)
    taken = [pool.take(2 * MIB) for _ in range(3)]
    assert [block.address for block in taken] == [HERE + at * 4 * MIB for at in range(3)]
    for block in (taken[1], taken[2], taken[0]):
        block.free()
        assert pool.broken() is None
