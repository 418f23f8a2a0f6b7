"""Tests of runtime events: query, wait, re-recording, elapsed time."""

from __future__ import annotations

import pytest

import forebay
from forebay import Event, Stream
from forebay._base.device_spec import Device
from forebay.spi import Launches, Timing
from forebay.testing.conformance.helpers import MIB, Gate, enqueue_call, needs, other_device

__all__ = [
    "test_elapsed_time_between_events",
    "test_elapsed_time_requires_completed_timing_events",
    "test_event_is_bound_to_its_first_device",
    "test_rerecorded_event_refers_to_last_recording",
    "test_unrecorded_event_does_not_block",
]


def test_unrecorded_event_does_not_block(device: Device) -> None:
    event = Event()
    assert event.query()
    event.synchronize()
    Stream(device).wait_event(event)
    event.wait()


@needs(Launches)
def test_rerecorded_event_refers_to_last_recording(device: Device) -> None:
    event, early, late, gate = Event(), Stream(device), Stream(device), Gate()
    event.record(early)
    event.synchronize()
    enqueue_call(late, gate)
    event.record(late)
    assert not event.query()
    early.wait_event(event)
    event.record(early)
    assert not event.query()  # the stream waits for the previous recording
    gate.open()
    event.synchronize()
    assert event.query()
    assert late.query()


def test_event_is_bound_to_its_first_device(device: Device) -> None:
    other = other_device(device)
    event = Stream(device).record_event()
    message = f"^Event device index {device.index} does not match recording stream's device index {other.index}"
    with pytest.raises(RuntimeError, match=message):
        event.record(Stream(other))
    event.synchronize()
    assert event.device == device


@needs(Timing)
def test_elapsed_time_between_events(device: Device) -> None:
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    stream, target = Stream(device), forebay.empty(MIB, dtype="uint8", device=device)
    start.record(stream)
    with stream:
        target.fill_(1)
    end.record(stream)
    end.synchronize()
    assert 0 <= start.elapsed_time(end) < 60_000
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    assert start.elapsed_time(start) == 0


@needs(Timing, Launches)
def test_elapsed_time_requires_completed_timing_events(device: Device) -> None:
    stream, plain, timed, gate = Stream(device), Event(), Event(enable_timing=True), Gate()
    with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
        timed.elapsed_time(plain)
    with pytest.raises(ValueError, match="must be recorded before"):
        timed.elapsed_time(timed)
    enqueue_call(stream, gate)
    timed.record(stream)
    with pytest.raises(RuntimeError, match="must be completed before"):
        timed.elapsed_time(timed)
    gate.open()
    timed.synchronize()
    assert timed.elapsed_time(timed) == 0
