"""Streams that NVIDIA's cuda.core creates, wrapped by their handles, on the software driver."""

from __future__ import annotations

import sys

import pytest
from support.cuda_core_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
theirs = device.create_stream()
stream = cuda.ExternalStream(int(theirs.handle))

def bytes_on(value):
    return forebay.full((4,), value, dtype=forebay.uint8, device="cuda")

def failure_of(function, *arguments):
    try:
        return function(*arguments)
    except forebay.DeviceError as error:
        return error.code, error.__notes__[-1].partition(",")[0].partition(" 0x")[0]
"""


def test_external_stream_orders_work_of_both_libraries():
    program = """
print(stream == cuda.get_stream_from_external(stream.cuda_stream), stream.stream_id == int(theirs.handle))
with cuda.stream(stream):
    print(cuda.current_stream() == stream)
    source = bytes_on(7)
gate = block(theirs.handle)
with cuda.stream(stream):
    copy = source.clone()
event = stream.record_event()
print(stream.query(), event.query())
cuda.current_stream().wait_event(event)
after = copy.clone()
theirs.wait(cuda.current_stream())
api.cuMemsetD8Async(copy.data_ptr(), 9, 4, theirs.handle)
cuda.current_stream().wait_stream(stream)
last = copy.clone()
gate.open()
cuda.current_stream().synchronize()
print(after.cpu().tolist(), last.cpu().tolist(), event.query(), stream.query())
start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
start.record(stream)
end.record(stream)
end.synchronize()
print(start.elapsed_time(end) >= 0)
"""
    assert output_of(BEGIN + program) == [
        "True True",
        "True",
        "False False",
        "[7, 7, 7, 7] [9, 9, 9, 9] True True",
        "True",
    ]


def test_memory_that_an_external_stream_uses_is_not_reused():
    program = """
gate = block(theirs.handle)
used = bytes_on(1)
address = used.data_ptr()
used.record_stream(stream)
del used
other = bytes_on(2)
print(other.data_ptr() == address)
gate.open()
stream.synchronize()
again = bytes_on(3)
print(again.data_ptr() == address)
del other, again
cuda.empty_cache()
print(cuda.memory_reserved())
"""
    assert output_of(BEGIN + program) == ["False", "True", "0"]


def test_device_wide_wait_includes_other_libraries():
    program = """
unknown = device.create_stream()
for wait in (cuda.synchronize, forebay.accelerator.synchronize):
    soft.softcuda_set_latency(ctypes.c_int64(100_000))
    for other in (unknown, theirs):
        api.cuMemsetD8Async(bytes_on(0).data_ptr(), 1, 4, other.handle)
    print(int(api.cuStreamQuery(unknown.handle)[0]), end=" ")
    wait()
    print(int(api.cuStreamQuery(unknown.handle)[0]), int(api.cuStreamQuery(theirs.handle)[0]))
    soft.softcuda_set_latency(ctypes.c_int64(0))
def fail():
    raise ValueError("in the stream")
stream.queue.call(fail)
for _ in range(2):
    try:
        print(cuda.synchronize())
    except forebay.DeviceError as error:
        print(str(error).partition("failed ")[2])
"""
    assert output_of(BEGIN + program) == ["600 0 0", "600 0 0", "with ValueError: in the stream", "None"]


def test_device_wide_wait_can_be_interrupted():
    program = """
import os, signal, time
unknown = device.create_stream()
cuda.synchronize()
before = soft.softcuda_live(b"events")
gate = block(unknown.handle)
for _ in range(2):
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        cuda.synchronize()
    except KeyboardInterrupt:
        print("interrupted", int(api.cuStreamQuery(unknown.handle)[0]))
    interrupt.join(60)
gate.open()
cuda.synchronize()
print(int(api.cuStreamQuery(unknown.handle)[0]), soft.softcuda_live(b"events") - before)
"""
    assert output_of(BEGIN + program) == ["interrupted 600", "interrupted 600", "0 0"]


def test_stream_that_its_creator_destroyed_is_not_used():
    program = """
with cuda.stream(stream):
    memory = bytes_on(5)
    copied = memory.to("cpu", non_blocking=True)
memory.record_stream(cuda.current_stream())
stream.synchronize()
theirs.close()
del memory
cuda.synchronize()
cuda.empty_cache()
print(cuda.memory_reserved(), copied.tolist())
"""
    assert output_of(BEGIN + program) == ["0 [5, 5, 5, 5]"]


def test_handles_of_no_stream_of_the_device_are_rejected():
    program = """
print(cuda.ExternalStream(1) == cuda.default_stream())
print(failure_of(cuda.ExternalStream, int(theirs.handle) + 8))
print(failure_of(cuda.ExternalStream, 2))
print(failure_of(cuda.ExternalStream, int(theirs.handle), 1))
other = Device(1)
other.set_current()
elsewhere = other.create_stream()
print(failure_of(cuda.ExternalStream, int(elsewhere.handle)))
print(cuda.ExternalStream(int(elsewhere.handle), 1).device)
"""
    assert output_of(BEGIN + program) == [
        "True",
        "(400, 'cuStreamGetCtx returned CUDA_ERROR_INVALID_HANDLE (400)')",
        "(400, '2 is not a stream')",
        "(400, 'stream')",
        "(400, 'stream')",
        "cuda:1",
    ]


def test_external_stream_is_captured():
    program = """
graph = cuda.CUDAGraph()
target, source = bytes_on(0), bytes_on(4)
cuda.synchronize()
with cuda.graph(graph, stream=stream):
    target.copy_(source)
    api.cuMemsetD8Async(target.data_ptr(), 6, 2, theirs.handle)
print(target.cpu().tolist())
graph.replay()
print(target.cpu().tolist())
third = device.create_stream()
main, side = cuda.Stream(), cuda.ExternalStream(int(third.handle))
joined = cuda.CUDAGraph()
with cuda.graph(joined, stream=main):
    side.wait_stream(main)
    with cuda.stream(side):
        source.fill_(8)
    main.wait_stream(side)
    target.copy_(source)
joined.replay()
print(target.cpu().tolist())
"""
    assert output_of(BEGIN + program) == ["[0, 0, 0, 0]", "[6, 6, 4, 4]", "[8, 8, 8, 8]"]


def test_uncached_memory_that_is_freed_during_a_capture_is_released_later():
    program = """
import gc
before = cuda.mem_get_info()[0]
memory, work = forebay.empty(64 << 20, dtype=forebay.uint8, device="cuda"), bytes_on(1)
graph, side = cuda.CUDAGraph(), cuda.Stream()
with cuda.stream(side):
    graph.capture_begin(capture_error_mode="relaxed")
    work.zero_()
    del memory
    gc.collect()
    print(before - cuda.mem_get_info()[0] >= 64 << 20)
    graph.capture_end()
del graph, work
gc.collect()
cuda.synchronize()
cuda.empty_cache()
print(before - cuda.mem_get_info()[0])
"""
    assert output_of(BEGIN + program, FOREBAY_NO_MEMORY_CACHING="1") == ["True", "0"]
