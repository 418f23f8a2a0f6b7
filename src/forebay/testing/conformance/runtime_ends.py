"""How work on streams ends: by a failure, with what it was done on, in a fork, at exit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import forebay
from forebay import Device, DeviceError, Event, Forked, Stream
from forebay.spi import Launches, Reopens
from forebay.testing.conformance.scenes import MIB, Gate, call, in_child, in_new_process, needs, not_imaginary

__all__ = [
    "test_a_child_of_a_process_that_uses_the_device",
    "test_a_child_opens_the_device_again",
    "test_a_failure_of_work_is_told_once",
    "test_a_stream_and_its_memory_may_go_before_their_work_is_done",
    "test_at_exit_queued_work_is_done",
]


@needs(Launches)
@pytest.mark.parametrize("wait", [Stream.synchronize, lambda stream: forebay.synchronize(stream.device)])
def test_a_failure_of_work_is_told_once(device: Device, wait: Callable[[Stream], None]) -> None:
    stream, done = Stream(device), list[int]()

    def fail() -> None:
        raise LookupError("seven")

    call(stream, fail)
    call(stream, lambda: done.append(1))
    with pytest.raises(DeviceError, match="LookupError: seven") as caught:
        wait(stream)
    assert isinstance(caught.value.__cause__, LookupError)
    wait(stream)
    forebay.synchronize()
    assert done == [1]


@needs(Launches)
@not_imaginary
def test_a_stream_and_its_memory_may_go_before_their_work_is_done(device: Device) -> None:
    stream, gate = Stream(device), Gate()
    kept = forebay.zeros(MIB, dtype="uint8", device=device)
    stream.wait_stream(forebay.current_stream())
    call(stream, gate)
    with stream:
        going = forebay.full((MIB,), 7, dtype="uint8", device=device)
        kept.copy_(going)
    del going, stream
    others = [forebay.full((MIB,), 9, dtype="uint8", device=device) for _ in range(4)]
    gate.open()
    forebay.synchronize()
    assert set(kept.tolist()) == {7}
    assert all(set(other.tolist()) == {9} for other in others)


@needs(Launches)
def test_a_child_of_a_process_that_uses_the_device(device: Device) -> None:
    stream, event, gate, done = Stream(device), Event(), Gate(), threading.Event()
    tensor = forebay.zeros(4, device=device)
    call(stream, gate)
    event.record(stream)
    call(stream, done.set)

    def check() -> None:
        for use in (
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
                use()

    told = in_child(check)
    gate.open()
    stream.synchronize()
    assert told == ""
    assert done.is_set()


@needs(Reopens, Launches)
def test_a_child_opens_the_device_again(device: Device) -> None:
    before = Stream(device)
    call(before, lambda: None)
    before.synchronize()

    def check() -> None:
        forebay.reopen(device)
        done: list[int] = []
        with Stream(device) as stream:
            call(stream, lambda: done.append(1))
        forebay.synchronize()
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
streams = [forebay.Stream(name) for _ in range(3)]
for stream in streams:
    for _ in range(100):
        stream.queue.call(lambda: None)
    stream.queue.call(lambda: os.write(1, b"done "))
"""
    assert in_new_process(device, program) == "done " * 3
