"""Draws and strided copies of a queue leave nothing behind when any call of the driver fails."""

from __future__ import annotations

import sys

import pytest
from support.kernel_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")


@pytest.mark.timeout(300)
def test_every_driver_call_of_a_scenario_fails_once():
    program = """
from forebay.spi import Draw, StridedCopy
PROGRAM = Program('extern "C" __global__ void count(unsigned* to) { atomicAdd(to, 1u); }', "count.cu")

def scenario(port):
    queue, memory = port.queue(), port.reserve(2 * MIB)
    launch(load_kernel(queue, PROGRAM, "count", ["pointer"]), 2, 2, [memory], queue)
    queue.draw(Draw("uniform", "float32", memory, 100, (), 1, 0, 256, (0.0, 1.0, 1.0)))
    host = np.zeros((3, 4), "i2")
    columns = (3, 4), host.ctypes.data, (2, 6), "int16", 2, memory, (8, 2)
    queue.copy_strided(StridedCopy(*columns))
    queue.copy_strided(StridedCopy((3, 4), memory, (8, 2), "int16", 2, host.ctypes.data, (2, 6)))
    queue.copy_strided(StridedCopy((8,), memory, (1,), "", 1, memory + 1, (1,), may_overlap=True))
    queue.copy_strided(StridedCopy((8,), memory, (100,), "", 100, value=bytes(100)))
    queue.wait(queue.signal())

def calls():
    port = CudaDriver().open(0)
    before = soft.softcuda_calls(b"")
    scenario(port)
    count = soft.softcuda_calls(b"") - before
    port.close()
    return count

calls()
number = failed = 0
total = calls()
for number in range(total):
    port = CudaDriver().open(0)
    soft.softcuda_fail(b"", ctypes.c_uint64(number), 999, 0)
    try:
        scenario(port)
    except DeviceError as error:
        assert error.code == 999, error
        failed += 1
    soft.softcuda_clear_faults()
    port.close()
    assert not live(), (number, live())
print(total, failed)
"""
    [line] = output_of(program)
    total, failed = map(int, line.split())
    assert 50 < failed < total  # the others poll, or query and pop the current context
