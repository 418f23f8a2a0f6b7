"""Unchanged numba-cuda on the software driver, alone and in one process with forebay.

Its kernels cannot run there: they are PTX, which the software driver cannot execute. numba-cuda has an environment of
its own, because its start-up file delays each start of Python by 25 ms.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.software_driver import lines_of_client

PYTHON = Path(sys.prefix, "numba/bin/python")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux"),
    pytest.mark.skipif(not PYTHON.exists(), reason="numba-cuda is not installed: `python3 dev.py test` installs it"),
]

BEGIN = """
import os, sys, threading, warnings
import numpy as np
from cuda.bindings import driver
from numba import cuda

def current_context():
    return int(driver.cuCtxGetCurrent()[1] or 0)

def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error).partition(chr(10))[0]

numbers = np.arange(1000, dtype=np.float32)
"""


def output_of(program: str) -> list[str]:
    return lines_of_client(BEGIN + program, python=str(PYTHON), PYTHONPATH="")


def test_devices_memory_streams_and_events():
    program = """
device = cuda.get_current_device()
print(cuda.is_available(), len(cuda.gpus), device.name, device.compute_capability, device.MULTIPROCESSOR_COUNT)
before = cuda.current_context().get_memory_info()
stream, other = cuda.stream(), cuda.stream()
begin, end = cuda.event(), cuda.event()
begin.record(stream)
array = cuda.to_device(numbers, stream=stream)
end.record(stream)
end.wait(other)
after = cuda.current_context().get_memory_info()
print(before.total == after.total, before.free - after.free >= array.nbytes)
copy = cuda.device_array_like(array)
copy.copy_to_device(array, stream=other)
other.synchronize()
print((copy.copy_to_host() == numbers).all(), end.query(), begin.elapsed_time(end) >= 0)
view = cuda.as_cuda_array(array)[10:20]
view.copy_to_device(np.ones(10, np.float32))
print(array.copy_to_host()[8:12].tolist(), view.__cuda_array_interface__["shape"])
with cuda.gpus[1]:
    there = cuda.to_device(numbers)
    print(cuda.current_context().device.id, there.copy_to_host().sum(), cuda.current_context().can_access_peer(0))
cuda.profile_start()
cuda.profile_stop()
"""
    assert output_of(program) == [
        "True 2 Software device ComputeCapability(major=9, minor=0) 8",
        "True True",
        "True True True",
        "[8.0, 9.0, 1.0, 1.0] (10,)",
        "1 499500.0 True",
    ]


def test_host_memory():
    program = """
pinned, mapped, managed = (
    make(1000, dtype=np.float32) for make in (cuda.pinned_array, cuda.mapped_array, cuda.managed_array)
)
pinned[:] = mapped[:] = managed[:] = numbers
print(cuda.to_device(pinned).copy_to_host().sum())
own = numbers.copy()
with cuda.pinned(own):
    print(cuda.to_device(own).copy_to_host().sum())
with cuda.mapped(own) as view:
    print(view.copy_to_host().sum())
for array in (mapped, managed):
    cuda.driver.device_memset(array, 0, 8)  # the host waits
    print(array[:3].tolist())
"""
    assert output_of(program) == ["499500.0"] * 3 + ["[0.0, 0.0, 2.0]"] * 2


def test_forebay_and_numba_share_a_context():
    program = """
import forebay

early = forebay.full((3,), 5.0, device="cuda")
print(current_context())  # forebay leaves none current
array = cuda.to_device(numbers)
context = current_context()
queued = forebay.full((1 << 20,), 2.0, device="cuda")
there = forebay.ones(3, device="cuda:1")
with forebay.cuda.device(1), forebay.cuda.stream(forebay.cuda.Stream()):
    back = there.to("cuda:0")
forebay.cuda.synchronize(1)
print(context != 0, current_context() == context)
with cuda.gpus[1]:
    inner = current_context()
    print(early.tolist(), inner not in (0, context), current_context() == inner)
stream = forebay.cuda.Stream()
numbas = cuda.external_stream(stream.cuda_stream)
copied, event = cuda.to_device(numbers, stream=numbas), cuda.event()
event.record(numbas)
event.synchronize()
print(stream.query(), copied.copy_to_host(stream=numbas)[3])
print(tuple(cuda.current_context().get_memory_info()) == forebay.cuda.mem_get_info())

def work():
    forebay.ones(3, device="cuda")
    print(current_context())
    cuda.to_device(numbers)
    print(current_context() == context)

thread = threading.Thread(target=work)
thread.start()
thread.join(60)
sys.stdout.flush()
if not (child := os.fork()):
    print(error_of(lambda: forebay.ones(3, device="cuda"))[1].partition(". ")[0])
    print(error_of(lambda: cuda.to_device(numbers))[1])
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print(queued[-1].item(), back.tolist(), array.copy_to_host()[3])
late = forebay.full((1 << 20,), 2.0, device="cuda")  # both have work and memory at exit
"""
    assert output_of(program) == [
        "0",
        "True True",
        "[5.0, 5.0, 5.0] True True",
        "True 3.0",
        "True",
        "0",
        "True",
        "Cannot re-initialize CUDA in forked subprocess",
        "CUDA initialized before forking",
        "2.0 [1.0, 1.0, 1.0] 3.0",
    ]


def test_context_that_numba_resets_fails_in_forebay():
    program = """
import forebay

held, event = forebay.ones(3, device="cuda"), forebay.cuda.Event()
event.record()
array = cuda.to_device(numbers)
cuda.close()  # resets the context that both use
warnings.simplefilter("ignore")  # of forebay at exit, about the work that it could not complete
for call in (held.tolist, lambda: forebay.ones(3, device="cuda"), forebay.cuda.synchronize, event.query):
    print(*error_of(call))
"""
    context = "DeviceError CUDA error: invalid device context"
    assert output_of(program) == [context, context, context, "DeviceError CUDA error: invalid resource handle"]


def test_arrays_are_exchanged_without_copies():
    program = """
import forebay

mine = forebay.full((2, 3), 2.0, device="cuda")
forebay.cuda.synchronize()
theirs = cuda.as_cuda_array(mine)
print(theirs.shape, theirs.dtype, theirs.device_ctypes_pointer.value == mine.data_ptr(), theirs.copy_to_host().sum())
array = cuda.to_device(numbers)
shared = forebay.as_tensor(array, device="cuda")
shared[1] = 7.0
forebay.cuda.synchronize()
print(shared.device, shared.data_ptr() == array.device_ctypes_pointer.value, array.copy_to_host()[:3].tolist())
del array
print(shared[:3].tolist())
"""
    assert output_of(program) == [
        "(2, 3) float32 True 12.0",
        "cuda:0 True [0.0, 7.0, 2.0]",
        "[0.0, 7.0, 2.0]",
    ]
