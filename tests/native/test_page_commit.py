"""Commit of given page ranges, as the replay of a history does, instead of the ranges that the pool would choose."""

from __future__ import annotations

import pytest

from forebay._core import Pool

MIB = 1 << 20
START = 1 << 40


@pytest.fixture
def pool():
    """A pool with 100 MiB of uncommitted address space in pages of 20 MiB."""
    created = Pool()
    created.adopt_expandable(START, 100 * MIB, 20 * MIB, 0, small=False)
    yield created
    assert created.check_invariants() is None


def test_committed_page_merges_with_its_neighbour(pool):
    """With the second and third pages committed, 40 MiB fit there and the first page is chosen next."""
    for page in (1, 2):
        assert pool.begin_commit(START + page * 20 * MIB, 20 * MIB)
        assert pool.check_invariants() is None
        assert pool.commit_done(START + page * 20 * MIB, 0) is None
    block = pool.allocate_at(START + 20 * MIB, 40 * MIB)
    assert block.address == START + 20 * MIB
    assert pool.choose_pages(20 * MIB, 0) == (START, 20 * MIB)
    pool.rollback(START)


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [
        (START + 20 * MIB, 20 * MIB),  # committed
        (START, 40 * MIB),  # partly committed
        (START + 80 * MIB, 40 * MIB),  # past the end
        (START + MIB, 20 * MIB),  # misaligned
        (START, 30 * MIB),  # not a multiple of the page size
        (START, 0),
        (START - 20 * MIB, 20 * MIB),
        (0, 20 * MIB),
    ],
)
def test_invalid_range_is_rejected(pool, address, nbytes):
    assert pool.begin_commit(START + 20 * MIB, 20 * MIB)
    pool.commit_done(START + 20 * MIB, 0)
    assert not pool.begin_commit(address, nbytes)


def test_rollback_restores_the_range(pool):
    assert pool.begin_commit(START + 40 * MIB, 20 * MIB)
    assert not pool.begin_commit(START + 40 * MIB, 20 * MIB)  # in transition
    pool.rollback(START + 40 * MIB)
    assert pool.evict_expandable(START)
