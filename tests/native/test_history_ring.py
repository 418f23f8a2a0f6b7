"""What a pool remembers: the newest entries, who caused them, and nothing that was not asked for."""

from __future__ import annotations

import sys
import time
import weakref

import numpy as np
import pytest

from forebay._core import Pool
from forebay.snapshot.model import BLOCK, ENTRY, SEGMENT, Action

MIB = 1 << 20
HERE = 64 * MIB


@pytest.fixture
def pool() -> Pool:
    """One segment of the small kind, for queue 0."""
    pool = Pool()
    pool.adopt(HERE, 2 * MIB, 0, small=True)
    return pool


def history(pool):
    return np.frombuffer(pool.tables()[2], ENTRY)


def told(pool):
    columns = history(pool)[["action", "address", "nbytes", "queue"]]
    return [(Action(action), *rest) for action, *rest in columns.tolist()]


def stack(pool, entry):
    """An entry's places, innermost first, as (file, name, line)."""
    places, number, found = pool.tables()[4], int(entry["stack"]), []
    while number:
        parent, *place = places[number - 1]
        found.append(tuple(place))
        number = parent
    return found


def names(pool, entry):
    return [name for _, name, _ in stack(pool, entry)]


def short_names(pool, entry):
    return [name.rpartition(".")[2] for name in names(pool, entry)]


# What is remembered


def test_nothing_until_asked(pool):
    pool.take(512).free()
    assert not pool.recording
    assert told(pool) == []


def test_a_life_in_order(pool):
    pool.record(100)
    pool.adopt(HERE + 2 * MIB, 20 * MIB, 3, small=False)
    block = pool.take(5 * MIB, 3)
    block.used_on(0)
    block.free()
    pool.settle(pool.deferred()[0][0])
    pool.evict(HERE + 2 * MIB)
    pool.note_oom(1 << 40, 3, 4096)
    segment = (HERE + 2 * MIB, 20 * MIB, 3)
    requested = (HERE + 2 * MIB, 5 * MIB, 3)
    assert told(pool) == [
        (Action.RESERVE, *segment),
        (Action.TAKE, *requested),
        (Action.GIVE, *requested),
        (Action.GIVEN, *requested),
        (Action.RELEASE, *segment),
        (Action.OOM, 4096, 1 << 40, 3),  # in the address: the device's free bytes
    ]


def test_entries_carry_what_was_asked_for_not_what_was_given(pool):
    pool.record(10)
    pool.take(1).free()
    assert history(pool)["nbytes"].tolist() == [1, 1, 1]


def test_a_take_that_fails_leaves_no_entry(pool):
    pool.record(10)
    assert pool.take(3 * MIB) is None
    assert told(pool) == []


def test_times_are_unix_times_in_order(pool):
    pool.record(10)
    before = time.time_ns()
    pool.take(512).free()
    after = time.time_ns()
    times = history(pool)["time_ns"].tolist()
    assert [before, *times, after] == sorted([before, *times, after])


@pytest.mark.parametrize("most", [1, 7, 1 << 14, (1 << 14) + 1, 50_000])
def test_the_newest_stay(pool, most):
    pool.record(most, depth=0)
    for nbytes in range(1, 20_001):
        pool.take(nbytes)  # dropped at once: TAKE, GIVE, GIVEN
    expected = [nbytes for nbytes in range(1, 20_001) for _ in range(3)][-most:]
    assert history(pool)["nbytes"].tolist() == expected
    assert pool.tables()[3] == max(60_000 - most, 0)


def test_stopping_forgets(pool):
    pool.record(10)
    block = pool.take(512)
    pool.record(0)
    assert not pool.recording
    assert pool.tables()[2:] == (b"", 0, [])
    assert np.frombuffer(pool.tables()[1], BLOCK)["stack"].tolist() == [0, 0]
    block.free()
    assert told(pool) == []


def test_recording_again_begins_anew(pool):
    pool.record(10)
    block = pool.take(512)
    pool.record(10)
    block.free()
    assert [(action, nbytes) for action, _, nbytes, _ in told(pool)] == [(Action.GIVE, 512), (Action.GIVEN, 512)]
    assert history(pool)["stack"].tolist() == [0, 0]  # where it was taken was told to the recording before


# Who did it


def test_the_innermost_place_is_the_caller(pool):
    pool.record(10)
    line = sys._getframe().f_lineno + 1
    block = pool.take(512)
    [entry] = history(pool)
    assert stack(pool, entry)[0] == (__file__, "test_the_innermost_place_is_the_caller", line)
    assert np.frombuffer(pool.tables()[1], BLOCK)["stack"][0] == entry["stack"]
    block.free()
    assert np.frombuffer(pool.tables()[1], BLOCK)["stack"].tolist() == [0]


def test_names_are_qualified(pool):
    class Layer:
        def forward(self):
            return pool.take(512)

    def step():
        return Layer().forward()

    pool.record(10)
    block = step()
    here = "test_names_are_qualified"
    assert block.nbytes == 512
    assert names(pool, history(pool)[0])[:3] == [f"{here}.<locals>.Layer.forward", f"{here}.<locals>.step", here]


def test_what_a_refill_takes_shows_who_asked():
    class Growing(Pool):
        def _refill(self, nbytes, queue, home):
            self.adopt(HERE, 2 * MIB, queue, True)
            return self.take(nbytes, queue)

    pool = Growing()
    pool.record(10)
    block = pool.allocate(512)
    here = "test_what_a_refill_takes_shows_who_asked"
    assert block.address == HERE
    for entry in history(pool):
        assert names(pool, entry)[:2] == [f"{here}.<locals>.Growing._refill", here]
    assert np.frombuffer(pool.tables()[0], SEGMENT)["stack"][0] == history(pool)[0]["stack"]


def test_giving_back_is_told_with_the_stack_of_the_taking(pool):
    def take():
        return pool.take(512)

    pool.record(10)
    take().free()
    assert len(set(history(pool)["stack"].tolist())) == 1


def test_lines_of_one_function_are_places_of_their_own(pool):
    pool.record(10)
    line = sys._getframe().f_lineno
    one = pool.take(512)
    two = pool.take(512)
    assert [stack(pool, entry)[0][2] - line for entry in history(pool)] == [1, 2]
    assert one.address != two.address


def test_a_loop_is_kept_once(pool):
    pool.record(10_000)
    pool.take(512)
    places = len(pool.tables()[4])
    for _ in range(1000):
        pool.take(512)
    assert len(pool.tables()[4]) == places + 1


def test_deep_recursion_keeps_the_innermost(pool):
    def recurse(depth):
        return pool.take(512) if depth == 0 else recurse(depth - 1)

    def outer():
        return recurse(10)

    pool.record(10, depth=4)
    assert outer().nbytes == 512
    assert short_names(pool, history(pool)[0]) == ["recurse"] * 4
    pool.record(10, depth=13)
    assert outer().nbytes == 512
    here = "test_deep_recursion_keeps_the_innermost"
    assert short_names(pool, history(pool)[0]) == ["recurse"] * 11 + ["outer", here]


def test_no_depth_is_no_stack(pool):
    pool.record(10, depth=0)
    pool.take(512)
    assert history(pool)["stack"].tolist() == [0, 0, 0]


def test_a_depth_beyond_all_bounds_is_cut(pool):
    def recurse(depth):
        return pool.take(512) if depth == 0 else recurse(depth - 1)

    pool.record(10, depth=1 << 40)
    assert recurse(400).nbytes == 512
    assert len(stack(pool, history(pool)[0])) == 256


def test_a_function_that_is_gone_is_still_named(pool):
    space = {"pool": pool}
    exec(compile("def vanishing():\n\n    return pool.take(512)\n", "gone.py", "exec"), space)
    pool.record(10)
    assert space["vanishing"]().nbytes == 512
    code = weakref.ref(space.pop("vanishing").__code__)
    assert stack(pool, history(pool)[0])[0] == ("gone.py", "vanishing", 3)
    pool.record(0)
    assert code() is None


def test_a_generators_stack_is_that_of_its_caller(pool):
    def blocks():
        while True:
            yield pool.take(512)

    def asks(generator):
        return next(generator)

    generator = blocks()
    pool.record(10)
    assert asks(generator).nbytes == 512
    assert short_names(pool, history(pool)[0])[:2] == ["blocks", "asks"]
