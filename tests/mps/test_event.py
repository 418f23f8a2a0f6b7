"""Events of forebay.mps: their numbers, the points they set, and what they refuse. torch-semantics 4.3."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest

import forebay
from forebay import mps
from forebay.testing.conformance.scenes import Gate, call

pytestmark = pytest.mark.usefixtures("apple")


def number(event):
    return int(repr(event).strip("<>").split()[-1])


@pytest.fixture
def held():
    """The default stream, stopped."""
    gate = Gate()
    call(mps.default_stream(), gate)
    yield gate
    gate.open()
    mps.synchronize()


# ---- The pool


def test_numbers_begin_at_1_and_come_back():
    first, second, third = mps.Event(), mps.Event(), mps.Event()
    assert [number(event) for event in (first, second, third)] == [1, 2, 3]
    del second, first
    assert sorted(number(event) for event in [mps.Event(), mps.Event()]) == [1, 2]
    assert number(third) == 3


def test_an_event_that_had_its_number_before_is_forgotten():
    event = mps.Event(enable_timing=True)
    event.record()
    event.synchronize()
    del event
    again = mps.Event()
    assert number(again) == 1
    assert not again.query()


def test_an_event_goes_once():
    event = mps.Event()
    event.__del__()
    other = mps.Event()
    event.__del__()
    del event
    assert (number(other), number(mps.Event())) == (1, 2)
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
def test_an_event_that_has_gone(use):
    """Its number is another's next, and it says which that is."""
    event, other = mps.Event(True), mps.Event(True)
    event.__del__()
    event.__del__()
    with pytest.raises(RuntimeError, match=r"^Invalid Event ID: 1$"):
        use(event, other)
    assert [number(mps.Event()), number(mps.Event())] == [1, 1]  # the second is there when the first has gone


@pytest.mark.parametrize("wrong", [1, 0, "x", None, [], float("nan")], ids=repr)
def test_timing_is_asked_for_by_a_boolean(wrong):
    with pytest.raises(RuntimeError, match=r"^couldn't convert python object to boolean$"):
        mps.Event(wrong)


@pytest.mark.parametrize("name", ["wait_event", "record_event"])
def test_other_streams_take_other_events(name):
    with pytest.raises(TypeError, match=r"^a forebay\.mps\.Event is of the default stream alone"):
        getattr(mps.Stream(), name)(mps.Event())
    getattr(mps.Stream(), name)(forebay.Event())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_event_cannot_be_copied(copied):
    """Two objects would give one number back twice."""
    event = mps.Event()
    with pytest.raises(TypeError, match="can be neither copied nor pickled"):
        copied(event)
    assert number(mps.Event()) == 2
    assert not event.query()


def test_no_two_threads_have_one_number():
    kept, barrier = [], threading.Barrier(4, timeout=20)

    def take():
        barrier.wait()
        for _ in range(300):
            kept.append(mps.Event())
            mps.Event()  # and gives it back

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({number(event) for event in kept}) == 1200
    assert max(map(number, kept)) <= 1204


# ---- The point


def test_an_event_that_was_never_recorded():
    event = mps.Event()
    assert not event.query()  # unlike CUDA's
    event.wait()
    event.synchronize()
    assert not event.query()


def test_a_record_that_failed_is_none():
    event = mps.Event()
    with mps.stream(mps.Stream()), pytest.raises(NotImplementedError):
        event.record()
    assert not event.query()


def test_a_point_is_reached_when_the_work_before_it_is(held):
    event = mps.Event()
    event.record()
    event.wait()  # the stream waits for itself, and the host for nobody
    assert not event.query()
    held.open()
    event.synchronize()
    assert event.query()


def test_recording_again_moves_the_point():
    event, gate = mps.Event(), Gate()
    event.record()
    event.synchronize()
    call(mps.default_stream(), gate)
    event.record()
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


@pytest.mark.parametrize("use", ["record", "wait"])
def test_other_streams_have_no_events(use):
    event = mps.Event()
    with mps.stream(mps.Stream()), pytest.raises(NotImplementedError, match=r"^Non-default streams are not yet supp"):
        getattr(event, use)()
    getattr(event, use)()
    with mps.stream(mps.default_stream()):
        getattr(event, use)()


def test_failed_work_is_heard_of_where_the_event_is_waited_for():
    event = mps.Event()
    call(mps.default_stream(), lambda: 1 // 0)
    event.record()
    with pytest.raises(forebay.DeviceError, match="ZeroDivisionError"):
        event.synchronize()
    event.synchronize()


# ---- Times


def timed(n=2):
    return [mps.Event(enable_timing=True) for _ in range(n)]


def test_the_time_between_two_points(held):
    """It waits for the stream, as PyTorch's does."""
    start, end = timed()
    start.record()
    end.record()
    elapsed = []
    waiting = threading.Thread(target=lambda: elapsed.append(start.elapsed_time(end)))
    waiting.start()
    assert (end.query(), elapsed) == (False, [])
    held.open()
    waiting.join(20)
    assert 0 <= elapsed[0] < 20_000
    assert start.elapsed_time(start) == 0


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (False, False)])
def test_events_that_keep_no_moment(first, second):
    start, end = mps.Event(first), mps.Event(second)
    start.record()
    end.record()
    with pytest.raises(RuntimeError, match=r"^Events were not created with argument 'enable_timing=True'$"):
        start.elapsed_time(end)


@pytest.mark.parametrize("recorded", [0, 1])
def test_events_that_were_not_recorded(recorded):
    events = timed()
    events[recorded].record()
    with pytest.raises(RuntimeError, match=r"^Both events must be recorded before calculating elapsed time$"):
        events[0].elapsed_time(events[1])


def test_an_end_before_the_start():
    start, end = timed()
    end.record()
    call(mps.default_stream(), lambda: sum(range(20_000)))  # the clock moves on
    start.record()
    with pytest.raises(RuntimeError, match=r"^End event 2 was not recorded after start event 1$"):
        start.elapsed_time(end)


@pytest.mark.parametrize("end", [None, 3, forebay.Event(enable_timing=True)], ids=["None", "int", "another kind"])
def test_what_is_no_event(end):
    with pytest.raises(TypeError, match=r"^expected a forebay\.mps\.Event, not a (builtins|forebay\.runtime)\."):
        timed(1)[0].elapsed_time(end)


# ---- Its device's end


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "never recorded"])
@pytest.mark.parametrize("use", ["record", "wait", "query", "synchronize"])
def test_an_event_of_an_emulation_that_has_ended(apple, use, recorded):
    event = mps.Event()
    if recorded:
        event.record()
    apple.stop()
    with pytest.raises(forebay.WrongState, match="the emulation that mps:0 belonged to has ended"):
        getattr(event, use)()
    with forebay.emulate("mps", profile="apple_m1"):
        assert number(mps.Event()) == 1  # another device's pool
        del event
        gc.collect()
        assert number(mps.Event()) == 1
