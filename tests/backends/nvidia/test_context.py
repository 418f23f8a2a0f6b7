"""The primary context: what is current for the calling thread during calls of the driver, and after an interrupt."""

from __future__ import annotations

import sys

import pytest
from support.kernel_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
MODES = api.CUstreamCaptureMode
GLOBAL, RELAXED = MODES.CU_STREAM_CAPTURE_MODE_GLOBAL, MODES.CU_STREAM_CAPTURE_MODE_RELAXED
port = CudaDriver().open(0)

def state():
    mode = api.cuThreadExchangeStreamCaptureMode(RELAXED)[1]
    api.cuThreadExchangeStreamCaptureMode(mode)
    return int(api.cuCtxGetCurrent()[1]), mode.name.rpartition("MODE_")[2]
"""


def test_context_is_current_inside_the_block_only():
    program = """
other = api.cuDevicePrimaryCtxRetain(1)[1]
api.cuCtxPushCurrent(other)
before = state()
with port.context.current() as functions:
    print(functions is api, state() == (port.context.handle, "RELAXED"))
    with port.context.current():
        pass
    print(state() == (port.context.handle, "RELAXED"))
try:
    with port.context.current():
        raise KeyError
except KeyError:
    print(state() == before)
port.close()
try:
    port.context.current().__enter__()
except WrongState as error:
    print(error)
print(state() == before)
"""
    assert output_of(BEGIN + program) == ["True True", "True", "True", "cuda:0 was closed", "True"]


@pytest.mark.parametrize("work", ["port.memory_info()", "port.context.invoke(api.cuMemGetInfo)"])
def test_interrupt_leaves_nothing_current(work):
    program = f"""
CALLS = ["cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode", "cuMemGetInfo", "cuCtxPopCurrent"]
for name, after in [*((name, 0) for name in CALLS), ("cuThreadExchangeStreamCaptureMode", 1)]:
    soft.softcuda_interrupt(name.encode(), ctypes.c_uint64(after))
    errors = []
    try:
        {work}
    except KeyboardInterrupt as error:
        errors.append(error)  # with its frames
    print(len(errors), *state())
port.close()
"""
    assert output_of(BEGIN + program) == ["1 0 GLOBAL"] * 5


def test_failure_leaves_nothing_current():
    program = """
for name in ("cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode", "cuMemGetInfo"):
    soft.softcuda_fail(name.encode(), ctypes.c_uint64(0), 999, 0)
    try:
        port.memory_info()
    except DeviceError as error:
        print(error.call == name, *state())
port.close()
"""
    assert output_of(BEGIN + program) == ["True 0 GLOBAL"] * 3
