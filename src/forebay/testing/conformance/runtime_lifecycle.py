"""Tests of the runtime: failures of queued work, deletion of objects with pending work, fork, exit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import forebay
from forebay import DeviceError, Event, Forked, Stream
from forebay._base.device_spec import Device
from forebay.spi import Launches, SurvivesFork
from forebay.testing.conformance.helpers import (
    MIB,
    Gate,
    enqueue_call,
    needs,
    needs_memory,
    port_of,
    run_in_child,
    run_in_new_process,
)

__all__ = [
    "test_failure_of_queued_work_is_raised_once",
    "test_forked_child_cannot_use_the_device",
    "test_forked_child_continues_to_use_the_device",
    "test_pending_work_keeps_deleted_stream_and_memory_valid",
    "test_queued_work_completes_at_exit",
]


@needs(Launches)
@pytest.mark.parametrize("wait", [Stream.synchronize, lambda stream: forebay.synchronize(stream.device)])
def test_failure_of_queued_work_is_raised_once(device: Device, wait: Callable[[Stream], None]) -> None:
    stream, done = Stream(device), list[int]()

    def fail() -> None:
        raise LookupError("seven")

    enqueue_call(stream, fail)
    enqueue_call(stream, lambda: done.append(1))
    with pytest.raises(DeviceError, match="LookupError: seven") as caught:
        wait(stream)
    assert isinstance(caught.value.__cause__, LookupError)
    wait(stream)
    forebay.synchronize()
    assert done == [1]


@needs(Launches)
@needs_memory
def test_pending_work_keeps_deleted_stream_and_memory_valid(device: Device) -> None:
    stream, gate = Stream(device), Gate()
    target = forebay.zeros(MIB, dtype="uint8", device=device)
    stream.wait_stream(forebay.current_stream())
    enqueue_call(stream, gate)
    with stream:
        source = forebay.full((MIB,), 7, dtype="uint8", device=device)
        target.copy_(source)
    del source, stream
    others = [forebay.full((MIB,), 9, dtype="uint8", device=device) for _ in range(4)]
    gate.open()
    forebay.synchronize()
    assert set(target.tolist()) == {7}
    assert all(set(other.tolist()) == {9} for other in others)


@needs(Launches)
def test_forked_child_cannot_use_the_device(device: Device) -> None:
    if isinstance(port_of(device), SurvivesFork):
        pytest.skip(f"{device.kind} survives a fork")
    stream, event, gate, done = Stream(device), Event(), Gate(), threading.Event()
    tensor = forebay.zeros(4, device=device)
    enqueue_call(stream, gate)
    event.record(stream)
    enqueue_call(stream, done.set)

    def check() -> None:
        for operation in (
            stream.query,
            stream.synchronize,
            stream.__enter__,
            event.synchronize,
            lambda: event.record(stream),
            lambda: Stream(device),
            forebay.synchronize,
            tensor.zero_,
        ):
            with pytest.raises(Forked):
                operation()

    failure = run_in_child(check)
    gate.open()
    stream.synchronize()
    assert failure == ""
    assert done.is_set()


@needs(SurvivesFork, Launches)
def test_forked_child_continues_to_use_the_device(device: Device) -> None:
    tensor = forebay.zeros(4, device=device)
    stream, event = Stream(device), Event()
    enqueue_call(stream, lambda: None)
    event.record(stream)
    forebay.synchronize(device)

    def check() -> None:
        assert event.query()
        event.synchronize()
        done: list[int] = []
        for each in (stream, Stream(device)):
            enqueue_call(each, lambda: done.append(1))
            each.wait_event(event)
        tensor.zero_()
        other = forebay.zeros(4, device=device)
        other.copy_(tensor)
        forebay.synchronize()
        assert done == [1, 1]
        assert stream.query()

    assert run_in_child(check) == ""
    stream.synchronize()


@needs(Launches)
@needs_memory
def test_queued_work_completes_at_exit(device: Device) -> None:
    program = """
import os
streams = [forebay.Stream(name) for _ in range(3)]
for stream in streams:
    for _ in range(100):
        stream.queue.call(lambda: None)
    stream.queue.call(lambda: os.write(1, b"done "))
"""
    assert run_in_new_process(device, program) == "done " * 3
