"""The cache of pinned memory, over the fake backend: the test says when a queue is done.

It has so many lines because all of them share one scene.
"""

from __future__ import annotations

import _thread
import gc
import random
import sys
import time
import warnings
from itertools import count
from unittest.mock import MagicMock

import pytest

from forebay.errors import DeviceError, ForebayWarning, Forked, WrongState
from forebay.runtime.pinned import pinned_allocator
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator, PinnedBlock
from forebay.runtime.settings.allocator_settings import DEFAULT, parse
from forebay.testing.fake import FakePort

KIB, MIB = 1 << 10, 1 << 20


class Scene:
    """An allocator, two queues, and settings that can be changed."""

    def __init__(self, settings=""):
        self.port = FakePort()
        self.queues = [self.port.queue(), self.port.queue()]
        self.settings = parse(settings) if settings else DEFAULT
        self.now = 0
        self.allocator = PinnedAllocator("fake:0", self.port, lambda: self.settings, lambda: self.now)

    def take(self, nbytes, *queues):
        block = self.allocator.allocate(nbytes)
        for queue in queues:
            block.used_on(self.queues[queue])
        return block

    def work(self, queue=0):
        """Something that is not done before the test says so."""
        self.queues[queue].call(int)

    def calls(self, name):
        return [call[1:] for call in self.port.calls if call[0] == name]

    def __getitem__(self, name):
        return self.allocator.stats()[name]

    def check(self):
        """Its tables hold, and it has what the port lent, no more and no less."""
        assert self.allocator.broken() is None
        assert self["allocations.current"] == len(self.port._host_memory._taken)


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.check()


# Sizes and reuse


def test_sizes_are_rounded_to_powers_of_two(scene):
    assert [scene.take(n).size for n in (1, 2, 3, 513, MIB, MIB + 1)] == [1, 2, 4, KIB, MIB, 2 * MIB]


def test_the_last_to_come_is_the_first_to_go(scene):
    blocks = [scene.take(5000) for _ in range(3)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        block.free()
    again = [scene.take(4097) for _ in range(3)]
    assert [block.address for block in again] == addresses[::-1]
    assert len(scene.calls("pin")) == 3


def test_nothing_is_split(scene):
    scene.take(8 * KIB).free()
    small = scene.take(4 * KIB)
    assert small.size == 4 * KIB
    assert len(scene.calls("pin")) == 2


def test_large_ones_keep_their_size_and_share_a_bucket():
    scene = Scene("pinned_max_round_threshold_mb:1")
    sizes = (3 * MIB, 3 * MIB + 2 * KIB, 3 * MIB + KIB)
    for block in [scene.take(n) for n in sizes]:
        block.free()
    assert [scene.take(3 * MIB + 1).size for _ in range(2)] == [3 * MIB + KIB] * 2  # each goes back at once
    held = [scene.take(3 * MIB + 1) for _ in range(3)]
    assert [block.size for block in held] == [3 * MIB + KIB, 3 * MIB + 2 * KIB, 3 * MIB + 1]
    scene.check()


def test_too_large_ones_go_back_at_once():
    scene = Scene("pinned_max_cached_size_mb:1")
    kept, gone = scene.take(MIB), scene.take(MIB + 1)
    assert gone.size == MIB + 1
    gone.free()
    kept.free()
    assert len(scene.calls("unpin")) == 1
    assert (scene["allocated_bytes.current"], scene["num_host_free"]) == (MIB, 1)
    scene.check()


def test_a_smaller_limit_holds_for_what_comes_back(scene):
    block = scene.take(4 * MIB)
    scene.settings = parse("pinned_max_cached_size_mb:1")
    assert scene.calls("unpin") == []
    block.free()
    assert len(scene.calls("unpin")) == 1


# The reserved segment


def test_small_ones_are_cut_from_the_reserved_segment():
    scene = Scene("pinned_reserve_segment_size_mb:1")
    first, second, third = (scene.take(n) for n in (1, 5000, 300))
    assert [block.address - first.address for block in (second, third)] == [4 * KIB, 12 * KIB]
    large = scene.take(MIB)  # no room is left for it
    assert scene.calls("pin") == [(MIB,), (MIB,)]
    assert (scene["num_host_alloc"], scene["host_alloc_time.count"]) == (4, 2)
    for block in (first, second, third, large):
        block.free()
    scene.allocator.empty()
    assert scene.calls("unpin") == [(scene.calls("unpin")[0][0],)]  # the segment stays
    assert (scene["allocations.current"], scene["num_host_free"], scene["host_free_time.count"]) == (0, 4, 1)
    assert scene.allocator.broken() is None
    assert scene.take(1).address == min(scene.port._host_memory._taken)


def test_there_is_no_reserved_segment_later(scene):
    scene.take(1)
    scene.settings = parse("pinned_reserve_segment_size_mb:1")
    scene.take(1000)
    scene.take(2000)
    assert scene.calls("pin") == [(1,), (KIB,), (2 * KIB,)]


def test_a_reserved_segment_that_cannot_be_had_is_tried_again():
    scene = Scene("pinned_reserve_segment_size_mb:1")
    scene.port.fail("pin")
    with pytest.raises(DeviceError):
        scene.take(1)
    assert scene.take(1).size == 1
    assert scene.calls("pin") == [(MIB,), (MIB,)]


# Queues


def test_it_waits_for_each_queue_that_used_it(scene):
    block = scene.take(KIB, 0, 1)
    address = block.address
    scene.work(0)
    scene.work(1)
    block.free()
    others = []
    for done in (None, 0, 1):
        if done is not None:
            scene.queues[done].finish()
        others.append(scene.take(KIB))
    assert [other.address == address for other in others] == [False, False, True]


def test_what_was_queued_later_does_not_count(scene):
    scene.work()
    block = scene.take(KIB, 0)
    block.free()
    scene.work()
    scene.queues[0].finish(1)
    assert scene.take(KIB).size == KIB
    assert len(scene.calls("pin")) == 1


def test_there_is_one_line_for_all_queues(scene):
    """As in PyTorch: who waits keeps those behind waiting, though their own queue is done."""
    scene.work(0)
    for queue in (0, 1):
        scene.take(KIB << queue, queue).free()
    scene.queues[1].finish()
    scene.take(1).free()
    assert scene["active_requests.current"] == 2
    scene.queues[0].finish()
    scene.take(1).free()
    assert scene["active_requests.current"] == 0


def test_a_use_ends_with_the_loan(scene):
    scene.take(KIB, 0).free()
    scene.queues[0].finish()
    block = scene.take(KIB)
    scene.work()
    block.free()
    assert scene["active_requests.current"] == 0


def test_a_closed_queue_is_not_waited_for(scene):
    block = scene.take(KIB, 0)
    scene.queues[0].close()
    block.free()
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


def test_a_queue_that_cannot_be_asked_is_asked_again(scene):
    scene.work()
    block = scene.take(KIB, 0)
    scene.port.fail("signal")
    with pytest.raises(DeviceError):
        block.free()
    assert block.freed
    assert scene["active_requests.current"] == 1
    scene.take(1)
    scene.queues[0].finish()
    scene.take(1)
    assert scene["active_requests.current"] == 0
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


def test_emptying_does_not_wait(scene):
    scene.work()
    scene.take(KIB, 0).free()
    scene.take(2 * KIB).free()
    scene.allocator.empty()
    assert scene["allocated_bytes.current"] == KIB


# Bad input and failures


@pytest.mark.parametrize("nbytes", [0, -1, -(1 << 70)])
def test_less_than_a_byte(scene, nbytes):
    with pytest.raises(ValueError, match="cannot pin"):
        scene.take(nbytes)


@pytest.mark.parametrize("nbytes", [(1 << 63) + 1, 1 << 100])
def test_more_than_there_is(scene, nbytes):
    with pytest.raises((ValueError, DeviceError, MemoryError)):
        scene.take(nbytes)


def test_twice_is_once(scene):
    block = scene.take(KIB)
    block.free()
    block.free()
    assert block.freed
    for use in ("address", "size", "used_on"):
        with pytest.raises(ValueError, match="given back already"):
            getattr(block, use)(scene.queues[0])
    del block
    assert scene["active_requests.freed"] == 1


def test_what_is_cached_goes_before_the_system_refuses(scene):
    scene.take(KIB).free()
    scene.port.fail("pin")
    assert scene.take(MIB).size == MIB
    assert scene["num_host_free"] == 1
    scene.port.fail("pin")
    with pytest.raises(DeviceError):
        scene.take(4 * KIB)


def test_memory_that_the_system_does_not_take_back_is_kept(scene):
    scene.take(KIB).free()
    scene.take(2 * KIB).free()
    scene.port.fail("unpin")
    with pytest.raises(DeviceError):
        scene.allocator.empty()
    scene.check()
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


def test_a_destructor_only_warns(scene):
    scene.settings = parse("pinned_max_cached_size_mb:1")
    block = scene.take(2 * MIB)
    scene.port.fail("unpin")
    with pytest.warns(ForebayWarning, match="could not be given back"):
        del block
    assert scene["active_requests.current"] == 0
    assert scene["allocations.current"] == 1


@pytest.mark.parametrize("call", range(1, 40))
def test_a_failure_anywhere_loses_nothing(call):
    scene = Scene("pinned_max_cached_size_mb:1,pinned_max_round_threshold_mb:1,pinned_reserve_segment_size_mb:1")
    scene.port.fail_call(call)
    draw, held = random.Random(call), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForebayWarning)
        for _ in range(30):
            try:
                held.append(
                    scene.take(draw.choice((100, KIB, 200 * KIB, MIB, 3 * MIB)), *draw.choice(((), (0,), (0, 1))))
                )
                scene.work(draw.randrange(2))
                if draw.random() < 0.6:
                    held.pop(draw.randrange(len(held))).free()
                if draw.random() < 0.2:
                    scene.allocator.empty()
                    scene.queues[draw.randrange(2)].finish()
            except (DeviceError, WrongState):
                pass
            assert scene.allocator.broken() is None
        held.clear()
        scene.port.finish_all()
        scene.allocator.empty()
    assert scene["allocations.current"] == 0
    assert len(scene.port._host_memory._taken) <= 1  # the reserved segment


# Interruptions


class Interrupt(BaseException):
    pass


def interrupted(call, at):
    """Make the call, with an exception before its n-th line, as from a signal handler. In which functions that was."""
    lines, where = 0, []

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(("pinned_allocator.py", "pinned_tables.py", "pinned_steps.py")):
            return None
        if event == "line":
            lines += 1
            if lines == at:
                while frame.f_code.co_name != "interrupted":
                    where.append(frame.f_code.co_name)
                    frame = frame.f_back
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        assert where
    finally:
        sys.settrace(before)
    return where


@pytest.fixture
def no_garbage():
    """Nothing is collected meanwhile: a destructor's failure is kept, and with it what its callers hold."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("what", ["new", "reused", "returned", "waiting", "dropped", "too large", "emptied"])
def test_nothing_is_lost_to_an_interruption_anywhere(what):
    """But, perhaps, the one piece that the system was being asked about at that moment."""
    for at in count(1):
        scene = Scene("pinned_max_cached_size_mb:2")
        held = [scene.take(4 * MIB if what == "too large" else KIB, *([0] if what == "waiting" else []))]
        if what in ("reused", "emptied"):
            held.pop().free()
        where = interrupted(
            {
                "new": lambda: held.append(scene.take(MIB)),  # noqa: B023 -- called before the next turn
                "reused": lambda: held.append(scene.take(KIB)),  # noqa: B023
                "dropped": held.clear,
                "emptied": scene.allocator.empty,
            }.get(what, lambda: held[0].free()),  # noqa: B023, PLW0108 -- not bound: it would keep the block
            at,
        )
        assert scene.allocator.broken() is None
        held.clear()
        scene.allocator.process()
        scene.port.finish_all()
        scene.allocator.empty()
        assert scene.allocator.broken() is None
        if where[:1] == ["__del__"]:  # at its very beginning Python itself loses objects to a signal
            continue
        assert scene["active_requests.current"] == 0, (at, where)
        left = scene["allocations.current"], len(scene.port._host_memory._taken)
        assert left == (0, 0) or (max(left) == 1 and {"_pin_block", "_unpin"} & set(where)), (at, where)
        if not where:
            break
    assert at > 10


def test_a_destructor_may_come_in_anywhere(scene):
    """Garbage that holds pinned memory, collected in the midst of everything."""
    threshold = gc.get_threshold()
    gc.set_threshold(3)
    try:
        held = []
        for turn in range(300):
            loop = [scene.take(turn % 900 + 1, *([0] if turn % 3 else []))]
            loop.append(loop)
            held.append(scene.take(700))
            if turn % 7 == 0:
                held.clear()
                scene.port.finish_all()
            if turn % 50 == 0:
                scene.allocator.empty()
    finally:
        gc.set_threshold(*threshold)
    held.clear()
    del loop
    gc.collect()
    scene.port.finish_all()
    scene.allocator.process()
    assert scene["active_requests.current"] == 0


def test_many_threads(scene, eight_threads):
    def go(seed):
        draw, held = random.Random(seed), []
        for _ in range(300):
            block = scene.take(draw.choice((1, 100, KIB, 5000)), *draw.choice(((), (0,), (0, 1))))
            assert all(block.address != other.address for other in held)
            held.append(block)
            if draw.random() < 0.7:
                held.pop(draw.randrange(len(held)))
            if draw.random() < 0.05:
                scene.port.finish_all()
                scene.allocator.empty()
            if draw.random() < 0.05:
                scene.allocator.reset_peaks()

    eight_threads(go)
    scene.check()
    scene.port.finish_all()
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


# What is counted


def test_all_keys(scene):
    moves = ("allocated", "current", "freed", "peak")
    metrics = ("active_bytes", "active_requests", "allocated_bytes", "allocations")
    times = [
        f"{name}.{key}"
        for name in ("host_alloc_time", "host_free_time")
        for key in ("avg", "count", "max", "min", "total")
    ]
    expected = [f"{name}.{move}" for name in metrics for move in moves] + times + ["num_host_alloc", "num_host_free"]
    assert list(scene.allocator.stats()) == expected
    assert set(scene.allocator.stats().values()) == {0}
    assert list(scene.allocator.stats_as_nested_dict()) == [
        "num_host_alloc", "num_host_free", "allocations", "active_requests", "allocated_bytes", "active_bytes",
        "host_alloc_time", "host_free_time",
    ]  # fmt: skip


def test_times_are_microseconds(scene, monkeypatch):
    pin = scene.port.pin

    def slow(nbytes):
        scene.now += nbytes * 1000 + 999
        return pin(nbytes)

    monkeypatch.setattr(scene.port, "pin", slow)
    held = [scene.take(n) for n in (4, 8, 2)]
    times = scene.allocator.stats_as_nested_dict()["host_alloc_time"]
    assert times == {"total": 14, "max": 8, "min": 2, "count": 3, "avg": 4}
    scene.allocator.reset_accumulated()
    times = scene.allocator.stats_as_nested_dict()["host_alloc_time"]
    assert times == {"total": 0, "max": 8, "min": 2, "count": 0, "avg": 0}
    scene.allocator.reset_peaks()
    assert scene["host_alloc_time.max"] == scene["host_alloc_time.min"] == 0
    del held


def test_peaks_of_what_is_in_use_are_those_of_its_buckets(scene):
    scene.take(KIB).free()
    scene.take(2 * KIB).free()
    assert (scene["active_bytes.peak"], scene["active_requests.peak"]) == (3 * KIB, 2)  # never at the same time
    assert scene["allocated_bytes.peak"] == 3 * KIB


# The history


@pytest.fixture
def told(scene):
    def show():
        entries = scene.allocator.history.traces()
        return [(entry["action"], entry["size"], [f["name"] for f in entry.get("frames", [])][:1]) for entry in entries]

    return show


def test_history(scene, told):
    assert scene.allocator.segments() == []
    early = scene.take(1)
    scene.allocator.history.start("all", "all", 100)
    scene.work()
    scene.take(KIB, 0).free()
    by = ["Scene.take"]
    here = ["test_history"]
    assert told() == [("segment_alloc", KIB, by), ("alloc", KIB, by), ("free_requested", KIB, here)]
    states = [[block["state"] for block in row["blocks"]] for row in scene.allocator.segments()]
    assert states == [["active_allocated"], ["active_pending_free"]]
    scene.queues[0].finish()
    early.free()
    scene.allocator.empty()
    assert told()[3:] == [
        ("free_requested", 1, here),
        ("free_completed", 1, here),
        ("free_completed", KIB, by),  # where it was allocated: nobody frees it here
        ("segment_free", 1, []),
        ("segment_free", KIB, []),
    ]
    assert scene.allocator.segments() == []


def test_a_segment_is_what_pytorch_shows(scene):
    scene.allocator.history.start("all", None, 100)
    block = scene.take(1000)
    assert scene.allocator.segments() == [
        {
            "device": -1, "address": block.address, "total_size": 1024, "allocated_size": 1024, "active_size": 1024,
            "requested_size": 1024, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": [],
            "blocks": [{"address": block.address, "size": 1024, "requested_size": 1024,
                        "state": "active_allocated", "frames": []}],
        }
    ]  # fmt: skip
    entry = scene.allocator.history.traces()[0]
    assert abs(entry.pop("time_us") - time.time() * 1e6) < 60e6
    assert entry == {
        "action": "segment_alloc", "addr": block.address, "size": 1024, "stream": 0, "compile_context": "",
        "user_metadata": "", "pool_id": (0, 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("context", "entries", "frees"), [(None, 0, 0), ("state", 0, 0), ("alloc", 1, 1), ("all", 1, 1)]
)
def test_contexts(scene, context, entries, frees):
    scene.allocator.history.start("all", context, 100)
    block = scene.take(8)
    shown = scene.allocator.segments()[0]["frames"]
    assert bool(shown) == (context is not None)
    block.free()
    traces = scene.allocator.history.traces()
    assert ["frames" in entry for entry in traces] == [bool(entries)] * 2 + [bool(frees)] * 2
    names = [entry["frames"][0]["name"] for entry in traces if "frames" in entry]
    assert set(names) <= {"Scene.take", "test_contexts"}
    assert ("test_contexts" in names) == (context == "all")
    assert scene.allocator.segments()[0]["frames"] == []


def test_the_ring_and_its_end(scene, told):
    history = scene.allocator.history
    history.start("all", None, 3)
    scene.take(2).free()
    assert [action for action, *_ in told()] == ["alloc", "free_requested", "free_completed"]
    history.start(None, "all", 3)
    assert told() == []
    scene.take(2)
    history.start("all", None, 9)
    assert len(told()) == 3  # they are still there
    history.start("state", None, 9)
    assert len(told()) == 1
    history.start("all", None, 0, clear_history=True)
    assert told() == []
    scene.take(2)
    assert len(told()) == 1


# A thread that looks after what waits


def until(holds, seconds=30.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(1e-4)


@pytest.fixture
def polled():
    made = Scene("pinned_use_background_threads:True")
    yield made
    made.allocator.close()
    made.check()
    assert not made.allocator._poller.running


def test_blocks_come_back_by_themselves(polled):
    polled.work()
    block = polled.take(KIB, 0)
    block.free()
    polled.queues[0].finish()
    until(lambda: polled["active_requests.current"] == 0)
    assert polled.take(KIB).size == KIB
    assert len(polled.calls("pin")) == 1


def test_the_thread_starts_when_something_is_pinned(scene):
    scene.take(KIB).free()
    scene.settings = parse("pinned_use_background_threads:True")
    scene.work()
    scene.take(KIB, 0).free()
    assert not scene.allocator._poller.running
    scene.queues[0].finish()
    scene.take(2)
    until(lambda: scene["active_requests.current"] == 0)
    scene.allocator.close()


def test_the_thread_ends_with_its_allocator():
    scene = Scene("pinned_use_background_threads:True")
    before = _thread._count()
    scene.take(1)
    until(lambda: _thread._count() == before + 1)
    del scene
    gc.collect()
    until(lambda: _thread._count() == before)


def test_without_a_thread_allocations_look_for_themselves(scene, monkeypatch):
    monkeypatch.setattr("_thread.start_new_thread", MagicMock(side_effect=RuntimeError))
    scene.settings = parse("pinned_use_background_threads:True")
    scene.take(KIB, 0).free()
    scene.queues[0].finish()
    scene.take(1)
    assert scene["active_requests.current"] == 0


def test_the_thread_complains_and_goes_on(polled, monkeypatch):
    told = []
    monkeypatch.setattr("forebay.runtime.pinned.poller.complain", told.append)
    polled.settings = parse("pinned_use_background_threads:True,pinned_max_cached_size_mb:1")
    blocks = [polled.take(2 * MIB, 0) for _ in range(2)]
    polled.work()
    for block in blocks:
        block.free()
    polled.port.fail("unpin")
    polled.queues[0].finish()
    until(lambda: polled["active_requests.current"] == 0 and told)
    polled.allocator.empty()
    assert polled["allocations.current"] == 0


# The end


def test_after_the_queues_were_closed_nothing_that_they_used_is_touched(scene):
    used, waiting, unused = scene.take(KIB, 0), scene.take(2 * KIB, 0), scene.take(4 * KIB)
    scene.work()
    waiting.free()
    scene.allocator.close()
    used.free()
    unused.free()
    scene.allocator.empty()
    assert scene["allocated_bytes.current"] == 3 * KIB


def test_a_forked_child_leaves_all_as_it_is(scene):
    block = scene.take(KIB)
    scene.allocator.abandon()
    calls = list(scene.port.calls)
    with pytest.raises(Forked):
        scene.take(1)
    del block
    scene.allocator.empty()
    assert scene.port.calls == calls


def test_a_block_is_made_by_its_allocator_only(scene):
    assert type(scene.take(1)) is PinnedBlock
    assert pinned_allocator.__all__ == ["PinnedAllocator", "PinnedBlock"]
