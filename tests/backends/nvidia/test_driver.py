"""Driver of NVIDIA's GPUs: devices, their properties, and errors, each in a process of its own."""

from __future__ import annotations

import sys

import pytest
from support.software_driver import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

ASK = """
from forebay.backends.nvidia.driver import CudaDriver
driver = CudaDriver()
print(driver.count(), driver.why_not())
"""


def test_counting_and_describing_create_no_context():
    program = (
        ASK
        + """
print(driver.describe(1).name, driver.describe(1).total_bytes >> 30, driver.can_access(0, 1), driver.can_access(0, 0))
import ctypes
print(ctypes.CDLL("libcuda.so.1").softcuda_live(b"contexts"))
"""
    )
    assert run(program).stdout == "2 \nSoftware device 8 True False\n0\n"


def test_missing_device_is_an_error():
    program = """
from forebay import DeviceError
from forebay.backends.nvidia.driver import CudaDriver
for call in (CudaDriver().open, CudaDriver().describe):
    try:
        call(2)
    except DeviceError as error:
        print(error.code, error.device, str(error).splitlines()[0])
"""
    assert run(program).stdout == "101 cuda:2 CUDA error: invalid device ordinal\n" * 2
