"""Arguments of events: flags, devices, streams, other events, handles of other processes."""

from __future__ import annotations

import copy
import pickle

from support.on_oracle import outcome

FRESH_PROCESS = True

DIFFERS = {
    "mixed_classes": "events of all classes can be compared",
    "not_a_stream_for_a_general_event": "PyTorch reads other memory",
}

VALUES = (True, False, 0, 1, 2, 255, 256, -1, 1 << 40, 1 << 70, None, "x", 1.5, [], b"")
FLAGS = ("enable_timing", "blocking", "interprocess", "external")


def flags(cuda, torch_like):
    return {
        f"{name}={value!r}": outcome(cuda, lambda name=name, value=value: cuda.Event(**{name: value}).query())
        for name in FLAGS
        for value in VALUES
    }


def flags_of_general_events(cuda, torch_like):
    return {
        f"{name}={value!r}": outcome(cuda, lambda name=name, value=value: torch_like.Event(**{name: value}).query())
        for name in FLAGS[:3]
        for value in VALUES
    }


def devices(cuda, torch_like):
    places = ("cuda", "cuda:1", "cuda:2", "foo", "cuda0", "", 0, 1, 99, -1, None)
    found = {f"{place!r}": outcome(cuda, lambda place=place: str(torch_like.Event(place).device)) for place in places}
    return found, str(torch_like.Event().device), str(torch_like.Event(device="cuda:1").device), cuda.Event().device


def devices_after_a_record(cuda, torch_like):
    general, event = torch_like.Event("cuda:0"), cuda.Event()
    general.record(torch_like.Stream("cuda:1"))
    event.record(cuda.Stream(1))
    return str(general.device), str(event.device)


def texts(cuda, torch_like):
    plain, timed, never = cuda.Event(), torch_like.Event("cuda", enable_timing=True), torch_like.Event("cuda")
    before = repr(plain).replace("torch", "forebay"), repr(timed).replace("torch", "forebay")
    plain.record()
    timed.record()
    return (
        *before,
        repr(never).replace("torch", "forebay"),
        repr(plain).replace("torch", "forebay") == f"<forebay.cuda.Event {plain.cuda_event:#x}>",
        repr(timed).replace("torch", "forebay")
        == f"forebay.Event device_type=cuda, device_index=0, event_flag=1, event_id={timed.event_id}",
        never.event_id,
    )


def not_a_stream(cuda, torch_like):
    recorded = cuda.Event()
    recorded.record()
    wrong = {"int": 3, "str": "x", "float": 1.5, "object": object(), "event": cuda.Event(), "class": cuda.Stream}
    return {
        f"{method}({name})": [outcome(cuda, getattr(event, method), each) for event in (cuda.Event(), recorded)]
        for method in ("record", "wait")
        for name, each in wrong.items()
    }


def not_a_stream_for_a_general_event(cuda, torch_like):
    return [outcome(cuda, torch_like.Event("cuda").wait, each) for each in (3, 1.5)]


def streams(cuda, torch_like):
    recorded, general = cuda.Event(), torch_like.Event("cuda")
    recorded.record()
    general.record()
    some = (None, cuda.Stream(), torch_like.Stream("cuda"))
    waits = [outcome(cuda, each.wait, stream) for each in (recorded, general, cuda.Event()) for stream in some]
    records = [outcome(cuda, each.record, stream) for each in (recorded, general) for stream in some]
    others = [outcome(cuda, each.record, cuda.Stream(1)) for each in (recorded, general)]
    return waits, records, [(each["error"], each["message"].partition(" ")[0]) for each in others]


def waiting_initialises(cuda, torch_like):
    event = cuda.Event()
    first = event.query(), event.synchronize(), cuda.is_initialized()
    return first, event.wait(), cuda.is_initialized()


def not_an_event(cuda, torch_like):
    timed, general = cuda.Event(enable_timing=True), torch_like.Event("cuda", enable_timing=True)
    wrong = (None, 3, "x", 1.5, object(), cuda.Stream(), torch_like.Stream("cuda"), cuda.Event)
    return [(outcome(cuda, timed.elapsed_time, each), outcome(cuda, general.elapsed_time, each)) for each in wrong]


def elapsed_times_of_general_events(cuda, torch_like):
    def make(timed, recorded):
        event = torch_like.Event("cuda", enable_timing=timed)
        if recorded:
            event.record()
            event.synchronize()
        return event

    every = {f"{timed}, {recorded}": make(timed, recorded) for timed in (True, False) for recorded in (True, False)}
    return {
        f"{first} to {second}": outcome(cuda, lambda a=a, b=b: a.elapsed_time(b) >= 0)
        for first, a in every.items()
        for second, b in every.items()
    }


def mixed_classes(cuda, torch_like):
    event, general = cuda.Event(enable_timing=True), torch_like.Event("cuda", enable_timing=True)
    for each in (event, general):
        each.record()
        each.synchronize()
    return outcome(cuda, event.elapsed_time, general), outcome(cuda, general.elapsed_time, event)


def attributes_cannot_be_set(cuda, torch_like):
    names = ("device", "event_id", "cuda_event")
    return [outcome(cuda, setattr, cuda.Event(), name, 3)["error"] for name in names], outcome(
        cuda, setattr, torch_like.Event("cuda"), "device", 3
    )["error"]


def copies(cuda, torch_like):
    return [outcome(cuda, use, cuda.Event()) for use in (copy.copy, copy.deepcopy, pickle.dumps)], [
        outcome(cuda, use, torch_like.Event("cuda"))["error"] for use in (copy.copy, pickle.dumps)
    ]


def invalid_handles(cuda, torch_like):
    handle = b"x" * 64
    every = ((0, b"x"), (0, b""), (0, "x"), (0, None), (0, 5), (9, handle), ("cpu", handle), ("mps", handle))
    every += ((None, handle), ("foo", handle), ("cuda0", handle), (-1, handle), (1.5, handle))
    return [outcome(cuda, cuda.Event.from_ipc_handle, *arguments) for arguments in every]
