"""Programs that capture CUDA queues on the software driver."""

from __future__ import annotations

from support.software_driver import lines_of

__all__ = ["FOREIGN", "output_of"]

BEGIN = """
import ctypes, gc, os, threading, warnings
from cuda.bindings import driver as api
from forebay import DeviceError, Forked, Unsupported, WrongState
from forebay.backends.nvidia.driver import CudaDriver

soft = ctypes.CDLL("libcuda.so.1")
TYPES = "contexts streams events device graphs graph_execs captures user_objects modules".split()
GLOBAL = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

def live():
    return {name: count for name in TYPES if (count := soft.softcuda_live(name.encode()))}

def code_of(function, *arguments):
    try:
        function(*arguments)
    except DeviceError as error:
        return error.code

def bytes_at(address, count):
    return list(ctypes.string_at(address, count))

def open_port():
    global port, default, one, two, memory
    port = CudaDriver().open(0)
    default, one, two = port.queue(), port.queue(), port.queue()
    memory = port.reserve(4096)
    one.fill(memory, 0, 4096)
    one.wait(one.signal())

def scenario():
    values = []
    one.fill(memory, 0, 16)
    graph = one.begin_capture()
    one.fill(memory, 1, 2)
    two.wait_for(one, one.signal())
    two.copy(memory + 2, memory, 2)
    two.call(lambda: values.append(bytes_at(memory, 4)))
    one.wait_for(two, two.signal())
    graph.add_event(one, "record_event", 1, lambda on: on.signal())
    one.fill(memory, 3, 1)
    one.end_capture()
    outer = one.begin_capture()
    one.fill(memory + 8, 4, 1)
    graph.launch(one)
    one.end_capture()
    graph.launch(one)
    two.wait_for(one, one.signal())
    outer.launch(two)
    two.wait(two.signal())
    assert bytes_at(memory, 10) == [3, 1, 1, 1, 0, 0, 0, 0, 4, 0], bytes_at(memory, 10)
    assert values == [[1] * 4] * 2, values
    conditional = two.begin_capture()
    conditional.begin_if(two, memory)
    two.fill(memory + 9, 8, 1)
    conditional.end_body(two)
    two.end_capture()
    conditional.launch(two)
    two.wait(two.signal())
    assert bytes_at(memory, 10)[9] == 8
    two.fill(memory + 9, 0, 1)
    two.wait(two.signal())
    abandoned = two.begin_capture()
    abandoned.begin_if(two, memory)
    two.fill(memory, 9, 1)
    two.abandon_capture()

gc.freeze()  # a collection after each fault would look at all modules
"""


FOREIGN = "open_port()\napi.cuInit(0)\napi.cuCtxSetCurrent(api.cuDevicePrimaryCtxRetain(0)[1])\n"


def output_of(program: str, begin: str = "open_port()\n") -> list[str]:
    return lines_of(BEGIN + begin + program)
