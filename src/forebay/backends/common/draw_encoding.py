"""What to draw, in the bytes that the native core reads; native/random/draw.hpp has the same struct."""

from __future__ import annotations

import ctypes
import struct

from forebay import _core
from forebay.errors import DeviceError
from forebay.spi import Draw

__all__ = ["draw_now", "packed", "written_by"]

_LAWS = {law: at for at, law in enumerate(("uniform", "normal", "exponential", "bernoulli", "integers", "chances"))}
_INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_ELEMENTS = {name: at for at, name in enumerate((*_INTEGERS, "float16", "bfloat16", "float32", "float64"))}
_HEAD = struct.Struct("=5Q3dQqQ4BI")
_WHOLE = (1 << 64) - 1
_written = ctypes.CDLL(_core.__file__).forebay_draw_written
_written.restype, _written.argtypes = None, [ctypes.c_char_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]


def packed(draw: Draw) -> bytes:
    """The bytes for `_core.Queue.draw_packed` and `_core.draw_now`."""
    head = _HEAD.pack(
        draw.address,
        draw.elements,
        draw.seed,
        draw.offset & _WHOLE,
        draw.threads,
        *draw.numbers,
        draw.range & _WHOLE,
        draw.base,
        draw.chances,
        _LAWS[draw.law],
        _ELEMENTS[draw.element],
        draw.wide,
        len(draw.axes),
        0,
    )
    return head + b"".join(struct.pack("=Qq", *axis) for axis in draw.axes) if draw.axes else head


def draw_now(draw: Draw) -> None:
    """Into host memory, on this thread. Raises DeviceError where a chance is none."""
    if code := _core.draw_now(packed(draw)):
        raise DeviceError("a probability is not in [0, 1]", code=code, call="draw")


def written_by(draw: Draw) -> tuple[int, int]:
    """Where its elements lie, and how many bytes that is, gaps and all."""
    address, nbytes = ctypes.c_size_t(), ctypes.c_size_t()
    _written(packed(draw), ctypes.byref(address), ctypes.byref(nbytes))
    return address.value, nbytes.value
