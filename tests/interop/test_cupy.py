"""The real CuPy with forebay's allocators on the software driver.

CuPy contains the CUDA runtime, which asks the driver for functions that NVIDIA does not document, so that it cannot run
there: what CuPy asks the runtime for, its current stream, is replaced. Everything else is CuPy's own.
`python3 dev.py gpu` repeats it on a GPU without a replacement.
"""

from __future__ import annotations

import sys

import pytest
from support.beside import NUMBA, paths_of_sources
from support.software_driver import lines_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux"),
    pytest.mark.skipif(not NUMBA.exists(), reason="CuPy is not installed: `python3 dev.py test` installs it"),
]

BEGIN = """
import gc, warnings
import cupy, cupyx
import numpy as np
import forebay
from cuda.bindings import driver
from forebay.interop import cupy as socket

class Current:
    ptr = 0

cupy.cuda.get_current_stream = Current
MiB = 1 << 20

def array_of(count, dtype="float32"):
    return cupy.ndarray((count,), dtype)

def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error).partition(chr(10))[0]
"""


def output_of(program: str) -> list[str]:
    return lines_of(BEGIN + program, python=str(NUMBA), PYTHONPATH=paths_of_sources())


def test_arrays_are_counted_recorded_and_freed():
    program = """
before = cupy.cuda.get_allocator()
forebay.cuda.memory._record_memory_history()
with socket.use_allocator():
    array = array_of(1000)
    print(forebay.cuda.memory_allocated(), array.data.ptr % 512)
    view = array[10:]
    del array
    print(forebay.cuda.memory_allocated(), view.data.ptr % 512)
    del view
    print(forebay.cuda.memory_allocated(), forebay.cuda.memory_reserved() // MiB, array_of(0).nbytes)
print(cupy.cuda.get_allocator() == before)
for event in forebay.cuda.memory._snapshot()["device_traces"][0]:
    names = [frame["name"] for frame in event["frames"]]
    print(event["action"], event["size"], [name for name in names if name in ("array_of", "<module>")])
"""
    made = "['array_of', '<module>']"
    assert output_of(program) == [
        "4096 0",
        "4096 40",
        "0 2 0",
        "True",
        f"segment_alloc 2097152 {made}",
        f"alloc 4000 {made}",
        "free_requested 4000 ['<module>']",
        "free_completed 4000 ['<module>']",
    ]


def test_arrays_outlive_the_use_and_permanent_use_is_restored():
    program = """
before = cupy.cuda.get_allocator()
use = socket.use_allocator(pinned=False)
array = array_of(1000)
with socket.use_allocator():
    pass
print(cupy.cuda.get_allocator() == before)
cupy.cuda.set_allocator(None)
print(error_of(use.restore))
cupy.cuda.set_allocator(socket._allocate)
use.restore()
use.restore()
print(cupy.cuda.get_allocator() == before, forebay.cuda.memory_allocated())
del array
print(forebay.cuda.memory_allocated())
"""
    assert output_of(program) == [
        "False",
        "WrongState: CuPy has another allocator now: restore forebay's first, then end its use",
        "True 4096",
        "0",
    ]


def test_memory_is_allocated_for_the_current_stream_and_freed_after_recorded_ones():
    program = """
from forebay.testing.conformance.helpers import NativeGate

forebay.cuda.synchronize()
context = driver.cuDevicePrimaryCtxRetain(0)[1]
driver.cuCtxSetCurrent(context)
_, made = driver.cuStreamCreate(0)
side = cupy.cuda.ExternalStream(int(made))
with socket.use_allocator():
    Current.ptr = side.ptr
    there = array_of(1000)
    Current.ptr = 0
    here = array_of(1000)
    segments = forebay.cuda.memory_snapshot()
    print(sorted(segment["stream"] for segment in segments) == [0, side.ptr])
    gate = NativeGate()
    driver.cuLaunchHostFunc(made, driver.CUhostFn(gate.function), gate.argument)
    address = here.data.ptr
    socket.record_stream(here, side)
    del here
    other = array_of(1000)
    print(other.data.ptr == address, forebay.cuda.memory_stats()["active_bytes.all.current"])
    gate.open()
    stream = socket.from_cupy_stream(side)
    stream.synchronize()
    print(array_of(1000).data.ptr == address, forebay.cuda.memory_stats()["active_bytes.all.current"])
    print(stream.handle == side.ptr, socket.to_cupy_stream(stream).ptr == side.ptr)
    ours = forebay.cuda.Stream()
    back = socket.from_cupy_stream(socket.to_cupy_stream(ours))
    print(back.handle == ours.handle == socket.to_cupy_stream(ours).ptr, back.device)
    print(socket.to_cupy_stream(forebay.cuda.default_stream()) is cupy.cuda.Stream.null)
    Current.ptr = 2
    print(error_of(lambda: array_of(3))[:46])
"""
    assert output_of(program) == [
        "True",
        "False 12288",
        "True 8192",
        "True True",
        "True cuda:0",
        "True",
        "Unsupported: cuda:0: the per-thread default st",
    ]


def test_memory_of_the_current_gpu_is_used():
    program = """
forebay.cuda.init()
context = driver.cuDevicePrimaryCtxRetain(1)[1]
driver.cuCtxSetCurrent(context)
with socket.use_allocator():
    array = array_of(1000)
    print(array.data.device_id, [forebay.cuda.memory_allocated(index) for index in (0, 1)])
"""
    assert output_of(program) == ["1 [0, 4096]"]


def test_exhausted_memory_raises_the_error_of_cupy():
    program = """
with socket.use_allocator():
    array = array_of(MiB)
    try:
        array_of(1 << 40, "uint8")
    except cupy.cuda.memory.OutOfMemoryError as error:
        print(error)
        print(type(error.__cause__).__name__, str(error.__cause__).partition(". GPU")[0])
"""
    assert output_of(program) == [
        "Out of memory allocating 1,099,511,627,776 bytes (allocated so far: 4,194,304 bytes).",
        "OutOfMemory CUDA out of memory. Tried to allocate 1024.00 GiB",
    ]


def test_pinned_memory():
    program = """
with socket.use_allocator():
    pinned = cupyx.empty_pinned((1000,), np.float32)
    stats = forebay.cuda.host_memory_stats()
    print(stats["active_requests.current"], stats["active_bytes.current"])
    pinned[:] = 3
    print(pinned.sum())
    del pinned
    gc.collect()
    print(forebay.cuda.host_memory_stats()["active_requests.current"])
with socket.use_allocator(pinned=False):
    print(error_of(lambda: cupyx.empty_pinned((10,)))[:16])  # of the runtime
"""
    assert output_of(program) == ["1 4096", "3000.0", "0", "CUDARuntimeError"]


def test_emulated_gpu_is_rejected():
    program = """
with forebay.emulate("cuda"), socket.use_allocator():
    print(error_of(lambda: array_of(3)))
"""
    (text,) = output_of(program)
    assert text.startswith("Unsupported: cuda:0 is emulated, so its memory is the host's")
