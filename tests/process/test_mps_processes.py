"""forebay.mps on an emulated device in whole processes: forks, threads, exit."""

from __future__ import annotations

import os

import pytest
from support.emulated_programs import environment_emulating, output_of, run_silently

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
EMULATED = environment_emulating("mps@apple_m3_max")
IMPORT = "from forebay import mps\n"


@FORKS
def test_forked_child_works_if_the_parent_did_not_initialise(runner):
    run_silently(
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
    assert mps.get_rng_state().tolist() == state.tolist()
assert forked(check) == 0
check()
""",
        env=EMULATED,
    )


@FORKS
def test_forked_child_is_rejected_if_the_parent_initialised(runner):
    run_silently(
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
        error = raises(use, forebay.Forked, "Cannot re-initialize MPS in forked subprocess. To use MPS with")
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
def test_forked_child_emulates_after_the_emulation_of_its_parent(runner):
    """The child can delete events of the parent's emulation."""
    run_silently(
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
def test_forked_child_can_delete_events_while_parent_threads_create_them(runner):
    """A destructor in the child must not wait for a lock that a thread of the parent held."""
    run_silently(
        runner,
        IMPORT
        + """
stop = threading.Event()
def create_events():
    while not stop.is_set():
        mps.Event()
threads = [threading.Thread(target=create_events) for _ in range(4)]
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
    run_silently(
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
            current = mps.current_stream()
            for _ in range(20):
                assert forebay.full((3,), number, device="mps").tolist() == [number] * 3
                assert mps.current_stream() == current
            raises(event.record, NotImplementedError, "Non-default streams are not yet supported.")
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


def test_failed_event_constructor_raises_once(runner):
    """PyTorch's destructor would print an ignored AttributeError."""
    run_silently(
        runner,
        IMPORT
        + """
import gc
raises(mps.Event, RuntimeError, "Cannot execute acquireEvent() without MPS backend.")
raises(lambda: mps.Event("yes", "no"), TypeError, "")
mps.Event.__new__(mps.Event)
gc.collect()
""",
    )


def test_exit_with_events_streams_and_work_is_silent(runner):
    """At exit there are events, streams and queued work; one event is in a cycle, one in another module."""
    out = output_of(
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
print("end")
""",
        env=EMULATED,
    )
    assert out == "end\n"


def test_spawned_children_emulate_as_the_environment_says(runner):
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
