"""What forks, threads and the end of a process do to forebay.mps on an emulated device."""

from __future__ import annotations

import os

import pytest
from support.emulated_programs import emulating, said_by, succeeds

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
EMULATED = emulating("mps@apple_m3_max")
IMPORT = "from forebay import mps\n"


@FORKS
def test_a_child_of_a_parent_that_only_asked(runner):
    succeeds(
        runner,
        IMPORT
        + """
mps.manual_seed(9)
state = mps.get_rng_state()
assert mps.is_available()
def check():
    assert not mps._is_in_bad_fork()
    with mps.stream(mps.Stream()):
        assert forebay.full((3,), 2, device="mps").tolist() == [2, 2, 2]
    event = mps.Event()
    event.record()
    event.synchronize()
    assert (mps.get_rng_state() == state).all()
assert forked(check) == 0
check()
""",
        env=EMULATED,
    )


@FORKS
def test_a_child_of_a_parent_that_used_it(runner):
    succeeds(
        runner,
        IMPORT
        + """
tensor = forebay.zeros(3, device="mps")
stream, event = mps.Stream(), mps.Event(enable_timing=True)
event.record()
def check():
    assert mps._is_in_bad_fork()
    assert (mps.is_available(), mps.device_count()) == (True, 1)
    uses = (
        mps.synchronize, mps.Stream, mps.Event, mps.current_stream, mps.default_stream, mps.get_rng_state, mps.seed,
        mps.recommended_max_memory, mps._get_default_mps_generator, stream.synchronize, stream.query,
        lambda: mps.set_stream(stream), lambda: mps.stream(stream).__enter__(), lambda: forebay.empty(1, device="mps"),
        lambda: mps.set_per_process_memory_fraction(0.5), lambda: mps._host_alias_storage(tensor),
        event.record, event.wait, event.query, event.synchronize, lambda: event.elapsed_time(event),
    )
    for use in uses:
        error = refused(use, forebay.Forked, "Cannot re-initialize MPS in forked subprocess. To use MPS with")
        assert f"The parent process initialised MPS in {__file__}" in str(error), error
    assert (mps.manual_seed(3), mps.empty_cache(), mps.current_allocated_memory()) == (None, None, 0)
    event.__del__()
assert forked(check) == 0
event.synchronize()
assert event.query() and repr(mps.Event()) == "<forebay.mps.Event 2>"
""",
        env=EMULATED,
    )


@FORKS
def test_a_child_emulates_after_its_parents_emulation(runner):
    """What the parent has of it goes in the child without a word."""
    succeeds(
        runner,
        IMPORT
        + """
with forebay.emulate("mps", profile="apple_m1"):
    kept = [mps.Event() for _ in range(3)]
    kept[0].record()
def check():
    global kept
    with forebay.emulate("mps", profile="apple_m4"):
        kept.clear()
        event = mps.Event()
        event.record()
        event.synchronize()
        assert repr(event) == "<forebay.mps.Event 1>"
assert forked(check) == 0
check()
""",
    )


@FORKS
def test_a_child_of_a_parent_whose_threads_take_events(runner):
    """A destructor there waits for no lock that a thread of the parent may have had."""
    succeeds(
        runner,
        IMPORT
        + """
stop = threading.Event()
def take():
    while not stop.is_set():
        mps.Event()
threads = [threading.Thread(target=take) for _ in range(4)]
kept = [mps.Event() for _ in range(100)]
for thread in threads:
    thread.start()
for _ in range(5):
    assert forked(kept.clear) == 0
stop.set()
for thread in threads:
    thread.join(20)
assert len(kept) == 100
""",
        env=EMULATED,
    )


def test_eight_threads_use_streams_and_events(runner):
    succeeds(
        runner,
        IMPORT
        + """
failures, barrier = [], threading.Barrier(8, timeout=20)
def use(number):
    try:
        barrier.wait()
        event = mps.Event(enable_timing=True)
        event.record()
        with mps.stream(mps.Stream()):
            mine = mps.current_stream()
            for _ in range(20):
                assert forebay.full((3,), number, device="mps").tolist() == [number] * 3
                assert mps.current_stream() == mine
            refused(event.record, NotImplementedError, "Non-default streams are not yet supported.")
        event.synchronize()
        assert event.query()
    except BaseException:
        failures.append(traceback.format_exc())
threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30)
assert failures == [], failures[0]
mps.synchronize()
""",
        env=EMULATED,
    )


def test_an_event_that_could_not_be_made_says_so_once(runner):
    """PyTorch's prints an ignored AttributeError when it goes."""
    succeeds(
        runner,
        IMPORT
        + """
import gc
refused(mps.Event, RuntimeError, "Cannot execute acquireEvent() without MPS backend.")
refused(lambda: mps.Event("yes", "no"), TypeError, "")
mps.Event.__new__(mps.Event)
gc.collect()
""",
    )


def test_leaving_with_everything_in_use(runner):
    """Events, streams and work are there at the end, one of them in a cycle and one in another module."""
    out = said_by(
        runner,
        IMPORT
        + """
import json
event, stream = mps.Event(enable_timing=True), mps.Stream()
event.record()
mps.set_stream(stream)
tensor = forebay.full((1000,), 3.0, device="mps")
class Holder: ...
holder = Holder()
holder.event, holder.itself = mps.Event(), holder
json.kept = mps.Event()
print("left")
""",
        env=EMULATED,
    )
    assert out == "left\n"


def test_spawned_children_see_what_the_environment_says(runner):
    source = """
import multiprocessing
import forebay
from forebay import mps

def work(number):
    event = mps.Event()
    event.record()
    event.synchronize()
    return mps.recommended_max_memory(), forebay.full((2,), number, device="mps").tolist(), mps._is_in_bad_fork()

if __name__ == "__main__":
    mps.synchronize()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map_async(work, range(2)).get(40)
    assert found == [(96 << 30, [number] * 2, False) for number in range(2)], found
"""
    runner.write(source)
    done = runner.command("-W", "error", "script.py", env=EMULATED)
    assert (done.status, done.out, done.err) == (0, "", "")
