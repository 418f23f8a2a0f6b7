"""Calls of forebay.cuda and torch.cuda: `cuda_programs.py forebay|pytorch calls` prints JSON, nanoseconds per call.

The same code runs on `forebay.cuda` with two emulated devices and on `torch.cuda` with two devices of the stand-in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from allocator_programs import calls, timed

Loop = Callable[[int], Any]


def in_stream(cuda: Any, stream: Any) -> Loop:
    def loop(count: int) -> None:
        for _ in range(count):
            with cuda.stream(stream):
                pass

    return loop


def on_device(cuda: Any, index: int) -> Loop:
    def loop(count: int) -> None:
        for _ in range(count):
            with cuda.device(index):
                pass

    return loop


def measure(cuda: Any) -> dict[str, float]:
    cuda.set_device(0)
    stream, other, remote = cuda.Stream(), cuda.Stream(), cuda.Stream(device=1)
    event, start, end = cuda.Event(), cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    for each in (event, start, end):
        each.record()
    cuda.synchronize()
    few, some, many = 2_000, 5_000, 20_000
    loops: dict[str, tuple[Loop, int]] = {
        "with cuda.stream(s): pass": (in_stream(cuda, stream), some),
        "with cuda.stream(s) of another device: pass": (in_stream(cuda, remote), few),
        "current_stream()": (calls(cuda.current_stream), many),
        "default_stream()": (calls(cuda.default_stream), some),
        "set_stream(s)": (calls(lambda: cuda.set_stream(stream)), some),
        "Stream()": (calls(cuda.Stream), some),
        "Stream.query()": (calls(stream.query), some),
        "Stream.synchronize()": (calls(stream.synchronize), some),
        "Stream.wait_stream(other)": (calls(lambda: stream.wait_stream(other)), few),
        "Stream.wait_event(event)": (calls(lambda: stream.wait_event(event)), few),
        "Event()": (calls(cuda.Event), some),
        "Event(enable_timing=True)": (calls(lambda: cuda.Event(enable_timing=True)), some),
        "Event.record()": (calls(event.record), some),
        "timed Event.record()": (calls(end.record), some),
        "Event.query()": (calls(event.query), some),
        "Event.synchronize()": (calls(event.synchronize), few),
        "get_rng_state()": (calls(cuda.get_rng_state), some),
        "with cuda.device(0): pass": (on_device(cuda, 0), some),
        "with cuda.device(1): pass": (on_device(cuda, 1), few),
        "current_device()": (calls(cuda.current_device), many),
        "set_device(0)": (calls(lambda: cuda.set_device(0)), some),
        "device_count()": (calls(cuda.device_count), some),
        "is_available()": (calls(cuda.is_available), some),
        "get_device_properties()": (calls(cuda.get_device_properties), some),
        "get_device_name()": (calls(cuda.get_device_name), some),
        "synchronize()": (calls(cuda.synchronize), few),
    }
    results = {}
    for name, (loop, count) in loops.items():
        cuda.set_device(0)
        cuda.set_stream(cuda.default_stream())
        results[name] = timed(loop, count)
        cuda.synchronize()
    results["Event.elapsed_time(other)"] = timed(calls(lambda: start.elapsed_time(end)), some)
    results["memory_allocated()"] = timed(calls(cuda.memory_allocated), few)
    return results


def forebay() -> dict[str, float]:
    import forebay
    from forebay import cuda

    with forebay.emulate("cuda", count=2):
        return measure(cuda)


def pytorch() -> dict[str, float]:
    from torch import cuda

    return measure(cuda)


if __name__ == "__main__":
    print(json.dumps({"forebay": forebay, "pytorch": pytorch}[sys.argv[1]]()))
