"""forebay's plug-in for external memory management in the real numba-cuda, on the software driver."""

from __future__ import annotations

import sys

import pytest
from support.beside import NUMBA, paths_of_sources
from support.software_driver import lines_of_client

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux"),
    pytest.mark.skipif(not NUMBA.exists(), reason="numba-cuda is not installed: `python3 dev.py test` installs it"),
]

BEGIN = """
import gc
import numpy as np
import forebay
from cuda.bindings import driver
from numba import cuda
from forebay.interop import numba as socket
from forebay.testing.conformance.helpers import NativeGate

numbers = np.arange(1000, dtype=np.float32)

def allocated(*indices):
    return [forebay.cuda.memory_allocated(index) for index in indices or (0,)]

def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error).partition(chr(10))[0]
"""


def output_of(program: str, **variables: str) -> list[str]:
    return lines_of_client(BEGIN + program, python=str(NUMBA), PYTHONPATH=paths_of_sources(), **variables)


@pytest.mark.parametrize("by", ["call", "variable"])
def test_arrays_are_counted_recorded_and_freed(by):
    program = """
forebay.cuda.memory._record_memory_history(stacks="python")

def make():
    return cuda.to_device(numbers)

array = make()
print(*allocated(), array.copy_to_host()[3], array.device_ctypes_pointer.value % 512)
view = array[10:20]
del array
print(*allocated(), view.copy_to_host()[:2])
del view
print(*allocated(), forebay.cuda.memory_reserved())
with cuda.gpus[1]:
    there = cuda.to_device(numbers)
    print(allocated(0, 1), cuda.current_context().get_memory_info().free == forebay.cuda.mem_get_info()[0])
traces = forebay.cuda.memory._snapshot()["device_traces"][0]
print([event["action"] for event in traces], "make" in [frame["name"] for frame in traces[1]["frames"]])
"""
    variables = {"NUMBA_CUDA_MEMORY_MANAGER": "forebay.interop.numba"} if by == "variable" else {}
    begin = "socket.use_allocator()\nsocket.use_allocator()\n" if by == "call" else ""
    assert output_of(begin + program, **variables) == [
        "4096 3.0 0",
        "4096 [10. 11.]",
        "0 2097152",
        "[0, 4096] True",
        "['segment_alloc', 'alloc', 'free_requested'] True",  # it is completed later
    ]


def test_memory_is_reused_after_the_work_of_all_streams():
    program = """
socket.use_allocator()
first, second = cuda.to_device(numbers), cuda.to_device(numbers)
addresses = {array.device_ctypes_pointer.value for array in (first, second)}
theirs, ours = cuda.stream(), forebay.cuda.Stream()
gates = [NativeGate(), NativeGate()]
for stream, gate in zip((theirs.handle, ours.cuda_stream), gates):
    handle = driver.CUstream(int(getattr(stream, "value", stream) or 0))
    assert not driver.cuLaunchHostFunc(handle, driver.CUhostFn(gate.function), gate.argument)[0]

def pointer():
    array = cuda.device_array(1000, np.float32)
    return array.device_ctypes_pointer.value in addresses

del first, second  # while both streams are busy
print(pointer(), allocated())
gates[1].open()
ours.synchronize()
print(pointer())
gates[0].open()
theirs.synchronize()
forebay.cuda.synchronize()
print(pointer())
"""
    assert output_of(program) == ["False [0]", "False", "True"]


def test_pinned_mapped_and_managed_memory():
    program = """
socket.use_allocator()
pinned = cuda.pinned_array(1000, np.float32)
pinned[:] = numbers
print(forebay.cuda.host_memory_stats()["active_requests.current"], cuda.to_device(pinned).copy_to_host().sum())
del pinned
gc.collect()
print(forebay.cuda.host_memory_stats()["active_requests.current"])
own = numbers.copy()
with cuda.pinned(own):
    print(forebay.from_numpy(own).is_pinned(), cuda.to_device(own).copy_to_host().sum())
print(forebay.from_numpy(own).is_pinned())
with cuda.mapped(own) as view:
    print(view.copy_to_host().sum())
for array in (cuda.mapped_array(3, np.float32), cuda.managed_array(3, np.float32)):
    array[:] = 2
    print(array.sum())
"""
    assert output_of(program) == ["1 499500.0", "0", "True 499500.0", "False", "499500.0", "6.0", "6.0"]


def test_deferred_cleanup_and_errors():
    program = """
socket.use_allocator()
with cuda.defer_cleanup():
    array = cuda.to_device(numbers)
    del array
    with cuda.defer_cleanup():
        pass
    print(allocated())
print(allocated())
try:
    cuda.device_array(1 << 40, np.uint8)
except cuda.cudadrv.driver.CudaAPIError as error:
    print(error.code, str(error)[:43], type(error.__cause__).__name__)
array = cuda.to_device(numbers)
print(array.get_ipc_handle()._ipc_handle.size, allocated())
cuda.current_context().reset()
print(allocated())
del array  # which has no memory any more
"""
    assert output_of(program) == [
        "[4096]",
        "[0]",
        "2 [2] CUDA out of memory. Tried to allocate 1 OutOfMemory",
        "4000 [4096]",
        "[0]",
    ]


def test_it_must_be_used_before_numba_uses_a_gpu():
    program = """
cuda.to_device(numbers)
print(error_of(socket.use_allocator))
"""
    (text,) = output_of(program)
    assert text.startswith("WrongState: Numba uses a GPU already: call use_allocator() before")


def test_emulated_gpu_is_rejected():
    program = """
socket.use_allocator()
with forebay.emulate("cuda"):
    print(error_of(lambda: cuda.to_device(numbers)))
"""
    (text,) = output_of(program)
    assert text.startswith("Unsupported: cuda:0 is emulated, so its memory is the host's")
