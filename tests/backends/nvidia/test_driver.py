"""Discovery of NVIDIA's GPUs, and the reasons why there are none, each in a process of its own."""

from __future__ import annotations

import ctypes.util
import sys

import pytest
from support.software_driver import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

ASK = """
from forebay.backends.nvidia.driver import CudaDriver
driver = CudaDriver()
print(driver.count(), driver.why_not())
"""
HIDDEN = "import sys; sys.modules['cuda.bindings'] = None\n"


@pytest.mark.parametrize(
    ("program", "variables", "expected"),
    [
        (ASK, {}, "2 \n"),
        (ASK, {"SOFTCUDA_DEVICES": "0"}, "0 the NVIDIA driver finds no GPU\n"),
        (
            ASK,
            {"SOFTCUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""},
            "0 No CUDA GPUs are available: CUDA_VISIBLE_DEVICES is ''\n",
        ),
        (ASK, {"SOFTCUDA_VERSION": "11080"}, "0 the NVIDIA driver supports CUDA 11.8; forebay needs 12.0\n"),
        (HIDDEN + ASK, {}, "0 cuda-bindings is not installed ("),
    ],
    ids=["devices", "no device", "hidden", "old driver", "no bindings"],
)
def test_reason_without_devices(program, variables, expected):
    done = run(program, **variables)
    assert done.stdout.startswith(expected), done.stderr


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has NVIDIA's driver")
def test_missing_driver_is_named():
    done = run(ASK, driver=False)
    assert done.stdout.startswith("0 the NVIDIA driver is not installed, or not visible in this container ("), (
        done.stderr
    )


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
