"""Pinned allocator over the fake backend, whose queues complete work only when a test says so."""

from __future__ import annotations

import _thread
import gc
import random
import sys
import threading
import time
import warnings
from itertools import count
from unittest.mock import MagicMock

import pytest

from forebay.errors import DeviceError, ForebayWarning, Forked, WrongState
from forebay.runtime.pinned import pinned_allocator
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator, PinnedBlock
from forebay.runtime.settings.allocator_settings import DEFAULT
from forebay.runtime.settings.configuration import parse
from forebay.testing.fake import FakePort

KIB, MIB = 1 << 10, 1 << 20


class Scene:
    """An allocator, two queues, and settings that a test can change."""

    def __init__(self, settings=""):
        self.port = FakePort()
        self.queues = [self.port.queue(), self.port.queue()]
        self.settings = parse(settings) if settings else DEFAULT
        self.now = 0
        self.allocator = PinnedAllocator("fake:0", self.port, lambda: self.settings, lambda: self.now)

    def allocate(self, nbytes, *queues):
        block = self.allocator.allocate(nbytes)
        for queue in queues:
            block.record_stream(self.queues[queue])
        return block

    def queue_work(self, queue=0):
        """Queue work that completes when the test finishes the queue."""
        self.queues[queue].call(int)

    def calls(self, name):
        return [call[1:] for call in self.port.calls if call[0] == name]

    def __getitem__(self, name):
        return self.allocator.stats()[name]

    def check(self):
        """Check the invariants, and that the allocator owns exactly the memory that the port has pinned."""
        assert self.allocator.check_invariants() is None
        assert self["allocations.current"] == len(self.port._host_memory._taken)


@pytest.fixture
def scene():
    scene = Scene()
    yield scene
    scene.check()


# Sizes and reuse


def test_sizes_are_rounded_to_powers_of_two(scene):
    assert [scene.allocate(n).size for n in (1, 2, 3, 513, MIB, MIB + 1)] == [1, 2, 4, KIB, MIB, 2 * MIB]


def test_most_recently_freed_block_is_reused_first(scene):
    blocks = [scene.allocate(5000) for _ in range(3)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        block.free()
    again = [scene.allocate(4097) for _ in range(3)]
    assert [block.address for block in again] == addresses[::-1]
    assert len(scene.calls("pin")) == 3


def test_blocks_are_not_split(scene):
    scene.allocate(8 * KIB).free()
    small = scene.allocate(4 * KIB)
    assert small.size == 4 * KIB
    assert len(scene.calls("pin")) == 2


def test_unrounded_blocks_share_a_bucket():
    scene = Scene("pinned_max_round_threshold_mb:1")
    sizes = (3 * MIB, 3 * MIB + 2 * KIB, 3 * MIB + KIB)
    for block in [scene.allocate(n) for n in sizes]:
        block.free()
    assert [scene.allocate(3 * MIB + 1).size for _ in range(2)] == [3 * MIB + KIB] * 2  # each is freed at once
    held = [scene.allocate(3 * MIB + 1) for _ in range(3)]
    assert [block.size for block in held] == [3 * MIB + KIB, 3 * MIB + 2 * KIB, 3 * MIB + 1]
    scene.check()


def test_blocks_above_max_cached_size_are_unpinned_at_once():
    scene = Scene("pinned_max_cached_size_mb:1")
    cached, large = scene.allocate(MIB), scene.allocate(MIB + 1)
    assert large.size == MIB + 1
    large.free()
    cached.free()
    assert len(scene.calls("unpin")) == 1
    assert (scene["allocated_bytes.current"], scene["num_host_free"]) == (MIB, 1)
    scene.check()


def test_lowered_max_cached_size_applies_to_later_frees(scene):
    block = scene.allocate(4 * MIB)
    scene.settings = parse("pinned_max_cached_size_mb:1")
    assert scene.calls("unpin") == []
    block.free()
    assert len(scene.calls("unpin")) == 1


# The reserved segment


def test_small_blocks_are_allocated_from_reserved_segment():
    scene = Scene("pinned_reserve_segment_size_mb:1")
    first, second, third = (scene.allocate(n) for n in (1, 5000, 300))
    assert [block.address - first.address for block in (second, third)] == [4 * KIB, 12 * KIB]
    large = scene.allocate(MIB)  # does not fit in the rest of the segment
    assert scene.calls("pin") == [(MIB,), (MIB,)]
    assert (scene["num_host_alloc"], scene["host_alloc_time.count"]) == (4, 2)
    for block in (first, second, third, large):
        block.free()
    scene.allocator.empty()
    assert scene.calls("unpin") == [(scene.calls("unpin")[0][0],)]  # the segment stays
    assert (scene["allocations.current"], scene["num_host_free"], scene["host_free_time.count"]) == (0, 4, 1)
    assert scene.allocator.check_invariants() is None
    assert scene.allocate(1).address == min(scene.port._host_memory._taken)


def test_reserved_segment_is_only_made_at_first_allocation(scene):
    scene.allocate(1)
    scene.settings = parse("pinned_reserve_segment_size_mb:1")
    scene.allocate(1000)
    scene.allocate(2000)
    assert scene.calls("pin") == [(1,), (KIB,), (2 * KIB,)]


def test_failed_reserved_segment_is_retried():
    scene = Scene("pinned_reserve_segment_size_mb:1")
    scene.port.fail("pin")
    with pytest.raises(DeviceError):
        scene.allocate(1)
    assert scene.allocate(1).size == 1
    assert scene.calls("pin") == [(MIB,), (MIB,)]


# Use by queues


def test_block_waits_for_each_queue_that_used_it(scene):
    block = scene.allocate(KIB, 0, 1)
    address = block.address
    scene.queue_work(0)
    scene.queue_work(1)
    block.free()
    others = []
    for done in (None, 0, 1):
        if done is not None:
            scene.queues[done].finish()
        others.append(scene.allocate(KIB))
    assert [other.address == address for other in others] == [False, False, True]


def test_work_queued_after_free_does_not_delay_reuse(scene):
    scene.queue_work()
    block = scene.allocate(KIB, 0)
    block.free()
    scene.queue_work()
    scene.queues[0].finish(1)
    assert scene.allocate(KIB).size == KIB
    assert len(scene.calls("pin")) == 1


def test_pending_frees_complete_in_order_across_queues(scene):
    """A pending free also delays later frees whose own queue is done."""
    scene.queue_work(0)
    for queue in (0, 1):
        scene.allocate(KIB << queue, queue).free()
    scene.queues[1].finish()
    scene.allocate(1).free()
    assert scene["active_requests.current"] == 2
    scene.queues[0].finish()
    scene.allocate(1).free()
    assert scene["active_requests.current"] == 0


def test_reused_block_does_not_wait_for_earlier_users(scene):
    scene.allocate(KIB, 0).free()
    scene.queues[0].finish()
    block = scene.allocate(KIB)
    scene.queue_work()
    block.free()
    assert scene["active_requests.current"] == 0


def test_free_does_not_wait_for_closed_queue(scene):
    block = scene.allocate(KIB, 0)
    scene.queues[0].close()
    block.free()
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


def test_failed_signal_is_retried(scene):
    scene.queue_work()
    block = scene.allocate(KIB, 0)
    scene.port.fail("signal")
    with pytest.raises(DeviceError):
        block.free()
    assert block.freed
    assert scene["active_requests.current"] == 1
    scene.allocate(1)
    scene.queues[0].finish()
    scene.allocate(1)
    assert scene["active_requests.current"] == 0
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


def test_empty_does_not_wait_for_pending_frees(scene):
    scene.queue_work()
    scene.allocate(KIB, 0).free()
    scene.allocate(2 * KIB).free()
    scene.allocator.empty()
    assert scene["allocated_bytes.current"] == KIB


# Invalid arguments and failures


@pytest.mark.parametrize("nbytes", [0, -1, -(1 << 70)])
def test_allocate_below_one_byte_raises(scene, nbytes):
    with pytest.raises(ValueError, match="cannot pin"):
        scene.allocate(nbytes)


@pytest.mark.parametrize("nbytes", [(1 << 63) + 1, 1 << 100])
def test_allocate_beyond_memory_raises(scene, nbytes):
    with pytest.raises((ValueError, DeviceError, MemoryError)):
        scene.allocate(nbytes)


def test_free_is_idempotent(scene):
    block = scene.allocate(KIB)
    block.free()
    block.free()
    assert block.freed
    for use in ("address", "size", "record_stream"):
        with pytest.raises(ValueError, match="freed already"):
            getattr(block, use)(scene.queues[0])
    del block
    assert scene["active_requests.freed"] == 1


def test_failed_pin_is_retried_after_emptying_cache(scene):
    scene.allocate(KIB).free()
    scene.port.fail("pin")
    assert scene.allocate(MIB).size == MIB
    assert scene["num_host_free"] == 1
    scene.port.fail("pin")
    with pytest.raises(DeviceError):
        scene.allocate(4 * KIB)


def test_failed_unpin_keeps_block_cached(scene):
    scene.allocate(KIB).free()
    scene.allocate(2 * KIB).free()
    scene.port.fail("unpin")
    with pytest.raises(DeviceError):
        scene.allocator.empty()
    scene.check()
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


def test_destructor_warns_instead_of_raising(scene):
    scene.settings = parse("pinned_max_cached_size_mb:1")
    block = scene.allocate(2 * MIB)
    scene.port.fail("unpin")
    with pytest.warns(ForebayWarning, match="could not be freed"):
        del block
    assert scene["active_requests.current"] == 0
    assert scene["allocations.current"] == 1


@pytest.mark.parametrize("call", range(1, 40))
def test_failure_of_any_driver_call_leaks_nothing(call):
    scene = Scene("pinned_max_cached_size_mb:1,pinned_max_round_threshold_mb:1,pinned_reserve_segment_size_mb:1")
    scene.port.fail_call(call)
    draw, held = random.Random(call), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForebayWarning)
        for _ in range(30):
            try:
                held.append(
                    scene.allocate(draw.choice((100, KIB, 200 * KIB, MIB, 3 * MIB)), *draw.choice(((), (0,), (0, 1))))
                )
                scene.queue_work(draw.randrange(2))
                if draw.random() < 0.6:
                    held.pop(draw.randrange(len(held))).free()
                if draw.random() < 0.2:
                    scene.allocator.empty()
                    scene.queues[draw.randrange(2)].finish()
            except (DeviceError, WrongState):
                pass
            assert scene.allocator.check_invariants() is None
        held.clear()
        scene.port.finish_all()
        scene.allocator.empty()
    assert scene["allocations.current"] == 0
    assert len(scene.port._host_memory._taken) <= 1  # the reserved segment


# Interruptions


class Interrupt(BaseException):
    pass


def interrupted(call, at):
    """Call with an exception before the n-th line, as from a signal handler. Return the stack's functions there."""
    lines, where = 0, []

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(("pinned_allocator.py", "deferred_frees.py")):
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
    """Disable garbage collection: the error of a destructor is kept, and with it the frames of its callers."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("case", ["new", "reused", "freed", "pending", "dropped", "too large", "emptied"])
def test_interruption_at_any_line_leaks_at_most_one_block(case):
    """Only the block that the system was pinning or unpinning at that moment may leak."""
    for at in count(1):
        scene = Scene("pinned_max_cached_size_mb:2")
        held = [scene.allocate(4 * MIB if case == "too large" else KIB, *([0] if case == "pending" else []))]
        if case in ("reused", "emptied"):
            held.pop().free()
        where = interrupted(
            {
                "new": lambda: held.append(scene.allocate(MIB)),  # noqa: B023 -- called before the next iteration
                "reused": lambda: held.append(scene.allocate(KIB)),  # noqa: B023
                "dropped": held.clear,
                "emptied": scene.allocator.empty,
            }.get(case, lambda: held[0].free()),  # noqa: B023, PLW0108 -- a bound method would keep the block
            at,
        )
        assert scene.allocator.check_invariants() is None
        held.clear()
        scene.allocator.process_pending_frees()
        scene.port.finish_all()
        scene.allocator.empty()
        assert scene.allocator.check_invariants() is None
        if where[:1] == [
            "__del__"
        ]:  # before the first line of a destructor, Python itself loses the object to a signal
            continue
        assert scene["active_requests.current"] == 0, (at, where)
        leaked = scene["allocations.current"], len(scene.port._host_memory._taken)
        assert leaked == (0, 0) or (max(leaked) == 1 and {"_pin_block", "_unpin"} & set(where)), (at, where)
        if not where:
            break
    assert at > 10


def test_destructors_may_run_at_any_moment(scene):
    """Reference cycles with pinned blocks are collected in the middle of other operations."""
    threshold = gc.get_threshold()
    gc.set_threshold(3)
    try:
        held = []
        for turn in range(300):
            loop = [scene.allocate(turn % 900 + 1, *([0] if turn % 3 else []))]
            loop.append(loop)
            held.append(scene.allocate(700))
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
    scene.allocator.process_pending_frees()
    assert scene["active_requests.current"] == 0


def test_concurrent_threads_get_distinct_blocks(scene, eight_threads):
    def work(seed):
        draw, held = random.Random(seed), []
        for _ in range(300):
            block = scene.allocate(draw.choice((1, 100, KIB, 5000)), *draw.choice(((), (0,), (0, 1))))
            assert all(block.address != other.address for other in held)
            held.append(block)
            if draw.random() < 0.7:
                held.pop(draw.randrange(len(held)))
            if draw.random() < 0.05:
                scene.port.finish_all()
                scene.allocator.empty()
            if draw.random() < 0.05:
                scene.allocator.reset_peaks()

    eight_threads(work)
    scene.check()
    scene.port.finish_all()
    scene.allocator.empty()
    assert scene["allocations.current"] == 0


# Statistics


def test_stats_keys_and_order(scene):
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


def test_stats_times_are_in_microseconds(scene, monkeypatch):
    pin = scene.port.pin

    def slow(nbytes):
        scene.now += nbytes * 1000 + 999
        return pin(nbytes)

    monkeypatch.setattr(scene.port, "pin", slow)
    held = [scene.allocate(n) for n in (4, 8, 2)]
    times = scene.allocator.stats_as_nested_dict()["host_alloc_time"]
    assert times == {"total": 14, "max": 8, "min": 2, "count": 3, "avg": 4}
    scene.allocator.reset_accumulated()
    times = scene.allocator.stats_as_nested_dict()["host_alloc_time"]
    assert times == {"total": 0, "max": 8, "min": 2, "count": 0, "avg": 0}
    scene.allocator.reset_peaks()
    assert scene["host_alloc_time.max"] == scene["host_alloc_time.min"] == 0
    del held


def test_active_peaks_are_sums_of_bucket_peaks(scene):
    scene.allocate(KIB).free()
    scene.allocate(2 * KIB).free()
    assert (scene["active_bytes.peak"], scene["active_requests.peak"]) == (3 * KIB, 2)  # never at the same time
    assert scene["allocated_bytes.peak"] == 3 * KIB


# History


@pytest.fixture
def traced(scene):
    def actions():
        entries = scene.allocator.history.traces()
        return [(entry["action"], entry["size"], [f["name"] for f in entry.get("frames", [])][:1]) for entry in entries]

    return actions


def test_history_records_actions_and_stacks(scene, traced):
    assert scene.allocator.segments() == []
    early = scene.allocate(1)
    scene.allocator.history.start("all", "all", 100)
    scene.queue_work()
    scene.allocate(KIB, 0).free()
    by = ["allocate"]
    here = ["test_history_records_actions_and_stacks"]
    assert traced() == [("segment_alloc", KIB, by), ("alloc", KIB, by), ("free_requested", KIB, here)]
    states = [[block["state"] for block in row["blocks"]] for row in scene.allocator.segments()]
    assert states == [["active_allocated"], ["active_pending_free"]]
    scene.queues[0].finish()
    early.free()
    scene.allocator.empty()
    assert traced()[3:] == [
        ("free_requested", 1, here),
        ("free_completed", 1, here),
        ("free_completed", KIB, by),  # the allocating stack: no caller frees it here
        ("segment_free", 1, []),
        ("segment_free", KIB, []),
    ]
    assert scene.allocator.segments() == []


def test_segments_have_pytorch_schema(scene):
    scene.allocator.history.start("all", None, 100)
    block = scene.allocate(1000)
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
def test_history_context_selects_stacks(scene, context, entries, frees):
    scene.allocator.history.start("all", context, 100)
    block = scene.allocate(8)
    shown = scene.allocator.segments()[0]["frames"]
    assert bool(shown) == (context is not None)
    block.free()
    traces = scene.allocator.history.traces()
    assert ["frames" in entry for entry in traces] == [bool(entries)] * 2 + [bool(frees)] * 2
    names = [entry["frames"][0]["name"] for entry in traces if "frames" in entry]
    assert set(names) <= {"allocate", "test_history_context_selects_stacks"}
    assert ("test_history_context_selects_stacks" in names) == (context == "all")
    assert scene.allocator.segments()[0]["frames"] == []


def test_history_is_limited_and_survives_stop(scene, traced):
    history = scene.allocator.history
    history.start("all", None, 3)
    scene.allocate(2).free()
    assert [action for action, *_ in traced()] == ["alloc", "free_requested", "free_completed"]
    history.start(None, "all", 3)
    assert traced() == []
    scene.allocate(2)
    history.start("all", None, 9)
    assert len(traced()) == 3  # earlier entries are kept
    history.start("state", None, 9)
    assert len(traced()) == 1
    history.start("all", None, 0, clear_history=True)
    assert traced() == []
    scene.allocate(2)
    assert len(traced()) == 1


# Background thread


def until(holds, seconds=30.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(1e-4)


@pytest.fixture
def polled():
    scene = Scene("pinned_use_background_threads:True")
    yield scene
    scene.allocator.close()
    scene.check()
    assert not scene.allocator._poller.running


def test_poller_completes_pending_frees(polled):
    polled.queue_work()
    block = polled.allocate(KIB, 0)
    block.free()
    polled.queues[0].finish()
    until(lambda: polled["active_requests.current"] == 0)
    assert polled.allocate(KIB).size == KIB
    assert len(polled.calls("pin")) == 1


def test_poller_starts_at_next_pin(scene):
    scene.allocate(KIB).free()
    scene.settings = parse("pinned_use_background_threads:True")
    scene.queue_work()
    scene.allocate(KIB, 0).free()
    assert not scene.allocator._poller.running
    scene.queues[0].finish()
    scene.allocate(2)
    until(lambda: scene["active_requests.current"] == 0)
    scene.allocator.close()


def test_poller_ends_with_allocator():
    scene = Scene("pinned_use_background_threads:True")
    before = _thread._count()
    scene.allocate(1)
    until(lambda: _thread._count() == before + 1)
    del scene
    gc.collect()
    until(lambda: _thread._count() == before)


def test_allocate_completes_pending_frees_if_no_thread_can_start(scene, monkeypatch):
    monkeypatch.setattr("_thread.start_new_thread", MagicMock(side_effect=RuntimeError))
    scene.settings = parse("pinned_use_background_threads:True")
    scene.allocate(KIB, 0).free()
    scene.queues[0].finish()
    scene.allocate(1)
    assert scene["active_requests.current"] == 0


def test_interrupted_start_of_the_poller_is_repeated(scene, monkeypatch):
    """Previously no thread was ever started then, and no free was completed."""
    scene.settings = parse("pinned_use_background_threads:True")
    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", MagicMock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scene.allocate(1)
    assert not scene.allocator._poller.running
    scene.allocate(KIB, 0).free()
    scene.queues[0].finish()
    until(lambda: scene["active_requests.current"] == 0)
    scene.allocator.close()


def test_poller_warns_and_continues_after_error(polled, monkeypatch):
    warned = []
    monkeypatch.setattr("forebay.runtime.pinned.poller.warn_unraisable", warned.append)
    polled.settings = parse("pinned_use_background_threads:True,pinned_max_cached_size_mb:1")
    blocks = [polled.allocate(2 * MIB, 0) for _ in range(2)]
    polled.queue_work()
    for block in blocks:
        block.free()
    polled.port.fail("unpin")
    polled.queues[0].finish()
    until(lambda: polled["active_requests.current"] == 0 and warned)
    polled.allocator.empty()
    assert polled["allocations.current"] == 0


def test_stop_does_not_wait_for_a_poller_that_a_queue_blocks(polled, monkeypatch):
    monkeypatch.setattr("forebay.runtime.pinned.poller._STOP_TIMEOUT", 0.01)
    entered, gate = threading.Event(), threading.Event()
    complete = polled.allocator._complete_reached_frees

    def blocked(frames):
        entered.set()
        assert gate.wait(30)
        complete(frames)

    monkeypatch.setattr(polled.allocator, "_complete_reached_frees", blocked)
    polled.allocate(KIB, 0).free()
    poller = polled.allocator._poller
    assert entered.wait(30)
    poller.stop()
    assert poller.running
    gate.set()
    poller.stop()
    assert not poller.running


# Exit and fork


def test_blocks_used_by_queues_are_not_reused_after_close(scene):
    used, pending, unused = scene.allocate(KIB, 0), scene.allocate(2 * KIB, 0), scene.allocate(4 * KIB)
    scene.queue_work()
    pending.free()
    scene.allocator.close()
    used.free()
    unused.free()
    scene.allocator.empty()
    assert scene["allocated_bytes.current"] == 3 * KIB


def test_forked_child_neither_allocates_nor_unpins(scene):
    block = scene.allocate(KIB)
    scene.allocator.after_fork_in_child()
    calls = list(scene.port.calls)
    with pytest.raises(Forked):
        scene.allocate(1)
    del block
    scene.allocator.empty()
    assert scene.port.calls == calls


def test_allocate_returns_pinned_block(scene):
    assert type(scene.allocate(1)) is PinnedBlock
    assert pinned_allocator.__all__ == ["PinnedAllocator", "PinnedBlock"]
