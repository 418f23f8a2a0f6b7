"""Ports of CUDA devices on the software driver: contexts, handles, failures, fork."""

from __future__ import annotations

import sys

import pytest
from support.software_driver import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes
from cuda.bindings import driver as api
from forebay import DeviceError, OutOfMemory
from forebay.backends.nvidia.driver import CudaDriver

soft = ctypes.CDLL("libcuda.so.1")
TYPES = "contexts streams events device pinned managed registered mapped reservations chunks".split()
MIB = 1 << 20

def live():
    return {name: count for name in TYPES if (count := soft.softcuda_live(name.encode()))}

def scenario(port):
    queue, other = port.queue(), port.queue(-1)
    memory, pinned, space = port.reserve(4 * MIB), port.pin(4096), port.reserve_space(8 * MIB, 2 * MIB)
    port.commit(space, 4 * MIB)
    host = ctypes.create_string_buffer(b"x" * 4096, 4096)
    queue.copy(memory, ctypes.addressof(host), 4096)
    other.wait_for(queue, queue.signal())
    start, values = other.mark(), []
    other.copy(pinned, memory, 4096)
    other.fill(space, 7, 4 * MIB)
    other.call(lambda: values.append(ctypes.string_at(pinned, 4096)))
    end = other.mark()
    other.wait(end.tick)
    assert values == [b"x" * 4096]
    assert other.elapsed_ms(start, end) >= 0
    port.decommit(space, 4 * MIB)
    port.release_space(space)
    port.unpin(pinned)
    managed = port.reserve_managed(2 * MIB)
    port.release_managed(managed)
    port.release(memory)
"""


def output_of(program: str, **variables: str) -> list[str]:
    return lines_of(BEGIN + program, **variables)


def test_closed_port_leaves_nothing():
    program = """
port = CudaDriver().open(1)
scenario(port)
kept = port.reserve(2 * MIB), port.pin(4096), port.reserve_managed(4096), port.queue().mark()
space = port.reserve_space(4 * MIB, 2 * MIB)
port.commit(space, 2 * MIB)
port.close()
port.close()
print(live())
"""
    assert output_of(program) == ["{}"]


def test_every_driver_call_of_a_scenario_fails_once():
    program = """
def counts():
    names = ctypes.create_string_buffer(10000)
    soft.softcuda_called(names, len(names))
    return {name: soft.softcuda_calls(name) for name in names.value.split()}

port = CudaDriver().open(0)
scenario(port)
port.close()
before = counts()
port = CudaDriver().open(0)
scenario(port)
port.close()
calls = {name: count - before[name] for name, count in counts().items()}
calls[b"cuEventQuery"] = calls[b"cuStreamQuery"] = 1  # the others repeat it until work is done
made, ignored = 0, []
for name, number in ((name, number) for name, count in calls.items() for number in range(count)):
    port = None
    soft.softcuda_fail(name, ctypes.c_uint64(number), 999, 0)
    made += 1
    try:
        port = CudaDriver().open(0)
        scenario(port)
        port.close()
        ignored.append(name.decode())
    except DeviceError as error:
        assert error.code == 999, error
        assert "CUDA error: unknown error" in str(error), error
    soft.softcuda_clear_faults()
    if port is not None:
        port.close()
    port = None
    if name == b"cuDevicePrimaryCtxRelease":
        api.cuDevicePrimaryCtxRelease(0)
    rest = live()
    assert not rest, (name, number, rest)
print(made, *ignored)
"""
    [line] = output_of(program)
    calls, *ignored = line.split()
    assert int(calls) > 60
    assert set(ignored) <= {
        "cuCtxGetCurrent",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuEventDestroy",
        "cuMemFree",
        "cuStreamDestroy",
        "cuStreamQuery",
        "cuThreadExchangeStreamCaptureMode",
    }  # of the clean-up


def test_allocation_of_too_much_is_out_of_memory():
    program = """
port = CudaDriver().open(0)
first = port.reserve(900 * MIB)
space = port.reserve_space(400 * MIB, 2 * MIB)
for request in (lambda: port.reserve(200 * MIB), lambda: port.commit(space, 200 * MIB)):
    try:
        request()
    except OutOfMemory as error:
        print(error.wanted >> 20, error.free >> 20, error.reserved >> 20, error.capacity >> 20, error.code, error.call)
print(port.memory_info()[0] >> 20)
"""
    assert output_of(program, SOFTCUDA_MEMORY=str(1 << 30)) == [
        "200 124 900 1024 2 cuMemAlloc",
        "200 124 900 1024 2 cuMemCreate",
        "124",
    ]


def test_context_of_the_program_stays_current():
    program = """
api.cuInit(0)
mine = api.cuDevicePrimaryCtxRetain(1)[1]
api.cuCtxSetCurrent(mine)
port = CudaDriver().open(0)
scenario(port)
print(api.cuCtxGetCurrent()[1] == mine)
port.close()
print(api.cuCtxGetCurrent()[1] == mine, live())
"""
    assert output_of(program) == ["True", "True {'contexts': 1}"]


def test_default_queue_is_the_default_stream_of_its_device():
    program = """
first, second = CudaDriver().open(0), CudaDriver().open(1)
queues = first.queue(), second.queue()
print([queue.handle for queue in queues])
for port, queue in zip((first, second), queues):
    memory = port.reserve(2 * MIB)
    queue.fill(memory, 3, 2 * MIB)
    queue.wait(queue.signal())
    port.close()
print(live())
"""
    assert output_of(program) == ["[0, 0]", "{}"]


def test_lost_device_is_reported():
    program = """
port = CudaDriver().open(0)
queue = port.queue()
soft.softcuda_fail(b"cuMemsetD8Async", ctypes.c_uint64(0), 700, 1)
memory = port.reserve(2 * MIB)
for work in (lambda: queue.fill(memory, 0, 8), queue.signal, lambda: port.reserve(2 * MIB)):
    try:
        work()
    except DeviceError as error:
        print(error.code, str(error).splitlines()[0], "|", error.__notes__[0])
port.close()
"""
    lines = output_of(program)
    assert [line.partition(" |")[0] for line in lines] == [
        "700 CUDA error: an illegal memory access was encountered"
    ] * 3
    assert lines[0].endswith("(700); the device accepts no more work in this process")


def test_forked_child_cannot_use_the_device():
    program = """
import os
from forebay import Forked
port = CudaDriver().open(0)
queue = port.queue()
child = os.fork()
if child == 0:
    for work in (queue.signal, lambda: port.reserve(2 * MIB), queue.reached):
        try:
            work()
        except Forked:
            os.write(1, b"forked ")
    queue.close()
    port.close()
    os._exit(0)
os.waitpid(child, 0)
scenario(port)
port.close()
print(live())
"""
    assert output_of(program) == ["forked forked forked {}"]


def test_failure_of_a_host_function_is_raised_by_the_next_wait():
    program = """
port = CudaDriver().open(0)
port.queue()
queue = port.queue()
queue.call(lambda: 1 / 0)
for _ in range(2):
    try:
        queue.wait(queue.signal())
        print("no failure")
    except DeviceError as error:
        print(type(error.__cause__).__name__, error)
port.close()
"""
    first, second = output_of(program)
    assert first.startswith("ZeroDivisionError cuda:0: work of queue 0x")
    assert second == "no failure"


def test_waiting_for_a_reached_tick_does_not_wait_for_a_later_one():
    program = """
import threading
gate = threading.Event()
port = CudaDriver().open(0)
port.queue()
first, second = port.queue(), port.queue()
tick = first.signal()
first.wait(tick)
first.call(gate.wait)
later = first.signal()
second.wait_for(first, tick)
second.wait(second.signal())
print(first.reached() == tick)
gate.set()
first.wait(later)
port.close()
"""
    assert output_of(program) == ["True"]


def test_failure_that_is_its_own_cause_is_raised():
    program = """
def fail():
    error = ValueError("itself")
    raise error from error

port = CudaDriver().open(0)
queue = port.queue()
queue.call(fail)
try:
    queue.wait(queue.signal())
except DeviceError as error:
    print(error.__cause__)
port.close()
"""
    assert output_of(program) == ["itself"]


def test_memory_is_freed_although_a_context_cannot_be_made_current():
    program = """
port = CudaDriver().open(0)
port.queue()
kept = port.reserve(2 * MIB), port.reserve(2 * MIB), port.pin(4096)
soft.softcuda_fail(b"cuCtxPushCurrent", ctypes.c_uint64(0), 999, 0)
port.close()
print(live())
"""
    assert output_of(program) == ["{}"]


def test_elements_of_another_device_are_converted():
    program = """
import forebay
source = forebay.arange(6, dtype=forebay.float32, device="cuda:0").reshape(2, 3)
target = forebay.empty((2, 3), dtype=forebay.int64, device="cuda:1")
target.copy_(source)
print(target.tolist())
"""
    assert output_of(program) == ["[[0, 1, 2], [3, 4, 5]]"]
