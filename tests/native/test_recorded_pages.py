"""Pages that come where a recording has them, rather than where the pool would put them."""

from __future__ import annotations

import pytest

from forebay._core import Pool

MIB = 1 << 20
START = 1 << 40


@pytest.fixture
def pool():
    """Address space of 100 MiB, in pages of 20; none has memory."""
    made = Pool()
    made.adopt_space(START, 100 * MIB, 20 * MIB, 0, small=False)
    yield made
    assert made.broken() is None


def test_they_come_in_the_middle_and_join_what_is_there(pool):
    """GIVEN the second page, WHEN the third comes, THEN 40 MiB fit, and the first has no memory yet."""
    for page in (1, 2):
        assert pool.come(START + page * 20 * MIB, 20 * MIB)
        assert pool.broken() is None
        assert pool.came(START + page * 20 * MIB, 0) is None
    block = pool.take_at(START + 20 * MIB, 40 * MIB)
    assert block.address == START + 20 * MIB
    assert pool.room(20 * MIB, 0) == (START, 20 * MIB)
    pool.stayed(START)


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [
        (START + 20 * MIB, 20 * MIB),  # is there
        (START, 40 * MIB),  # partly there
        (START + 80 * MIB, 40 * MIB),  # over the end
        (START + MIB, 20 * MIB),  # no page begins there
        (START, 30 * MIB),  # no number of pages
        (START, 0),
        (START - 20 * MIB, 20 * MIB),
        (0, 20 * MIB),
    ],
)
def test_others_cannot_come(pool, address, nbytes):
    assert pool.come(START + 20 * MIB, 20 * MIB)
    pool.came(START + 20 * MIB, 0)
    assert not pool.come(address, nbytes)


def test_they_may_stay_away(pool):
    assert pool.come(START + 40 * MIB, 20 * MIB)
    assert not pool.come(START + 40 * MIB, 20 * MIB)  # they are on their way
    pool.stayed(START + 40 * MIB)
    assert pool.evict_space(START)
