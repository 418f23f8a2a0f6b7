"""Events: record, query, wait, synchronize and timing."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

import forebay
from forebay import DeviceError, Event, Stream, Unsupported
from forebay._base.device_spec import Device

pytestmark = pytest.mark.usefixtures("clean")


def work(stream, n=1):
    for _ in range(n):
        stream.queue.call(lambda: None)


def test_unrecorded_event_is_complete():
    event = Event()
    assert event.query()
    assert event.device == Device("cpu")
    event.wait()
    event.synchronize()
    assert repr(event) == "forebay.Event device_type=cpu, device_index=-1, event_flag=0, event_id=0"


def test_event_completes_with_the_work_before_it(fake):
    stream, event = Stream("fake:0"), Event()
    work(stream)
    event.record(stream)
    work(stream)
    assert event.device == Device("fake:0")
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert not stream.query()  # work after the record is still pending
    text = f"forebay.Event device_type=fake, device_index=0, event_flag=0, event_id={event.event_id}"
    assert repr(event) == text


def test_recording_again_moves_the_event(fake):
    stream, other, event = Stream("fake:0"), Stream("fake:0"), Event()
    work(stream)
    event.record(stream)
    event.synchronize()
    work(other)
    event.record(other)
    assert not event.query()
    event.synchronize()
    assert other.query()


def test_event_rejects_streams_of_other_devices(fake):
    event = Event()
    event.record(Stream("fake:0"))
    with pytest.raises(
        RuntimeError, match=r"^Event device index 0 does not match recording stream's device index 1\.$"
    ):
        event.record(Stream("fake:1"))
    with pytest.raises(
        RuntimeError, match=r"^Event device type CPU does not match recording stream's device type FAKE\.$"
    ):
        Event("cpu").record(Stream("fake:1"))
    assert Event("fake:1").device == Device("fake")
    Event("fake:1").record(Stream("fake:0"))


def test_record_uses_current_stream_of_the_events_device(fake):
    with Stream("fake:1") as there, Stream("cpu") as here:
        event, other = Event("fake:1"), Event()
        event.record()
        other.record()
        assert (event._stream, other._stream) == (there, here)


def test_streams_wait_for_event():
    first, second, gate, done = Stream(), Stream(), threading.Event(), []
    first.queue.call(lambda: gate.wait(30))
    first.queue.call(lambda: done.append(1))
    event = first.record_event()
    second.wait_event(event)
    with Stream() as third:
        event.wait()
        event.wait(first)  # its own stream: already in order
        third.queue.call(lambda: done.append(3))
    second.queue.call(lambda: done.append(2))
    assert [waiting.query() for waiting in (second, third, event)] == [False] * 3
    gate.set()
    second.synchronize()
    third.synchronize()
    assert done[0] == 1
    assert sorted(done) == [1, 2, 3]


def test_record_event_returns_the_event(fake):
    stream, event = Stream("fake:0"), Event()
    assert stream.record_event(event) is event
    assert stream.record_event().device == Device("fake:0")


def test_host_waits_for_event_of_another_kind(fake):
    other = Stream("fake:0")
    work(other)
    event = other.record_event()
    Stream("cpu").wait_event(event)
    assert event.query()


def test_elapsed_time_is_in_milliseconds(fake):
    stream = Stream("fake:0")
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record(stream)
    work(stream, 5)  # a microsecond each
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) == 0.005
    assert end.elapsed_time(start) == -0.005


def test_elapsed_time_rejects_invalid_events(fake):
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
    with pytest.raises(RuntimeError, match=r"^expected other to be a forebay\.Event object$"):
        timed.elapsed_time(5)


def test_elapsed_time_of_two_devices_raises():
    with forebay.emulate("cuda", count=2):
        first, second = forebay.cuda.Event(enable_timing=True), forebay.cuda.Event(enable_timing=True)
        for index, event in enumerate((first, second)):
            with forebay.cuda.device(index):
                event.record()
                event.synchronize()
        for start, end in ((first, second), (second, first)):
            with pytest.raises(DeviceError, match="CUDA error: invalid resource handle") as caught:
                start.elapsed_time(end)
            assert caught.value.code == 400


def test_timing_without_backend_support_raises(fake, monkeypatch):
    monkeypatch.setattr("forebay.runtime.streams.event.Timing", str)  # no queue is an instance
    event = Event(enable_timing=True)
    with pytest.raises(Unsupported, match="fake does not support event timing") as caught:
        event.record(Stream("fake:0"))
    assert caught.value.ability == "Timing"
    assert event.query()


def test_record_and_wait_reject_non_streams():
    event = Stream().record_event()
    for use in (event.record, event.wait):
        with pytest.raises(
            RuntimeError, match=r"^expected stream to be a forebay\.Stream or forebay\.cuda\.Stream object$"
        ):
            use("cpu")


def test_event_synchronize_raises_failure_once():
    stream = Stream()
    stream.queue.call(lambda: 1 / 0)
    event = stream.record_event()
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        event.synchronize()
    event.synchronize()
    stream.synchronize()


def test_event_synchronize_releases_copy_sources():
    source = np.ones(4)
    reference = weakref.ref(source)
    forebay.from_numpy(np.zeros(4)).copy_(forebay.from_numpy(source))
    del source
    forebay.current_stream().record_event().synchronize()
    assert reference() is None


def test_elapsed_time_between_kinds_raises():
    """Each kind has its own clock. The error text is PyTorch's."""
    with forebay.emulate("cuda"), forebay.emulate("mtia"):
        events = [forebay.Event(enable_timing=True) for _ in range(2)]
        for event, kind in zip(events, ("cuda", "mtia"), strict=True):
            event.record(forebay.Stream(kind))
            event.synchronize()
        with pytest.raises(RuntimeError, match=r"^Event device type CUDA does not match other's device type MTIA\.$"):
            events[0].elapsed_time(events[1])
