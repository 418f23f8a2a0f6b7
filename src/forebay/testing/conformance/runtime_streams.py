"""Tests of runtime streams on any device kind: creation, ordering, the current stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import forebay
from forebay import Event, ForebayError, Stream, WrongState
from forebay._base.device_spec import Device
from forebay.spi import Launches
from forebay.testing.conformance.helpers import Gate, enqueue_call, needs, other_device, port_of

__all__ = [
    "test_current_stream_is_per_thread",
    "test_default_stream_is_current_initially",
    "test_exception_restores_the_previous_stream",
    "test_exit_without_enter_raises",
    "test_invalid_streams_and_priorities_are_rejected",
    "test_new_streams_are_distinct_or_pooled",
    "test_stream_accepts_any_priority",
    "test_stream_is_current_inside_with_block",
    "test_stream_runs_work_in_order",
    "test_stream_waits_for_another_stream",
    "test_stream_waits_for_event",
    "test_streams_of_two_devices_wait_for_each_other",
    "test_streams_run_independently",
    "test_streams_wait_for_each_other_alternately",
    "test_synchronize_waits_for_all_streams",
    "test_two_threads_share_a_stream",
    "test_with_block_switches_the_device",
]


# ---- Creation


def test_default_stream_is_current_initially(device: Device) -> None:
    default = forebay.default_stream(device)
    assert (default.handle, default.stream_id, default.device) == (0, 0, device)
    assert forebay.current_stream() == forebay.current_stream(device) == default
    assert default != Stream(device)
    assert default.query()


def test_new_streams_are_distinct_or_pooled(device: Device) -> None:
    size = port_of(device).props.pooled_streams
    streams = [Stream(device) for _ in range((size or 40) + 1)]
    assert len({stream.stream_id for stream in streams}) == (size or 41)
    assert len({stream.handle for stream in streams} - {0}) == (size or 41)
    assert (streams[-1] == streams[0]) == bool(size)
    assert len(set(streams)) == (size or 41)


@pytest.mark.parametrize("priority", [0, -1, -3, -100, 5, 10**6])
@needs(Launches)
def test_stream_accepts_any_priority(device: Device, priority: int) -> None:
    stream, done = Stream(device, priority=priority), list[int]()
    assert stream.handle
    enqueue_call(stream, lambda: done.append(1))
    stream.synchronize()
    assert done == [1]


@pytest.mark.parametrize("wrong", [True, 1.5, "high", None])
def test_invalid_streams_and_priorities_are_rejected(device: Device, wrong: Any) -> None:
    missing = Device(device.kind, forebay.device_count(device.kind))
    for call_invalid, error in (
        (lambda: Stream(device, priority=wrong), TypeError),
        (lambda: forebay.set_stream(wrong), TypeError),
        (lambda: Event().record((wrong,)), RuntimeError),  # type: ignore[arg-type]  # deliberately invalid
        (lambda: Stream(missing), ForebayError),
        (lambda: forebay.current_stream(missing), ForebayError),
        (lambda: Stream("no device"), RuntimeError),
    ):
        with pytest.raises(error):
            call_invalid()
    assert forebay.current_device() == device
    assert forebay.current_stream() == forebay.default_stream(device)


# ---- Order


@needs(Launches)
def test_stream_runs_work_in_order(device: Device) -> None:
    stream, gate, done = Stream(device), Gate(), list[int]()
    enqueue_call(stream, gate)
    for number in range(100):
        enqueue_call(stream, lambda number=number: done.append(number))  # type: ignore[misc]  # mypy does not see the default
    assert not stream.query()
    assert done == []
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert done == list(range(100))


@needs(Launches)
def test_streams_run_independently(device: Device) -> None:
    blocked, free, gate = Stream(device), Stream(device), Gate()
    enqueue_call(blocked, gate)
    event = Event(device)
    event.record(free)  # no function of the host: a driver may call those of all streams one after another
    free.synchronize()
    assert event.query()
    assert not blocked.query()
    gate.open()
    blocked.synchronize()


@needs(Launches)
def test_stream_waits_for_another_stream(device: Device) -> None:
    first, second, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    enqueue_call(first, gate)
    enqueue_call(first, lambda: done.append("first"))
    second.wait_stream(first)
    enqueue_call(second, lambda: done.append("second"))
    first.wait_stream(first)  # no effect
    assert not second.query()
    gate.open()
    second.synchronize()
    assert done == ["first", "second"]
    first.synchronize()


@needs(Launches)
def test_stream_waits_for_event(device: Device) -> None:
    first, second, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    enqueue_call(first, gate)
    enqueue_call(first, lambda: done.append("before"))
    event = first.record_event()
    enqueue_call(first, lambda: done.append("after"))
    second.wait_event(event)
    with second:
        event.wait()  # on the current stream; a repeated wait has no effect
    enqueue_call(second, lambda: done.append("second"))
    assert not event.query()
    assert not second.query()
    gate.open()
    second.synchronize()
    assert event.query()
    assert done.index("before") < done.index("second")
    first.synchronize()


def test_streams_wait_for_each_other_alternately(device: Device) -> None:
    first, second, event = Stream(device), Stream(device), Event()
    for _ in range(200):
        event.record(first)
        second.wait_event(event)
        first.wait_stream(second)
    first.synchronize()
    assert event.query()


@needs(Launches)
def test_synchronize_waits_for_all_streams(device: Device) -> None:
    streams, done = [Stream(device) for _ in range(4)], list[int]()
    for stream in streams:
        enqueue_call(stream, lambda: done.append(1))
    forebay.synchronize()
    assert done == [1] * 4
    assert all(stream.query() for stream in streams)


@needs(Launches)
def test_two_threads_share_a_stream(device: Device) -> None:
    stream, done = Stream(device), list[int]()

    def work(number: int) -> None:
        for _ in range(200):
            enqueue_call(stream, lambda: done.append(number))
        stream.synchronize()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    assert sorted(done) == [0] * 200 + [1] * 200
    assert stream.query()


@needs(Launches)
def test_streams_of_two_devices_wait_for_each_other(device: Device) -> None:
    here, there, gate, done = Stream(device), Stream(other_device(device)), Gate(), list[str]()
    enqueue_call(here, gate)
    enqueue_call(here, lambda: done.append("here"))
    there.wait_stream(here)
    enqueue_call(there, lambda: done.append("there"))
    here.wait_event(there.record_event())
    enqueue_call(here, lambda: done.append("here again"))
    assert not there.query()
    gate.open()
    here.synchronize()
    assert done == ["here", "there", "here again"]
    assert there.query()


# ---- The current stream


def test_stream_is_current_inside_with_block(device: Device) -> None:
    outer, inner, default = Stream(device), Stream(device), forebay.default_stream(device)
    seen = []
    with outer:
        seen.append(forebay.current_stream())
        with inner, outer, outer:
            seen.append(forebay.current_stream())
        with inner:
            seen.append(forebay.current_stream())
        seen.append(forebay.current_stream())
    assert seen == [outer, outer, inner, outer]
    assert forebay.current_stream() == default
    forebay.set_stream(inner)
    with outer:
        pass
    assert forebay.current_stream() == inner
    forebay.set_stream(default)


def test_exception_restores_the_previous_stream(device: Device) -> None:
    stream = Stream(device)
    with pytest.raises(KeyError, match="raised inside"), stream:
        raise KeyError("raised inside")
    assert forebay.current_stream() == forebay.default_stream(device)


def test_with_block_switches_the_device(device: Device) -> None:
    other = other_device(device)
    with Stream(other) as stream:
        assert forebay.current_device() == other
        assert forebay.current_stream() == forebay.current_stream(other) == stream
        assert forebay.current_stream(device) == forebay.default_stream(device)
    assert forebay.current_device() == device
    assert forebay.current_stream(other) == forebay.default_stream(other)


def test_exit_without_enter_raises(device: Device) -> None:
    stream = Stream(device)
    with pytest.raises(WrongState, match="was not entered by this thread"):
        stream.__exit__(None, None, None)
    with stream, ThreadPoolExecutor(1) as thread:
        assert isinstance(thread.submit(stream.__exit__, None, None, None).exception(20), WrongState)


def test_current_stream_is_per_thread(device: Device) -> None:
    stream, default = Stream(device), forebay.default_stream(device)
    with stream, ThreadPoolExecutor(1) as thread:
        assert thread.submit(forebay.current_stream, device).result(20) == default
        thread.submit(forebay.set_stream, Stream(device)).result(20)
        assert forebay.current_stream() == stream
    assert forebay.current_stream() == default
