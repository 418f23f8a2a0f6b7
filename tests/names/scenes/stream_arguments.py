"""Arguments of streams: devices, PyTorch's numbers, handles, events, and objects that are not streams."""

from __future__ import annotations

import copy
import pickle

from support.on_oracle import outcome

FRESH_PROCESS = True

DIFFERS = {
    "not_a_stream": "the error names the expected type",
    "handles_of_other_devices": "the device has no such stream",
    "unknown_numbers": "the device has no such stream",
}

DEVICES = ("cuda", "cuda:1", "cuda:2", "cpu", "foo", "cuda0", 0, 1, 2, -1, -2, None)


def describe(numbers, stream):
    """Return keywords as text, without the numbers that differ between runs."""
    shown = {stream.stream_id: "id", stream.cuda_stream: "handle"}
    return str({name: shown.get(value, value) if value.__class__ is int else value for name, value in numbers.items()})


def of_devices(cuda, torch_like):
    makers = {"cuda": cuda.Stream, "torch": torch_like.Stream}
    return {
        f"{name}({device!r})": outcome(cuda, lambda make=make, device=device: str(make(device).device))
        for name, make in makers.items()
        for device in DEVICES
        if (name, device) not in (("torch", "cpu"), ("torch", -2))  # the CPU device has streams
    }


def wrapped_by_numbers(cuda, torch_like):
    stream = cuda.Stream()
    here = {"stream_id": stream.stream_id, "device_index": 0, "device_type": 1}
    wrong = ("x", None, 1.5, [])
    every = [
        here, {"stream_id": stream.stream_id}, {"stream_id": stream.stream_id, "device_index": 0},
        {"stream_id": stream.stream_id, "device_type": 1}, here | {"device_index": 1}, here | {"stream_id": 0},
        here | {"device_index": 9}, here | {"device_index": -1}, here | {"device_type": 0},
        here | {"device_type": 13}, here | {"stream_id": 0, "device_type": 0}, {"device_index": 1}, {"device_type": 1},
        {"device_index": 1, "device_type": 1}, here | {"priority": -1}, here | {"device": "cuda:1"},
        *(here | {name: value} for name in here for value in wrong),
    ]  # fmt: skip

    def make(numbers):
        made = cuda.Stream(**numbers)
        return made == stream, made.stream_id, str(made.device), made.device_type, made.priority

    return {describe(numbers, stream): outcome(cuda, make, numbers) for numbers in every}


def general_streams_by_numbers(cuda, torch_like):
    stream = torch_like.Stream("cuda:1")
    here = {"stream_id": stream.stream_id, "device_index": 1, "device_type": 1}

    def make(numbers):
        made = torch_like.Stream(**numbers)
        return made == stream, str(made.device), made.device_index, made.device_type

    every = [here, here | {"stream_id": 0}, here | {"device_index": 0}, {"stream_id": 0}, {"device_index": 0}]
    every += [{"stream_id": 0, "device_index": 0}, here | {"stream_id": "x"}, here | {"device_type": 1.5}]
    return [outcome(cuda, make, numbers) for numbers in every]


def unknown_numbers(cuda, torch_like):
    return outcome(cuda, lambda: cuda.Stream(stream_id=12345, device_index=0, device_type=1).device_index)


def priorities(cuda, torch_like):
    values = (0, -1, True, 1 << 40, -(1 << 40), 1.5, None, "x")
    classes = {"cuda": cuda.Stream, "torch": torch_like.Stream}
    return {
        f"{name}({value!r})": outcome(cuda, lambda make=make, value=value: str(make(priority=value).device))
        for name, make in classes.items()
        for value in values
        if name == "cuda" or not isinstance(value, int) or abs(value) < 1 << 31
    }


def texts(cuda, torch_like):
    general, stream = torch_like.Stream("cuda:1"), cuda.Stream(1)
    return (
        repr(general).replace("torch", "forebay") == f"forebay.Stream device_type=cuda, device_index=1, "
        f"stream_id={general.stream_id}",
        repr(stream).replace("torch", "forebay") == f"<forebay.cuda.Stream device=cuda:1 "
        f"cuda_stream={stream.cuda_stream:#x}>",
        isinstance(stream, torch_like.Stream),
    )


def wrapped_by_handle(cuda, torch_like):
    stream = cuda.Stream()
    pointers = {"None": None, "str": "x", "float": 1.5, "list": [], "stream": stream, "negative": -1, "wide": 1 << 70}
    pointers |= {"zero": 0, "own": stream.cuda_stream}

    def seen(made):
        return type(made).__name__, made.stream_id == made.cuda_stream, made.device_index, made == stream

    results = {}
    for name, pointer in pointers.items():
        results[name] = [
            outcome(cuda, lambda p=pointer: seen(cuda.ExternalStream(p))),
            outcome(cuda, lambda p=pointer: seen(cuda.ExternalStream(stream_ptr=p, device=-1))),
            outcome(cuda, lambda p=pointer: seen(cuda.Stream(stream_ptr=p))),
            outcome(cuda, cuda.ExternalStream, pointer, device_index=1),
            outcome(cuda, lambda p=pointer: seen(cuda.get_stream_from_external(p))).get("value"),
        ]
    return results


def handles_of_other_devices(cuda, torch_like):
    stream = cuda.Stream()
    return outcome(cuda, lambda: cuda.ExternalStream(stream.cuda_stream, 1).device_index)


def devices_of_external_streams(cuda, torch_like):
    stream = cuda.Stream()
    devices = ("cuda", "cuda:0", "cuda:2", "cpu", "foo", 0, 2, -1, True, None)
    return [outcome(cuda, lambda d=each: str(cuda.ExternalStream(stream.cuda_stream, d).device)) for each in devices]


def set_by_numbers(cuda, torch_like):
    stream = cuda.Stream()
    number = stream.stream_id
    every = ((number, 0, 1), (number, 0, 0), (number, 1, 1), (0, 9, 1), ("x", 0, 1), (None, 0, 1), (0, 0, "x"))
    results = []
    for numbers in (*every, (0, 1.5, 1)):
        found = outcome(cuda, cuda._set_stream_by_id, *numbers)
        results.append((found, cuda.current_device(), cuda.current_stream() == stream))
        cuda.set_stream(cuda.default_stream(0))
    return results


def not_a_stream(cuda, torch_like):
    def enter(stream):
        with cuda.stream(stream):
            pass

    return [(outcome(cuda, enter, each), outcome(cuda, cuda.set_stream, each)) for each in (3, "x", object())]


def contexts(cuda, torch_like):
    general = torch_like.Stream("cuda:1")
    with cuda.stream(general):
        inside = cuda.current_device(), cuda.current_stream() == general
    with cuda.stream(None):
        pass
    cuda.set_stream(general)
    same = cuda.current_stream() == general, general == cuda.current_stream(), general == torch_like.Stream("cuda:1")
    return inside, cuda.current_device(), same, outcome(cuda, cuda.set_stream, None)


def exits_without_entering(cuda, torch_like):
    nothing = None, None, None
    guards = (cuda.device(1), cuda._DeviceGuard(1), cuda.device_of(torch_like.empty(1, device="cuda:1")))
    found = [outcome(cuda, guard.__exit__, *nothing) for guard in guards]
    found.append(outcome(cuda, torch_like.accelerator.device_index(1).__exit__, *nothing))
    return found, cuda.current_device(), outcome(cuda, cuda.stream(None).__exit__, *nothing)


def exits_return(cuda, torch_like):
    makers = (lambda: cuda.device(1), lambda: cuda._DeviceGuard(1), lambda: cuda.device(None))
    makers += (lambda: cuda.stream(cuda.Stream(1)), lambda: torch_like.accelerator.device_index(1))
    results = []
    for make in makers:
        guard = make()
        guard.__enter__()
        results.append((guard.__exit__(None, None, None), guard.__exit__(None, None, None), cuda.current_device()))
    return results


def methods(cuda, torch_like):
    stream, general, event = cuda.Stream(), torch_like.Stream("cuda"), cuda.Event()
    event.record()
    results = {}
    for name, wrong in {"None": None, "int": 3, "str": "x", "object": object()}.items():
        for method in ("wait_event", "wait_stream", "record_event"):
            results[f"cuda {method}({name})"] = outcome(cuda, getattr(stream, method), wrong).get("error")
        results[f"torch record_event({name})"] = outcome(cuda, general.record_event, wrong)
        results[f"torch == {name}"] = general == wrong, stream == wrong
    results["other device"] = outcome(cuda, cuda.Stream(1).record_event, event)["error"]
    results["general"] = outcome(cuda, general.record_event, general)
    return results


def attributes_cannot_be_set(cuda, torch_like):
    names = ("device", "device_index", "stream_id", "cuda_stream", "priority", "device_type", "native_handle")
    return [outcome(cuda, setattr, cuda.Stream(), name, 3).get("error") for name in names], [
        outcome(cuda, setattr, stream, "device", 3) for stream in (cuda.Stream(), torch_like.Stream("cuda"))
    ]


def copies(cuda, torch_like):
    every = (cuda.Stream(), cuda.ExternalStream(0))
    return [outcome(cuda, use, stream) for stream in every for use in (copy.copy, copy.deepcopy, pickle.dumps)]


def recording_uses_of_memory(cuda, torch_like):
    tensor = torch_like.empty(4, device="cuda")
    wrong = (None, 3, "x", object(), cuda.Event(), cuda.Stream, tensor)
    found = [outcome(cuda, tensor.record_stream, each) for each in (*wrong, cuda.Stream(), torch_like.Stream("cuda"))]
    return found, outcome(cuda, torch_like.empty(1).record_stream, 3)


def capturing(cuda, torch_like):
    return torch_like.Stream("cuda").is_capturing(), cuda.Stream().is_capturing()
