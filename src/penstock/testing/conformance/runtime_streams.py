"""Streams and events of the runtime, as a program sees them on any kind of device: `penstock.Stream` and the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock import Device, DeviceError, Event, Forked, PenstockError, Stream, WrongState
from penstock.spi import Launches, Reopens, Timing
from penstock.testing.conformance.scenes import (
    MIB,
    Gate,
    in_child,
    in_new_process,
    needs,
    not_imaginary,
    port_of,
)

__all__ = [
    "test_a_child_of_a_process_that_uses_the_device",
    "test_a_child_opens_the_device_again",
    "test_a_failure_of_work_is_told_once",
    "test_a_moved_event_is_where_it_is_now",
    "test_a_stream_and_its_memory_may_go_before_their_work_is_done",
    "test_a_stream_is_current_inside_its_block",
    "test_a_stream_left_by_an_error_is_left",
    "test_a_stream_of_another_device_is_current_inside",
    "test_a_stream_that_was_not_entered_cannot_be_left",
    "test_a_stream_waits_for_an_event",
    "test_a_stream_waits_for_another",
    "test_an_event_never_recorded_holds_nobody_up",
    "test_an_event_stays_on_its_device",
    "test_at_exit_queued_work_is_done",
    "test_every_priority_works",
    "test_milliseconds_between_events",
    "test_new_streams_are_apart_or_come_in_turn",
    "test_streams_are_not_in_each_others_way",
    "test_streams_of_two_devices_wait_for_each_other",
    "test_streams_that_wait_in_turn",
    "test_synchronize_waits_for_every_stream",
    "test_the_current_stream_is_the_threads_own",
    "test_the_default_stream_is_there_from_the_start",
    "test_two_threads_use_one_stream",
    "test_what_cannot_be_timed",
    "test_what_is_no_stream",
    "test_work_of_a_stream_is_done_in_order",
]


def _call(stream: Stream, function: Callable[[], object]) -> None:
    queue = stream.queue
    assert isinstance(queue, Launches)
    queue.call(function)


def _neighbour(device: Device) -> Device:
    """Another device of the kind; without one the test is skipped."""
    count = penstock.device_count(device.kind)
    if count < 2:
        pytest.skip(f"there is no other device of kind {device.kind}")
    return Device(device.kind, ((device.index or 0) + 1) % count)


# ---- Which streams there are


def test_the_default_stream_is_there_from_the_start(device: Device) -> None:
    default = penstock.default_stream(device)
    assert (default.handle, default.stream_id, default.device) == (0, 0, device)
    assert penstock.current_stream() == penstock.current_stream(device) == default
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
    stream, done = Stream(device, priority), list[int]()
    assert stream.handle
    _call(stream, lambda: done.append(1))
    stream.synchronize()
    assert done == [1]


@pytest.mark.parametrize("wrong", [True, 1.5, "high", None])
def test_what_is_no_stream(device: Device, wrong: Any) -> None:
    beyond = Device(device.kind, penstock.device_count(device.kind))
    for use, error in (
        (lambda: Stream(device, wrong), TypeError),
        (lambda: penstock.set_stream(wrong), TypeError),
        (lambda: Event().record((wrong,)), TypeError),  # type: ignore[arg-type]  # that is the test
        (lambda: Stream(beyond), PenstockError),
        (lambda: penstock.current_stream(beyond), PenstockError),
        (lambda: Stream("no device"), ValueError),
    ):
        with pytest.raises(error):
            use()
    assert penstock.current_device() == device
    assert penstock.current_stream() == penstock.default_stream(device)


# ---- Order


@needs(Launches)
def test_work_of_a_stream_is_done_in_order(device: Device) -> None:
    stream, gate, done = Stream(device), Gate(), list[int]()
    _call(stream, gate)
    for number in range(100):
        _call(stream, lambda number=number: done.append(number))  # type: ignore[misc]  # mypy does not see the default
    assert not stream.query()
    assert done == []
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert done == list(range(100))


@needs(Launches)
def test_streams_are_not_in_each_others_way(device: Device) -> None:
    held, free, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    _call(held, gate)
    _call(free, lambda: done.append("free"))
    free.synchronize()
    assert done == ["free"]
    assert not held.query()
    gate.open()
    held.synchronize()


@needs(Launches)
def test_a_stream_waits_for_another(device: Device) -> None:
    first, second, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    _call(first, gate)
    _call(first, lambda: done.append("first"))
    second.wait_stream(first)
    _call(second, lambda: done.append("second"))
    first.wait_stream(first)  # itself: nothing to wait for
    assert not second.query()
    gate.open()
    second.synchronize()
    assert done == ["first", "second"]
    first.synchronize()


@needs(Launches)
def test_a_stream_waits_for_an_event(device: Device) -> None:
    first, second, gate, done = Stream(device), Stream(device), Gate(), list[str]()
    _call(first, gate)
    _call(first, lambda: done.append("before"))
    event = first.record_event()
    _call(first, lambda: done.append("behind"))
    second.wait_event(event)
    with second:
        event.wait()  # of the current stream; twice is once
    _call(second, lambda: done.append("second"))
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
        _call(stream, lambda: done.append(1))
    penstock.synchronize()
    assert done == [1] * 4
    assert all(stream.query() for stream in streams)


@needs(Launches)
def test_two_threads_use_one_stream(device: Device) -> None:
    stream, done = Stream(device), list[int]()

    def work(number: int) -> None:
        for _ in range(200):
            _call(stream, lambda: done.append(number))
        stream.synchronize()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    assert sorted(done) == [0] * 200 + [1] * 200
    assert stream.query()


@needs(Launches)
def test_streams_of_two_devices_wait_for_each_other(device: Device) -> None:
    here, there, gate, done = Stream(device), Stream(_neighbour(device)), Gate(), list[str]()
    _call(here, gate)
    _call(here, lambda: done.append("here"))
    there.wait_stream(here)
    _call(there, lambda: done.append("there"))
    here.wait_event(there.record_event())
    _call(here, lambda: done.append("here again"))
    assert not there.query()
    gate.open()
    here.synchronize()
    assert done == ["here", "there", "here again"]
    assert there.query()


# ---- Events


def test_an_event_never_recorded_holds_nobody_up(device: Device) -> None:
    event = Event()
    assert event.query()
    event.synchronize()
    Stream(device).wait_event(event)
    event.wait()


@needs(Launches)
def test_a_moved_event_is_where_it_is_now(device: Device) -> None:
    event, early, late, gate = Event(), Stream(device), Stream(device), Gate()
    event.record(early)
    event.synchronize()
    _call(late, gate)
    event.record(late)
    assert not event.query()
    early.wait_event(event)
    event.record(early)
    assert not event.query()  # as that stream waits for where the event was
    gate.open()
    event.synchronize()
    assert event.query()
    assert late.query()


def test_an_event_stays_on_its_device(device: Device) -> None:
    other = _neighbour(device)
    event = Stream(device).record_event()
    with pytest.raises(RuntimeError, match=rf"^Event device {device} does not match recording stream's device {other}"):
        event.record(Stream(other))
    event.synchronize()
    assert event.device == device


@needs(Timing)
def test_milliseconds_between_events(device: Device) -> None:
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    stream, target = Stream(device), penstock.empty(MIB, dtype="uint8", device=device)
    start.record(stream)
    with stream:
        target.fill_(1)
    end.record(stream)
    end.synchronize()
    assert 0 <= start.elapsed_time(end) < 60_000
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    assert start.elapsed_time(start) == 0


@needs(Timing, Launches)
def test_what_cannot_be_timed(device: Device) -> None:
    stream, plain, timed, gate = Stream(device), Event(), Event(enable_timing=True), Gate()
    with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
        timed.elapsed_time(plain)
    with pytest.raises(ValueError, match="must be recorded before"):
        timed.elapsed_time(timed)
    _call(stream, gate)
    timed.record(stream)
    with pytest.raises(RuntimeError, match="must be completed before"):
        timed.elapsed_time(timed)
    gate.open()
    timed.synchronize()
    assert timed.elapsed_time(timed) == 0


# ---- What is current


def test_a_stream_is_current_inside_its_block(device: Device) -> None:
    outer, inner, default = Stream(device), Stream(device), penstock.default_stream(device)
    seen = []
    with outer:
        seen.append(penstock.current_stream())
        with inner, outer, outer:
            seen.append(penstock.current_stream())
        with inner:
            seen.append(penstock.current_stream())
        seen.append(penstock.current_stream())
    assert seen == [outer, outer, inner, outer]
    assert penstock.current_stream() == default
    penstock.set_stream(inner)
    with outer:
        pass
    assert penstock.current_stream() == inner
    penstock.set_stream(default)


def test_a_stream_left_by_an_error_is_left(device: Device) -> None:
    stream = Stream(device)
    with pytest.raises(KeyError, match="in between"), stream:
        raise KeyError("in between")
    assert penstock.current_stream() == penstock.default_stream(device)


def test_a_stream_of_another_device_is_current_inside(device: Device) -> None:
    other = _neighbour(device)
    with Stream(other) as stream:
        assert penstock.current_device() == other
        assert penstock.current_stream() == penstock.current_stream(other) == stream
        assert penstock.current_stream(device) == penstock.default_stream(device)
    assert penstock.current_device() == device
    assert penstock.current_stream(other) == penstock.default_stream(other)


def test_a_stream_that_was_not_entered_cannot_be_left(device: Device) -> None:
    stream = Stream(device)
    with pytest.raises(WrongState, match="was not entered by this thread"):
        stream.__exit__(None, None, None)
    with stream, ThreadPoolExecutor(1) as thread:
        assert isinstance(thread.submit(stream.__exit__, None, None, None).exception(20), WrongState)


def test_the_current_stream_is_the_threads_own(device: Device) -> None:
    stream, default = Stream(device), penstock.default_stream(device)
    with stream, ThreadPoolExecutor(1) as thread:
        assert thread.submit(penstock.current_stream, device).result(20) == default
        thread.submit(penstock.set_stream, Stream(device)).result(20)
        assert penstock.current_stream() == stream
    assert penstock.current_stream() == default


# ---- Failures and ends


@needs(Launches)
@pytest.mark.parametrize("wait", [Stream.synchronize, lambda stream: penstock.synchronize(stream.device)])
def test_a_failure_of_work_is_told_once(device: Device, wait: Callable[[Stream], None]) -> None:
    stream, done = Stream(device), list[int]()

    def fail() -> None:
        raise LookupError("seven")

    _call(stream, fail)
    _call(stream, lambda: done.append(1))
    with pytest.raises(DeviceError, match="LookupError: seven") as caught:
        wait(stream)
    assert isinstance(caught.value.__cause__, LookupError)
    wait(stream)
    penstock.synchronize()
    assert done == [1]


@needs(Launches)
@not_imaginary
def test_a_stream_and_its_memory_may_go_before_their_work_is_done(device: Device) -> None:
    stream, gate = Stream(device), Gate()
    kept = penstock.zeros(MIB, dtype="uint8", device=device)
    stream.wait_stream(penstock.current_stream())
    _call(stream, gate)
    with stream:
        going = penstock.full((MIB,), 7, dtype="uint8", device=device)
        kept.copy_(going)
    del going, stream
    others = [penstock.full((MIB,), 9, dtype="uint8", device=device) for _ in range(4)]
    gate.open()
    penstock.synchronize()
    assert set(kept.tolist()) == {7}
    assert all(set(other.tolist()) == {9} for other in others)


@needs(Launches)
def test_a_child_of_a_process_that_uses_the_device(device: Device) -> None:
    stream, event, gate, done = Stream(device), Event(), Gate(), threading.Event()
    tensor = penstock.zeros(4, device=device)
    _call(stream, gate)
    event.record(stream)
    _call(stream, done.set)

    def check() -> None:
        for use in (
            stream.query,
            stream.synchronize,
            stream.__enter__,
            event.synchronize,
            lambda: event.record(stream),
            lambda: Stream(device),
            penstock.synchronize,
            tensor.zero_,
        ):
            with pytest.raises(Forked):
                use()

    told = in_child(check)
    gate.open()
    stream.synchronize()
    assert told == ""
    assert done.is_set()


@needs(Reopens, Launches)
def test_a_child_opens_the_device_again(device: Device) -> None:
    before = Stream(device)
    _call(before, lambda: None)
    before.synchronize()

    def check() -> None:
        penstock.reopen(device)
        done: list[int] = []
        with Stream(device) as stream:
            _call(stream, lambda: done.append(1))
        penstock.synchronize()
        assert done == [1]
        with pytest.raises(Forked):
            before.synchronize()

    assert in_child(check) == ""
    before.synchronize()


@needs(Launches)
@not_imaginary
def test_at_exit_queued_work_is_done(device: Device) -> None:
    program = """
import os
streams = [penstock.Stream(name) for _ in range(3)]
for stream in streams:
    for _ in range(100):
        stream.queue.call(lambda: None)
    stream.queue.call(lambda: os.write(1, b"done "))
"""
    assert in_new_process(device, program) == "done " * 3
