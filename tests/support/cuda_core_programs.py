"""Beginning of programs that use memory and streams of both forebay and NVIDIA's cuda.core on the software driver."""

from __future__ import annotations

from support.software_driver import lines_of

__all__ = ["output_of"]

BEGIN = """
import ctypes, gc, threading, warnings
import numpy as np
from cuda.bindings import driver as api
from cuda.core import Device
from cuda.core.utils import StridedMemoryView
import forebay
import forebay.cuda as cuda
from forebay.testing.conformance.helpers import NativeGate

soft = ctypes.CDLL("libcuda.so.1")
device = Device(0)
device.set_current()

def block(handle):
    "Block a stream until the gate is opened."
    gate = NativeGate()
    (error,) = api.cuLaunchHostFunc(handle, api.CUhostFn(gate.function), gate.argument)
    assert not error, error
    return gate

def seen(function, *arguments, **options):
    "Return the result of a call, or its error in one line."
    try:
        found = function(*arguments, **options)
    except Exception as error:
        return type(error).__name__ + ": " + str(error).splitlines()[0]
    return "capsule" if type(found).__name__ == "PyCapsule" else found
"""


def output_of(program: str, **variables: str) -> list[str]:
    """Return the lines that a program prints after `BEGIN`, without a warning."""
    return lines_of(BEGIN + program, needs="cuda.core", silent=True, **variables)
