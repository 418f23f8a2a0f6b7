"""A signal handler that raises, at each point of the backend and during each call of the driver, loses nothing."""

from __future__ import annotations

import sys

import pytest
from support.cuda_faults import BEGIN
from support.software_driver import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

POINTS = """
import numpy as np
from contextlib import suppress
from support.interrupts import call_interrupted, count_points
from forebay.backends.nvidia.driver import CudaDriver

FOLDER, PAGE = "/backends/nvidia/", 2 << 20
TYPES += ["reservations", "streams", "events"]

def check_points(name, call, clean=lambda: None, prepare=lambda: None):
    "Interrupt a call at each point. What exists afterwards is what exists after a complete call."
    prepare(), call(), clean()
    before = live()
    prepare()
    count = count_points(call, FOLDER)
    clean()
    for number in range(1, count + 1):
        prepare()
        call_interrupted(call, FOLDER, number)
        clean()
        assert live() == before, (name, number, live(), before)
    return count
"""
PORT = """
port = CudaDriver().open(0)
port.queue()
memory, capturing, driver = port.reserve(PAGE), port.queue(), CudaDriver()
host = np.zeros(1 << 20, np.uint8)
where = -(-host.ctypes.data // 4096) * 4096
spaces, ports = [], []
gc.freeze()  # the collector has less to look at

def pin_in_place():
    port.pin_in_place(where, 4096)
    port.unpin_in_place(where)

def destroy_queues():
    for queue in port._queues[2:]:
        queue.close(), queue.destroy(), port._queues.remove(queue)

def use_space():
    spaces.append(port.reserve_space(8 * PAGE, PAGE))
    port.commit(spaces[0], 4 * PAGE)
    port.commit(spaces[0] + 2 * PAGE, 4 * PAGE)
    port.decommit(spaces[0], 3 * PAGE)

def release_space():
    while spaces:  # an interrupted call may be repeated, and may have released it
        with suppress(DeviceError):
            port.decommit(spaces[0], 8 * PAGE)
            port.release_space(spaces[0])
        spaces.pop()

def close():
    while ports:
        ports.pop().close()

check_points("open", lambda: ports.append(driver.open(1)), close)
check_points("memory", lambda: port.release(port.reserve(1 << 20)))
check_points("pinned", lambda: port.unpin(port.pin(4096)))
check_points("pinned in place", pin_in_place)
check_points("managed", lambda: port.release_managed(port.reserve_managed(1 << 20)))
check_points("queue", port.queue, destroy_queues)
check_points("wait", port.synchronize)
check_points("space", use_space, release_space)
reserve_space = lambda: spaces.append(port.reserve_space(8 * PAGE, PAGE))
check_points("release of a space", lambda: port.release_space(spaces[0]), release_space, reserve_space)
check_points("conditions", capture_conditions, abandon)
check_points("module", load, lambda: port.context.modules.unload())
check_points("word", call_blocking, destroy_queues)
print("end")
"""
LOAD = """
from forebay.backends.nvidia.kernels.compiler import Program
from forebay.backends.nvidia.kernels.launch import load_kernel

SOURCE = 'extern "C" __global__ void nothing() {}'

def load():
    load_kernel(port._queues[0], Program(SOURCE, "nothing.cu"), "nothing", [])

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)

def capture_conditions():
    graph = capturing.begin_capture()
    graph.begin_if(capturing, memory)
    capturing.fill(memory + 1, 5, 1)
    graph.begin_while(capturing, memory + 16)
    capturing.fill(memory + 2, 6, 1)
    graph.end_body(capturing)
    graph.end_body(capturing)
    capturing.end_capture()

def abandon():
    capturing.abandon_capture()
    graph = capturing.begin_capture()  # destroys the last one
    capturing.end_capture()
    gc.collect()

def call_blocking():
    queue = port.queue()
    queue.call_blocking(ctypes.cast(FUNCTION, ctypes.c_void_p).value, 0, FUNCTION)
    queue.wait(queue.signal())
"""


def test_interrupt_at_each_point_of_the_port_loses_nothing():
    assert lines_of(BEGIN + POINTS + LOAD + PORT) == ["end"]


GRAPHS = """
weights, side = forebay.ones(1000, device="cuda"), cuda.Stream()
drawn = forebay.rand(10, device="cuda")

def capture():
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=side):
        weights.fill_(2)
        drawn.uniform_()
        side.queue.call(lambda: None)
    graph.replay()

def clean():
    with suppress(DeviceError):
        cuda.synchronize()
    settle()
    with suppress(DeviceError):
        plain()  # destroys the graphs of the last one
    settle()

def plain():
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=side):
        weights.fill_(2)
    graph.replay()

TYPES.remove("events"), TYPES.remove("streams")  # which queues keep
quiet = lambda *_: None
sys.unraisablehook = warnings.showwarning = quiet
for _ in range(2):
    capture(), clean()
gc.freeze()  # the collector has less to look at
print(check_points("capture", capture, clean) > 100)
"""


def test_interrupt_at_each_point_of_a_capture_loses_nothing():
    assert lines_of(BEGIN + POINTS + GRAPHS) == ["True"]
