"""forebay's allocator as a memory resource of the real RMM, on the software driver.

RMM contains the CUDA runtime, which the software driver does not support: `rmm.DeviceBuffer` needs it, and memory
resources do not. `python3 dev.py gpu` allocates buffers on a GPU.
"""

from __future__ import annotations

import sys

import pytest
from support.beside import NUMBA, paths_of_sources
from support.software_driver import lines_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux"),
    pytest.mark.skipif(not NUMBA.exists(), reason="RMM is not installed: `python3 dev.py test` installs it"),
]

BEGIN = """
import rmm
from rmm.pylibrmm.stream import Stream
import forebay
from cuda.bindings import driver
from forebay.interop import rmm as socket
from forebay.testing.conformance.helpers import NativeGate

def allocated(*indices):
    return [forebay.cuda.memory_allocated(index) for index in indices or (0,)]

def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error).partition(chr(10))[0]
"""


def output_of(program: str) -> list[str]:
    return lines_of(BEGIN + program, python=str(NUMBA), PYTHONPATH=paths_of_sources())


def test_memory_is_counted_recorded_and_freed():
    program = """
forebay.cuda.memory._record_memory_history()
resource = socket.memory_resource()

def make():
    return resource.allocate(1000)

address = make()
print(*allocated(), address % 512)
resource.deallocate(address, 1000)
print(*allocated(), resource.allocate(0))
counting = rmm.mr.StatisticsResourceAdaptor(resource)
address = counting.allocate(3000)
print(*allocated(), counting.allocation_counts.current_bytes)
counting.deallocate(address, 3000)
there = socket.memory_resource("cuda:1")
address = there.allocate(1000)
print(allocated(0, 1), allocated(1) == [1024])
there.deallocate(address, 1000)
traces = forebay.cuda.memory._snapshot()["device_traces"][0]
print([event["action"] for event in traces][:4], "make" in [frame["name"] for frame in traces[1]["frames"]])
"""
    assert output_of(program) == [
        "1024 0",
        "0 0",
        "3072 3000",
        "[0, 1024] True",
        "['segment_alloc', 'alloc', 'free_requested', 'free_completed'] True",
    ]


def test_memory_is_reused_after_the_stream_that_freed_it():
    program = """
resource = socket.memory_resource()
ours = forebay.cuda.Stream()
address = resource.allocate(1000)
gate = NativeGate()
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
handle = driver.CUstream(ours.cuda_stream)
assert not driver.cuLaunchHostFunc(handle, driver.CUhostFn(gate.function), gate.argument)[0]
resource.deallocate(address, 1000, Stream(ours))
print(allocated(), resource.allocate(1000) == address)
gate.open()
ours.synchronize()
print(resource.allocate(1000) == address)
there = resource.allocate(1000, Stream(ours))
print(sorted({segment["stream"] for segment in forebay.cuda.memory_snapshot()}) == sorted([0, ours.cuda_stream]))
"""
    assert output_of(program) == ["[0] False", "True", "True"]


def test_exhausted_memory_raises_memory_error_with_the_text_of_forebay():
    program = """
print(error_of(lambda: socket.memory_resource().allocate(1 << 40)).partition(". GPU")[0])
"""
    text = "MemoryError: std::bad_alloc: out_of_memory: CUDA out of memory. Tried to allocate 1024.00 GiB"
    assert output_of(program) == [text]


def test_resources_of_all_gpus_are_replaced_and_restored():
    program = """
def resources():
    return [rmm.mr.get_per_device_resource(index) for index in (0, 1)]

before = resources()
with socket.use_allocator() as use:
    address = resources()[1].allocate(1000)
    print(allocated(0, 1))
    kept = resources()[1]
use.restore()
print(resources() == before)
kept.deallocate(address, 1000)
print(allocated(0, 1))
"""
    assert output_of(program) == ["[0, 1024]", "True", "[0, 0]"]


def test_emulated_gpu_is_rejected():
    program = """
with forebay.emulate("cuda"):
    print(error_of(socket.use_allocator))
"""
    (text,) = output_of(program)
    assert text.startswith("Unsupported: cuda:0 is emulated, so its memory is the host's")
