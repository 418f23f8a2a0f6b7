"""Events of forebay.mps: ids, recording, timing and errors."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest

import forebay
from forebay import mps
from forebay.testing.conformance.helpers import Gate, enqueue_call

pytestmark = pytest.mark.usefixtures("apple")


def event_number(event):
    return int(repr(event).strip("<>").split()[-1])


@pytest.fixture
def default_stream_gate():
    """Blocks the default stream until the gate is opened."""
    gate = Gate()
    enqueue_call(mps.default_stream(), gate)
    yield gate
    gate.open()
    mps.synchronize()


# ---- Ids


def test_event_ids_start_at_1_and_are_reused():
    first, second, third = mps.Event(), mps.Event(), mps.Event()
    assert [event_number(event) for event in (first, second, third)] == [1, 2, 3]
    del second, first
    assert sorted(event_number(event) for event in [mps.Event(), mps.Event()]) == [1, 2]
    assert event_number(third) == 3


def test_event_with_a_reused_id_is_unrecorded():
    event = mps.Event(enable_timing=True)
    event.record()
    event.synchronize()
    del event
    reused = mps.Event()
    assert event_number(reused) == 1
    assert not reused.query()


def test_event_id_is_freed_once():
    event = mps.Event()
    event.__del__()
    other = mps.Event()
    event.__del__()
    del event
    assert (event_number(other), event_number(mps.Event())) == (1, 2)
    other.record()


@pytest.mark.parametrize(
    "use",
    [
        lambda event, _: event.record(),
        lambda event, _: event.wait(),
        lambda event, _: event.query(),
        lambda event, _: event.synchronize(),
        lambda event, other: event.elapsed_time(other),
        lambda event, other: other.elapsed_time(event),
    ],
    ids=["record", "wait", "query", "synchronize", "elapsed_time", "elapsed_time to it"],
)
def test_released_event_raises(use):
    """Its id is reused, and the error names it."""
    event, other = mps.Event(True), mps.Event(True)
    event.__del__()
    event.__del__()
    with pytest.raises(RuntimeError, match=r"^Invalid Event ID: 1$"):
        use(event, other)
    assert [event_number(mps.Event()), event_number(mps.Event())] == [
        1,
        1,
    ]  # the first event is already released


@pytest.mark.parametrize("wrong", [1, 0, "x", None, [], float("nan")], ids=repr)
def test_enable_timing_must_be_a_bool(wrong):
    with pytest.raises(RuntimeError, match=r"^couldn't convert python object to boolean$"):
        mps.Event(wrong)


@pytest.mark.parametrize("name", ["wait_event", "record_event"])
def test_other_streams_reject_mps_events(name):
    with pytest.raises(TypeError, match=r"^a forebay\.mps\.Event works on the default stream only"):
        getattr(mps.Stream(), name)(mps.Event())
    getattr(mps.Stream(), name)(forebay.Event())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_event_cannot_be_copied_or_pickled(duplicate):
    """A copy would free its id twice."""
    event = mps.Event()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        duplicate(event)
    assert event_number(mps.Event()) == 2
    assert not event.query()


def test_event_ids_are_unique_across_threads():
    events, barrier = [], threading.Barrier(4, timeout=20)

    def create():
        barrier.wait()
        for _ in range(300):
            events.append(mps.Event())
            mps.Event()  # freed at once

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({event_number(event) for event in events}) == 1200
    assert max(map(event_number, events)) <= 1204


# ---- Recording


def test_unrecorded_event_is_not_reached_and_never_blocks():
    event = mps.Event()
    assert not event.query()  # unlike CUDA's
    event.wait()
    event.synchronize()
    assert not event.query()


def test_failed_record_leaves_the_event_unrecorded():
    event = mps.Event()
    with mps.stream(mps.Stream()), pytest.raises(NotImplementedError):
        event.record()
    assert not event.query()


def test_event_is_reached_when_earlier_work_has_completed(default_stream_gate):
    event = mps.Event()
    event.record()
    event.wait()  # a wait on its own stream does not block
    assert not event.query()
    default_stream_gate.open()
    event.synchronize()
    assert event.query()


def test_event_can_be_recorded_again():
    event, gate = mps.Event(), Gate()
    event.record()
    event.synchronize()
    enqueue_call(mps.default_stream(), gate)
    event.record()
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


@pytest.mark.parametrize("use", ["record", "wait"])
def test_record_and_wait_require_the_default_stream(use):
    event = mps.Event()
    with mps.stream(mps.Stream()), pytest.raises(NotImplementedError, match=r"^Non-default streams are not yet supp"):
        getattr(event, use)()
    getattr(event, use)()
    with mps.stream(mps.default_stream()):
        getattr(event, use)()


def test_event_synchronize_raises_the_failure_of_earlier_work():
    event = mps.Event()
    enqueue_call(mps.default_stream(), lambda: 1 // 0)
    event.record()
    with pytest.raises(forebay.DeviceError, match="ZeroDivisionError"):
        event.synchronize()
    event.synchronize()


# ---- Timing


def timed_events(n=2):
    return [mps.Event(enable_timing=True) for _ in range(n)]


def test_elapsed_time_waits_for_the_stream(default_stream_gate):
    """PyTorch behaves the same."""
    start, end = timed_events()
    start.record()
    end.record()
    elapsed = []
    waiting = threading.Thread(target=lambda: elapsed.append(start.elapsed_time(end)))
    waiting.start()
    assert (end.query(), elapsed) == (False, [])
    default_stream_gate.open()
    waiting.join(20)
    assert 0 <= elapsed[0] < 20_000
    assert start.elapsed_time(start) == 0


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (False, False)])
def test_elapsed_time_requires_timing(first, second):
    start, end = mps.Event(first), mps.Event(second)
    start.record()
    end.record()
    with pytest.raises(RuntimeError, match=r"^Events were not created with argument 'enable_timing=True'$"):
        start.elapsed_time(end)


@pytest.mark.parametrize("recorded", [0, 1])
def test_elapsed_time_requires_recorded_events(recorded):
    events = timed_events()
    events[recorded].record()
    with pytest.raises(RuntimeError, match=r"^Both events must be recorded before calculating elapsed time$"):
        events[0].elapsed_time(events[1])


def test_elapsed_time_rejects_an_end_before_the_start():
    start, end = timed_events()
    end.record()
    enqueue_call(mps.default_stream(), lambda: sum(range(20_000)))  # time passes
    start.record()
    with pytest.raises(RuntimeError, match=r"^End event 2 was not recorded after start event 1$"):
        start.elapsed_time(end)


@pytest.mark.parametrize("end", [None, 3, forebay.Event(enable_timing=True)], ids=["None", "int", "another kind"])
def test_elapsed_time_rejects_other_objects(end):
    with pytest.raises(TypeError, match=r"^expected a forebay\.mps\.Event, not a (builtins|forebay\.runtime)\."):
        timed_events(1)[0].elapsed_time(end)


# ---- The end of the emulation


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "never recorded"])
@pytest.mark.parametrize("use", ["record", "wait", "query", "synchronize"])
def test_event_raises_after_its_emulation_has_ended(apple, use, recorded):
    event = mps.Event()
    if recorded:
        event.record()
    apple.stop()
    with pytest.raises(forebay.WrongState, match="the emulation of mps:0 has ended"):
        getattr(event, use)()
    with forebay.emulate("mps", profile="apple_m1"):
        assert event_number(mps.Event()) == 1  # the pool of another device
        del event
        gc.collect()
        assert event_number(mps.Event()) == 1
