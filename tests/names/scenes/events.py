"""Events: recording, waiting, elapsed time, errors."""

from __future__ import annotations

from support.on_oracle import outcome


def unrecorded_event(cuda, torch_like):
    event = cuda.Event()
    properties = (event.query(), event.synchronize(), event.wait(), event.device, event.cuda_event)
    return properties, repr(event).replace("torch", "forebay"), (event.wait(cuda.Stream()) is None)


def recorded_event(cuda, torch_like):
    event = cuda.Event()
    event.record()
    event.synchronize()
    known = event.cuda_event == event.event_id > 0, event._as_parameter_.value == event.cuda_event
    return known, str(event.device), event.query(), f"{event.cuda_event:x}" in repr(event)


def event_is_bound_to_its_first_device(cuda, torch_like):
    event = cuda.Event()
    event.record(cuda.Stream(1))
    found = outcome(cuda, event.record, cuda.Stream(0))
    return found["error"], found["message"].startswith("Event device "), str(event.device)


def event_waits_across_devices(cuda, torch_like):
    event = cuda.Event()
    event.record(cuda.Stream(1))
    event.wait(cuda.Stream(0))
    event.wait()
    cuda.synchronize(0)
    return event.query()


def elapsed_times(cuda, torch_like):
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    elapsed = start.elapsed_time(end)
    return isinstance(elapsed, float), 0 <= elapsed < 10_000


def elapsed_time_errors(cuda, torch_like):
    timed, plain, never = cuda.Event(enable_timing=True), cuda.Event(), cuda.Event(enable_timing=True)
    timed.record()
    plain.record()
    cuda.synchronize()
    pairs = ((timed, never), (never, timed), (timed, plain), (plain, timed), (plain, plain), (never, never))
    return [outcome(cuda, start.elapsed_time, end) for start, end in pairs]


def constructor_flags(cuda, torch_like):
    every = cuda.Event(enable_timing=False, blocking=True, interprocess=False, external=False)
    every.record()
    every.synchronize()
    return every.query(), outcome(cuda, cuda.Event, 1, 2, 3, 4, 5)["error"], outcome(cuda, cuda.Event, wrong=1)["error"]


def subclasses(cuda, torch_like):
    return issubclass(cuda.ExternalStream, cuda.Stream), isinstance(cuda.current_stream(), cuda.Stream)
