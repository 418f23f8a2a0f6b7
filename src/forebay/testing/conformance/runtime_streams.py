"""Streams of the runtime, as a program sees them on any kind of device: which there are, order, which is current."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import forebay
from forebay import Device, Event, ForebayError, Stream, WrongState
from forebay.spi import Launches
from forebay.testing.conformance.scenes import Gate, call, needs, neighbour, port_of

__all__ = [
    "test_a_stream_is_current_inside_its_block",
    "test_a_stream_left_by_an_error_is_left",
    "test_a_stream_of_another_device_is_current_inside",
    "test_a_stream_that_was_not_entered_cannot_be_left",
    "test_a_stream_waits_for_an_event",
    "test_a_stream_waits_for_another",
    "test_every_priority_works",
    "test_new_streams_are_apart_or_come_in_turn",
    "test_streams_are_not_in_each_others_way",
    "test_streams_of_two_devices_wait_for_each_other",
    "test_streams_that_wait_in_turn",
    "test_synchronize_waits_for_every_stream",
    "test_the_current_stream_is_the_threads_own",
    "test_the_default_stream_is_there_from_the_start",
    "test_two_threads_use_one_stream",
    "test_what_is_no_stream",
    "test_work_of_a_stream_is_done_in_order",
]


# ---- Which streams there are


def test_the_default_stream_is_there_from_the_start(device: Device) -> None:
    default = forebay.default_stream(device)
    assert (default.handle, default.stream_id, default.device) == (0, 0, device)
    assert forebay.current_stream() == forebay.current_stream(device) == default
    assert default != Stream(device)
    assert default.query()


def test_new_streams_are_apart_or_come_in_turn(device: Device) -> None:
    size = port_of(device).props.pooled_streams
    streams = [Stream(device) for _ in range((size or 40) + 1)]
    assert len({stream.stream_id for stream in streams}) == (size or 41)
    assert len({stream.handle for stream in streams} - {0}) == (size or 41)
    assert (streams[-1] == streams[0]) == bool(size)
    assert len(set(streams)) == (size or 41)


@pytest.mark.parametrize("priority", [0, -1, -3, -100, 5, 10**6])
@needs(Launches)
def test_every_priority_works(device: Device, priority: int) -> None:
    stream, done = Stream(device, priority=priority), list[int]()
    assert stream.handle
    call(stream, lambda: done.append(1))
    stream.synchronize()
    assert done == [1]


@pytest.mark.parametrize("wrong", [True, 1.5, "high", None])
def test_what_is_no_stream(device: Device, wrong: Any) -> None:
    beyond = Device(device.kind, forebay.device_count(device.kind))
    for use, error in (
        (lambda: Stream(device, priority=wrong), TypeError),
        (lambda: forebay.set_stream(wrong), TypeError),
        (lambda: Event().record((wrong,)), TypeError),  # type: ignore[arg-type]  # that is the test
        (lambda: Stream(beyond), ForebayError),
        (lambda: forebay.current_stream(beyond), ForebayError),
        (lambda: Stream("no device"), ValueError),
    ):
        with pytest.raises(error):
            use()
    assert forebay.current_device() == device
    assert forebay.current_stream() == forebay.default_stream(device)


# ---- Order


@needs(Launches)
def test_work_of_a_stream_is_done_in_order(device: Device) -> None:
    stream, gate, done = Stream(device), Gate(), list[int]()
    call(stream, gate)
    for number in range(100):
        call(stream, lambda number=number: done.append(number))  # type: ignore[misc]  # mypy does not see the default
    assert not stream.query()
    assert done == []
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert done == list(range(100))


@needs(Launches)
def test_streams_are_not_in_each_others_way(device: Device) -> None:
    held, free, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    call(held, gate)
    call(free, lambda: done.append("free"))
    free.synchronize()
    assert done == ["free"]
    assert not held.query()
    gate.open()
    held.synchronize()


@needs(Launches)
def test_a_stream_waits_for_another(device: Device) -> None:
    first, second, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    call(first, gate)
    call(first, lambda: done.append("first"))
    second.wait_stream(first)
    call(second, lambda: done.append("second"))
    first.wait_stream(first)  # itself: nothing to wait for
    assert not second.query()
    gate.open()
    second.synchronize()
    assert done == ["first", "second"]
    first.synchronize()


@needs(Launches)
def test_a_stream_waits_for_an_event(device: Device) -> None:
    first, second, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    call(first, gate)
    call(first, lambda: done.append("before"))
    event = first.record_event()
    call(first, lambda: done.append("behind"))
    second.wait_event(event)
    with second:
        event.wait()  # of the current stream; twice is once
    call(second, lambda: done.append("second"))
    assert not event.query()
    assert not second.query()
    gate.open()
    second.synchronize()
    assert event.query()
    assert done.index("before") < done.index("second")
    first.synchronize()


def test_streams_that_wait_in_turn(device: Device) -> None:
    first, second, event = Stream(device), Stream(device), Event()
    for _ in range(200):
        event.record(first)
        second.wait_event(event)
        first.wait_stream(second)
    first.synchronize()
    assert event.query()


@needs(Launches)
def test_synchronize_waits_for_every_stream(device: Device) -> None:
    streams, done = [Stream(device) for _ in range(4)], list[int]()
    for stream in streams:
        call(stream, lambda: done.append(1))
    forebay.synchronize()
    assert done == [1] * 4
    assert all(stream.query() for stream in streams)


@needs(Launches)
def test_two_threads_use_one_stream(device: Device) -> None:
    stream, done = Stream(device), list[int]()

    def work(number: int) -> None:
        for _ in range(200):
            call(stream, lambda: done.append(number))
        stream.synchronize()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    assert sorted(done) == [0] * 200 + [1] * 200
    assert stream.query()


@needs(Launches)
def test_streams_of_two_devices_wait_for_each_other(device: Device) -> None:
    here, there, gate, done = Stream(device), Stream(neighbour(device)), Gate(), list[str]()
    call(here, gate)
    call(here, lambda: done.append("here"))
    there.wait_stream(here)
    call(there, lambda: done.append("there"))
    here.wait_event(there.record_event())
    call(here, lambda: done.append("here again"))
    assert not there.query()
    gate.open()
    here.synchronize()
    assert done == ["here", "there", "here again"]
    assert there.query()


# ---- What is current


def test_a_stream_is_current_inside_its_block(device: Device) -> None:
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


def test_a_stream_left_by_an_error_is_left(device: Device) -> None:
    stream = Stream(device)
    with pytest.raises(KeyError, match="in between"), stream:
        raise KeyError("in between")
    assert forebay.current_stream() == forebay.default_stream(device)


def test_a_stream_of_another_device_is_current_inside(device: Device) -> None:
    other = neighbour(device)
    with Stream(other) as stream:
        assert forebay.current_device() == other
        assert forebay.current_stream() == forebay.current_stream(other) == stream
        assert forebay.current_stream(device) == forebay.default_stream(device)
    assert forebay.current_device() == device
    assert forebay.current_stream(other) == forebay.default_stream(other)


def test_a_stream_that_was_not_entered_cannot_be_left(device: Device) -> None:
    stream = Stream(device)
    with pytest.raises(WrongState, match="was not entered by this thread"):
        stream.__exit__(None, None, None)
    with stream, ThreadPoolExecutor(1) as thread:
        assert isinstance(thread.submit(stream.__exit__, None, None, None).exception(20), WrongState)


def test_the_current_stream_is_the_threads_own(device: Device) -> None:
    stream, default = Stream(device), forebay.default_stream(device)
    with stream, ThreadPoolExecutor(1) as thread:
        assert thread.submit(forebay.current_stream, device).result(20) == default
        thread.submit(forebay.set_stream, Stream(device)).result(20)
        assert forebay.current_stream() == stream
    assert forebay.current_stream() == default
