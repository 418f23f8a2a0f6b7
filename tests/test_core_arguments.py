"""Arguments that the compiled core refuses, or limits."""

from __future__ import annotations

import numpy as np
import pytest

from forebay._core import Pool, Queue, all_settled, make_dicts, restore_numpy_handler

REQUEST_LIMIT = 1 << 60  # bytes; no larger request succeeds
BASE, SEGMENT = 1 << 40, 2 << 20


def filled():
    pool = Pool()
    pool.adopt(BASE, SEGMENT, 0, True)
    return pool


@pytest.mark.parametrize(
    ("keys", "columns", "error"),
    [
        ([], [], "0 keys for 0 columns"),
        (["a"], [[1], [2]], "1 keys for 2 columns"),
        (["a", "b"], [[1, 2], [3]], "columns of 2 and 1 rows"),
    ],
)
def test_make_dicts_refuses_columns_of_other_lengths(keys, columns, error):
    with pytest.raises(ValueError, match=error):
        make_dicts({}, keys, columns, True)


def test_make_dicts_refuses_a_column_that_is_no_list():
    with pytest.raises(TypeError, match="list"):
        make_dicts({}, ["a"], [(1, 2)], True)


def test_make_dicts_notices_columns_that_a_key_shortens():
    columns = [list(range(2000)), list(range(2000))]

    class Shortens(str):
        __slots__ = ()

        def __hash__(self):
            for column in columns:
                del column[1:]
            return 1

    with pytest.raises(IndexError):
        make_dicts({}, [Shortens("a"), "b"], columns, False)


@pytest.mark.parametrize("exact", [False, True])
def test_sizes_of_requests_beyond_the_limit_are_those_of_the_limit(exact):
    pool = Pool()
    pool.set_policy([0] * 16, (1 << 64) - 1, 0, 20 << 20, False, False, exact)
    for nbytes in (REQUEST_LIMIT, (1 << 63) + 1, (1 << 64) - 1):
        assert pool.block_size(nbytes) == REQUEST_LIMIT
        assert pool.segment_size(nbytes) == (REQUEST_LIMIT, False)
        assert pool.choose_pages(nbytes, 0) == (0, 0)


def test_divisions_are_powers_of_two():
    with pytest.raises(ValueError, match="powers of two"):
        Pool().set_policy([3] * 16, 1, 1, 1, False, False, False)


def test_adopt_refuses_a_segment_of_more_than_any_request():
    with pytest.raises(ValueError, match="is invalid"):
        Pool().adopt(512, REQUEST_LIMIT, 0, True)


def test_two_heaps_may_have_one_rank():
    pool = Pool()
    pool.set_policy([0] * 16, (1 << 64) - 1, 0, 20 << 20, False, False, False, 256)
    for number in range(3):
        pool.adopt(BASE + number * SEGMENT, SEGMENT, 0, False, 5)
    blocks = [pool.new_buffer(SEGMENT - 256, 0) for _ in range(3)]
    assert [block.address for block in blocks] == [BASE + number * SEGMENT for number in range(3)]
    assert pool.check_invariants() is None


@pytest.mark.parametrize(
    "blocks",
    [
        [(BASE, SEGMENT - 512, True)],
        [(BASE, 512, True), (BASE + 512, SEGMENT, True)],
        [(BASE, 0, True), (BASE, SEGMENT, True)],
        [(BASE, 512, True), (BASE + 1024, SEGMENT - 1024, True)],
        [(BASE, 100, True), (BASE + 100, SEGMENT - 100, True)],
    ],
)
def test_restore_refuses_blocks_that_do_not_tile_the_segment(blocks):
    pool = filled()
    saved = [{"address": at, "size": size, "live": live, "committed": True} for at, size, live in blocks]
    with pytest.raises(RuntimeError, match="do not tile the segment"):
        pool.restore(0, [saved])
    assert pool.check_invariants() is None


def test_restore_refuses_an_empty_segment_and_one_that_is_there_twice():
    pool = filled()
    with pytest.raises(ValueError, match="has no blocks"):
        pool.restore(0, [[]])
    saved = pool.checkpoint(0)
    with pytest.raises(RuntimeError, match="do not tile"):
        pool.restore(0, saved * 2)
    assert pool.restore(0, saved) == []


def test_queue_refuses_null_addresses_of_work_that_has_bytes():
    queue = Queue(1)
    for refused in (
        lambda: queue.copy(0, BASE, 1),
        lambda: queue.copy(BASE, 0, 1),
        lambda: queue.fill(0, 1, 1),
        lambda: queue.call_native(0, 1),
    ):
        with pytest.raises(ValueError, match="address 0"):
            refused()
    queue.copy(0, 0, 0)
    queue.fill(0, 1, 0)
    assert queue.wait_within(queue.signal(), 1_000_000_000)


def test_all_settled_refuses_none():
    with pytest.raises(TypeError, match="not None"):
        all_settled([None])


@pytest.mark.parametrize("handler", [None, 1, "mem_handler"])
def test_numpy_keeps_its_handler_if_the_new_one_is_none(handler):
    with pytest.raises((TypeError, ValueError)):
        restore_numpy_handler(handler)
    assert np.ones(3).sum() == 3
