"""Streams, events and devices of forebay.cuda on an emulated device, compared with torch.cuda over a stand-in runtime.

Nanoseconds of processor time of the calling thread. The time of the queue's thread does not count; PyTorch's stand-in
has no queue.
"""

from __future__ import annotations

import os

from beside_pytorch import Row, rows

BOUNDS = {"with cuda.stream(s): pass": 8, "current_stream()": 10, "Event.record()": 8}  # 1 for all others
STREAMS = ("with cuda.stream(s) of another device: pass", "default_stream()", "set_stream(s)", "Stream()")
STREAMS += ("Stream.query()", "Stream.synchronize()", "Stream.wait_stream(other)", "Stream.wait_event(event)")
EVENTS = ("Event()", "Event(enable_timing=True)", "timed Event.record()", "Event.query()", "Event.synchronize()")
EVENTS += ("Event.elapsed_time(other)",)
DEVICES = ("with cuda.device(0): pass", "with cuda.device(1): pass", "current_device()", "set_device(0)")
DEVICES += (
    "device_count()",
    "is_available()",
    "get_device_properties()",
    "get_device_name()",
    "synchronize()",
    "memory_allocated()",
    "get_rng_state()",
)


def main() -> None:
    os.environ["FAKE_CUDA_DEVICES"] = "2"  # read when the stand-in is loaded
    named = [*BOUNDS, *STREAMS, *EVENTS, *DEVICES]
    wanted: tuple[Row, ...] = tuple((name, name, name, BOUNDS.get(name, 1)) for name in named)
    rows("cuda_programs", "Nanoseconds per call", "calls", wanted)


if __name__ == "__main__":
    main()
