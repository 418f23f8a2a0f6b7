"""Memory history of a pool: entries, capacity of the ring, and call stacks."""

from __future__ import annotations

import sys
import time
import weakref

import numpy as np
import pytest

from forebay._core import Pool
from forebay.records.model import BLOCK, ENTRY, SEGMENT, Action

MIB = 1 << 20
BASE = 64 * MIB


@pytest.fixture
def pool() -> Pool:
    """A pool with one segment of the small class, for queue 0."""
    pool = Pool()
    pool.adopt(BASE, 2 * MIB, 0, small=True)
    return pool


def history(pool):
    return np.frombuffer(pool.tables()[2], ENTRY)


def blocks(pool):
    return np.frombuffer(pool.tables()[1], BLOCK)


def actions(pool):
    columns = history(pool)[["action", "address", "nbytes", "queue"]]
    return [(Action(action), *rest) for action, *rest in columns.tolist()]


def stack(pool, entry):
    """Return the stack of an entry as (file, name, line) tuples, innermost first."""
    nodes, number, found = pool.tables()[4], int(entry["stack"]), []
    while number:
        parent, *frame = nodes[number - 1]
        found.append(tuple(frame))
        number = parent
    return found


def names(pool, entry):
    return [name for _, name, _ in stack(pool, entry)]


def short_names(pool, entry):
    return [name.rpartition(".")[2] for name in names(pool, entry)]


# Entries


def test_nothing_is_recorded_by_default(pool):
    pool.try_allocate(512).free()
    assert not pool.recording
    assert actions(pool) == []


def test_actions_are_recorded_in_order(pool):
    pool.record_history(100)
    pool.adopt(BASE + 2 * MIB, 20 * MIB, 3, small=False)
    block = pool.try_allocate(5 * MIB, 3)
    block.record_stream(0)
    block.free()
    pool.complete_free(pool.deferred()[0][0])
    pool.evict(BASE + 2 * MIB)
    pool.record_oom(1 << 40, 3, 4096)
    segment = (BASE + 2 * MIB, 20 * MIB, 3)
    requested = (BASE + 2 * MIB, 5 * MIB, 3)
    assert actions(pool) == [
        (Action.RESERVE, *segment),
        (Action.ALLOC, *requested),
        (Action.FREE_REQUESTED, *requested),
        (Action.FREE_COMPLETED, *requested),
        (Action.RELEASE, *segment),
        (Action.OOM, 4096, 1 << 40, 3),  # the address is the device's free bytes
    ]


def test_entries_have_the_requested_size(pool):
    pool.record_history(10)
    pool.try_allocate(1).free()
    assert history(pool)["nbytes"].tolist() == [1, 1, 1]


def test_failed_allocation_is_not_recorded(pool):
    pool.record_history(10)
    assert pool.try_allocate(3 * MIB) is None
    assert actions(pool) == []


def test_times_are_increasing_unix_times(pool):
    pool.record_history(10)
    before = time.time_ns()
    pool.try_allocate(512).free()
    after = time.time_ns()
    times = history(pool)["time_ns"].tolist()
    assert [before, *times, after] == sorted([before, *times, after])


@pytest.mark.parametrize("capacity", [1, 7, 1 << 14, (1 << 14) + 1, 50_000])
def test_ring_keeps_the_newest_entries(pool, capacity):
    pool.record_history(capacity, depth=0)
    for nbytes in range(1, 20_001):
        pool.try_allocate(nbytes)  # freed immediately: three entries
    expected = [nbytes for nbytes in range(1, 20_001) for _ in range(3)][-capacity:]
    assert history(pool)["nbytes"].tolist() == expected
    assert pool.tables()[3] == max(60_000 - capacity, 0)


def test_stopping_clears_the_history(pool):
    pool.record_history(10)
    block = pool.try_allocate(512)
    pool.record_history(0)
    assert not pool.recording
    assert pool.tables()[2:4] == (b"", 0)
    block.free()
    assert actions(pool) == []


@pytest.mark.parametrize("entries", [0, 10], ids=["stopped", "cleared"])
def test_live_blocks_keep_their_stacks_and_unused_stacks_are_dropped(pool, entries):
    pool.record_history(10)
    held = [pool.try_allocate(512) for _ in range(3)]
    here = names(pool, history(pool)[-1])
    unused = [pool.try_allocate(512) for _ in range(3)]
    unused.clear()
    nodes = len(pool.tables()[4])
    for _ in range(2):
        pool.record_history(entries)
        assert [names(pool, block) for block in blocks(pool)] == [here, here, here, []]
        assert len(pool.tables()[4]) < nodes
    held.clear()
    pool.record_history(entries)
    assert pool.tables()[4] == []


def test_stack_numbers_of_an_earlier_recording_are_ignored(pool):
    pool.adopt(BASE + 2 * MIB, 20 * MIB, 3, small=False)
    pool.record_history(10, frees=True)
    number = pool.caller_stack(frees=True)
    pool.record_history(10)
    assert pool.evict(BASE + 2 * MIB, number)
    assert history(pool)["stack"].tolist() == [0]


def test_recording_again_starts_a_new_history(pool):
    pool.record_history(10)
    block = pool.try_allocate(512)
    pool.record_history(10)
    block.free()
    assert [(action, nbytes) for action, _, nbytes, _ in actions(pool)] == [
        (Action.FREE_REQUESTED, 512),
        (Action.FREE_COMPLETED, 512),
    ]
    here = "test_recording_again_starts_a_new_history"
    assert [names(pool, entry)[0] for entry in history(pool)] == [here, here]  # the stack of the allocation


# Call stacks


def test_innermost_frame_is_the_caller(pool):
    pool.record_history(10)
    line = sys._getframe().f_lineno + 1
    block = pool.try_allocate(512)
    [entry] = history(pool)
    assert stack(pool, entry)[0] == (__file__, "test_innermost_frame_is_the_caller", line)
    assert np.frombuffer(pool.tables()[1], BLOCK)["stack"][0] == entry["stack"]
    block.free()
    assert np.frombuffer(pool.tables()[1], BLOCK)["stack"].tolist() == [0]


def test_function_names_are_qualified(pool):
    class Layer:
        def forward(self):
            return pool.try_allocate(512)

    def step():
        return Layer().forward()

    pool.record_history(10)
    block = step()
    here = "test_function_names_are_qualified"
    assert block.nbytes == 512
    assert names(pool, history(pool)[0])[:3] == [f"{here}.<locals>.Layer.forward", f"{here}.<locals>.step", here]


def test_stack_of_refill_includes_the_caller():
    class Growing(Pool):
        def _refill(self, nbytes, queue, pool_number):
            self.adopt(BASE, MIB, queue, True)
            return self.try_allocate(nbytes, queue)

    pool = Growing()
    pool.record_history(10)
    block = pool.allocate(MIB)
    here = "test_stack_of_refill_includes_the_caller"
    assert block.address == BASE
    for entry in history(pool):
        assert names(pool, entry)[:2] == [f"{here}.<locals>.Growing._refill", here]
    assert np.frombuffer(pool.tables()[0], SEGMENT)["stack"][0] == history(pool)[0]["stack"]


def test_free_has_the_stack_of_the_allocation(pool):
    def allocate():
        return pool.try_allocate(512)

    pool.record_history(10)
    allocate().free()
    assert len(set(history(pool)["stack"].tolist())) == 1


def test_released_memory_has_the_stack_of_its_caller(pool):
    pool.record_history(10)
    block = pool.try_allocate(512)
    block.record_stream(1)
    block.free()
    number = pool.caller_stack(frees=False)
    assert pool.complete_free(pool.deferred()[0][0], number)
    assert pool.evict(BASE, number)
    here = "test_released_memory_has_the_stack_of_its_caller"
    lines = [stack(pool, entry)[0] for entry in history(pool)]
    assert {name for _, name, _ in lines} == {here}
    assert [line - lines[0][2] for *_, line in lines] == [0, 0, 3, 3]


def test_frees_without_own_stacks_have_none_of_the_caller(pool):
    pool.record_history(10)
    assert pool.caller_stack(frees=True) == 0
    pool.record_history(10, frees=True)
    assert pool.caller_stack(frees=True) != 0
    pool.record_history(0)
    assert pool.caller_stack(frees=False) == 0


@pytest.mark.parametrize(("nbytes", "has_stack"), [(4 * MIB, True), (2 * MIB, False)])
def test_segment_has_a_stack_until_its_first_block_is_split(pool, nbytes, has_stack):
    pool.record_history(10)
    pool.adopt(BASE + 2 * MIB, 4 * MIB, 3, small=False)
    assert np.frombuffer(pool.tables()[0], SEGMENT)["stack"].tolist() == [0, history(pool)[0]["stack"]]
    block = pool.try_allocate(nbytes, 3)
    assert bool(np.frombuffer(pool.tables()[0], SEGMENT)["stack"][1]) == has_stack
    block.free()
    pool.evict(BASE + 2 * MIB)
    assert bool(history(pool)["stack"][-1]) == has_stack


def test_lines_of_one_function_are_distinguished(pool):
    pool.record_history(10)
    line = sys._getframe().f_lineno
    one = pool.try_allocate(512)
    two = pool.try_allocate(512)
    assert [stack(pool, entry)[0][2] - line for entry in history(pool)] == [1, 2]
    assert one.address != two.address


def test_equal_stacks_are_stored_once(pool):
    pool.record_history(10_000)
    pool.try_allocate(512)
    nodes = len(pool.tables()[4])
    for _ in range(1000):
        pool.try_allocate(512)
    assert len(pool.tables()[4]) == nodes + 1


def test_depth_limits_the_stack_to_innermost_frames(pool):
    def recurse(depth):
        return pool.try_allocate(512) if depth == 0 else recurse(depth - 1)

    def outer():
        return recurse(10)

    pool.record_history(10, depth=4)
    assert outer().nbytes == 512
    assert short_names(pool, history(pool)[0]) == ["recurse"] * 4
    pool.record_history(10, depth=13)
    assert outer().nbytes == 512
    here = "test_depth_limits_the_stack_to_innermost_frames"
    assert short_names(pool, history(pool)[0]) == ["recurse"] * 11 + ["outer", here]


def test_depth_zero_records_no_stack(pool):
    pool.record_history(10, depth=0)
    pool.try_allocate(512)
    assert history(pool)["stack"].tolist() == [0, 0, 0]


def test_depth_is_limited_to_256(pool):
    def recurse(depth):
        return pool.try_allocate(512) if depth == 0 else recurse(depth - 1)

    pool.record_history(10, depth=1 << 40)
    assert recurse(400).nbytes == 512
    assert len(stack(pool, history(pool)[0])) == 256


def test_deleted_function_is_still_named(pool):
    space = {"pool": pool}
    exec(compile("def temporary():\n\n    return pool.try_allocate(512)\n", "deleted.py", "exec"), space)
    pool.record_history(10)
    assert space["temporary"]().nbytes == 512
    code = weakref.ref(space.pop("temporary").__code__)
    assert stack(pool, history(pool)[0])[0] == ("deleted.py", "temporary", 3)
    pool.record_history(0)
    assert code() is None


def test_stack_of_generator_includes_its_caller(pool):
    def blocks():
        while True:
            yield pool.try_allocate(512)

    def advance(generator):
        return next(generator)

    generator = blocks()
    pool.record_history(10)
    assert advance(generator).nbytes == 512
    assert short_names(pool, history(pool)[0])[:2] == ["blocks", "advance"]
