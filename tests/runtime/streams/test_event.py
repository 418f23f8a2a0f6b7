"""Events: points on streams."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

import forebay
from forebay import Device, DeviceError, Event, Stream, Unsupported

pytestmark = pytest.mark.usefixtures("clean")


def work(stream, n=1):
    for _ in range(n):
        stream.queue.call(lambda: None)


def test_an_event_never_recorded_is_over():
    event = Event()
    assert event.query()
    assert event.device is None
    event.wait()
    event.synchronize()
    assert "not recorded" in repr(event)


def test_a_point_is_reached_when_the_work_before_it_is(fake):
    stream, event = Stream("fake:0"), Event()
    work(stream)
    event.record(stream)
    work(stream)
    assert event.device == Device("fake:0")
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert not stream.query()  # what is behind it was not waited for
    assert "on <forebay.Stream device=fake:0" in repr(event)


def test_recording_again_moves_the_point(fake):
    stream, other, event = Stream("fake:0"), Stream("fake:0"), Event()
    work(stream)
    event.record(stream)
    event.synchronize()
    work(other)
    event.record(other)
    assert not event.query()
    event.synchronize()
    assert other.query()


def test_it_stays_on_its_device(fake):
    event = Event()
    event.record(Stream("fake:0"))
    text = "Event device fake:0 does not match recording stream's device fake:1."
    with pytest.raises(RuntimeError, match=text):
        event.record(Stream("fake:1"))
    with pytest.raises(RuntimeError, match="Event device host:0 does not match"):
        Event("host:0").record(Stream("fake:1"))
    assert Event("fake").device == Device("fake:0")


def test_it_is_recorded_on_the_current_stream_of_its_device(fake):
    with Stream("fake:1") as there, Stream("host:0") as here:
        event, other = Event("fake:1"), Event()
        event.record()
        other.record()
        assert (event._stream, other._stream) == (there, here)


def test_streams_wait_for_it():
    first, second, gate, done = Stream(), Stream(), threading.Event(), []
    first.queue.call(lambda: gate.wait(30))
    first.queue.call(lambda: done.append(1))
    event = first.record_event()
    second.wait_event(event)
    with Stream() as third:
        event.wait()
        event.wait(first)  # its own: in order anyhow
        third.queue.call(lambda: done.append(3))
    second.queue.call(lambda: done.append(2))
    assert [waiting.query() for waiting in (second, third, event)] == [False] * 3
    gate.set()
    second.synchronize()
    third.synchronize()
    assert done[0] == 1
    assert sorted(done) == [1, 2, 3]


def test_record_event_gives_the_event(fake):
    stream, event = Stream("fake:0"), Event()
    assert stream.record_event(event) is event
    assert stream.record_event().device == Device("fake:0")


def test_a_stream_of_another_kind_waits_by_the_host(fake):
    theirs = Stream("fake:0")
    work(theirs)
    event = theirs.record_event()
    Stream("host:0").wait_event(event)
    assert event.query()


def test_milliseconds(fake):
    stream = Stream("fake:0")
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record(stream)
    work(stream, 5)  # a microsecond each
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) == 0.005
    assert end.elapsed_time(start) == -0.005


def test_what_cannot_be_timed(fake):
    stream, plain, timed = Stream("fake:0"), Event(), Event(enable_timing=True)
    with pytest.raises(ValueError, match=r"^Both events must be created with argument 'enable_timing=True'\.$"):
        plain.elapsed_time(timed)
    with pytest.raises(ValueError, match=r"^Both events must be recorded before calculating elapsed time\.$"):
        timed.elapsed_time(timed)
    work(stream)
    timed.record(stream)
    with pytest.raises(RuntimeError, match=r"^Both events must be completed before calculating elapsed time\.$"):
        timed.elapsed_time(timed)
    timed.synchronize()
    assert timed.elapsed_time(timed) == 0
    with pytest.raises(TypeError, match="expected an Event, not int"):
        timed.elapsed_time(5)


def test_a_backend_without_timing_says_so(fake, monkeypatch):
    monkeypatch.setattr("forebay.runtime.streams.event.Timing", str)  # no queue is one
    event = Event(enable_timing=True)
    with pytest.raises(Unsupported, match="fake cannot time events") as caught:
        event.record(Stream("fake:0"))
    assert caught.value.ability == "Timing"
    assert event.query()


def test_only_streams_are_recorded_on_and_wait():
    event = Stream().record_event()
    for use in (event.record, event.wait):
        with pytest.raises(TypeError, match="expected a Stream, not str"):
            use("host:0")


def test_a_failure_is_raised_by_the_event_once():
    stream = Stream()
    stream.queue.call(lambda: 1 / 0)
    event = stream.record_event()
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        event.synchronize()
    event.synchronize()
    stream.synchronize()


def test_what_was_kept_for_a_copy_goes_with_the_event():
    source = np.ones(4)
    gone = weakref.ref(source)
    forebay.from_numpy(np.zeros(4)).copy_(forebay.from_numpy(source))
    del source
    forebay.current_stream().record_event().synchronize()
    assert gone() is None


def test_time_between_kinds_is_no_time():
    """In PyTorch's words; each kind has a clock of its own."""
    with forebay.emulate("cuda"), forebay.emulate("mtia"):
        events = [forebay.Event(enable_timing=True) for _ in range(2)]
        for event, kind in zip(events, ("cuda", "mtia"), strict=True):
            event.record(forebay.Stream(kind))
            event.synchronize()
        with pytest.raises(RuntimeError, match=r"^Event device type CUDA does not match other's device type MTIA\.$"):
            events[0].elapsed_time(events[1])
