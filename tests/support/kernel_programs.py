"""Beginning of programs that run kernels on the software driver."""

from __future__ import annotations

from support.software_driver import lines_of

BEGIN = """
import ctypes
import numpy as np
from cuda.bindings import driver as api
from forebay import DeviceError, WrongState
from forebay.backends.nvidia.driver import CudaDriver
from forebay.backends.nvidia.kernels.compiler import Program, compile_program
from forebay.backends.nvidia.kernels.launch import launch, load_kernel

soft = ctypes.CDLL("libcuda.so.1")
nvrtc = ctypes.CDLL("libnvrtc.so.13")
MIB = 1 << 20
TYPES = "contexts streams events device pinned managed registered mapped reservations chunks modules".split()

def live():
    return {name: count for name in TYPES if (count := soft.softcuda_live(name.encode()))}

def read(queue, address, dtype, count):
    array = np.empty(count, dtype)
    queue.copy(array.ctypes.data, address, array.nbytes)
    queue.wait(queue.signal())
    return array
"""


def output_of(program: str, **variables: str) -> list[str]:
    """Return the lines that a program prints after `BEGIN`."""
    return lines_of(BEGIN + program, **variables)
