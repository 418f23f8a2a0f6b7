"""Binary encoding of `spi.Draw` for the native core; the struct is that of native/random/draw.hpp."""

from __future__ import annotations

import ctypes
import struct

from forebay import _core
from forebay.errors import DeviceError
from forebay.spi import Draw

__all__ = ["draw_now", "element_size", "is_valid_draw", "pack_draw", "written_range"]

_LAWS = {
    law: at
    for at, law in enumerate(
        (
            "uniform",
            "normal",
            "exponential",
            "bernoulli",
            "integers",
            "chances",
            "cauchy",
            "log_normal",
            "geometric",
            "poisson",
        )
    )
}
_INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_ELEMENTS = {name: at for at, name in enumerate((*_INTEGERS, "float16", "bfloat16", "float32", "float64"))}
_SIZES = dict(zip(_ELEMENTS, (1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8), strict=True))
_HEADER = struct.Struct("=5Q3dQqQ4BI")
_UINT64_MAX = (1 << 64) - 1
_native = ctypes.CDLL(_core.__file__)
_written, _draw_now = _native.forebay_draw_written, _native.forebay_draw_now
_written.restype, _written.argtypes = None, [ctypes.c_char_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
_is_valid_draw = _native.forebay_is_valid_draw
_is_valid_draw.argtypes, _is_valid_draw.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_bool
_draw_now.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def element_size(element: str) -> int:
    """Return the size in bytes of an element that can be drawn.

    Parameters
    ----------
    element : str
        Its type, as in `Draw.element`.
    """
    return _SIZES[element]


def pack_draw(draw: Draw) -> bytes:
    """Return a random fill as bytes for kernels: the struct of `native/random/draw.hpp`, and its axes.

    Parameters
    ----------
    draw : Draw
        The fill.

    Raises
    ------
    ValueError
        If a name or a number in it is unknown.
    """
    if draw.distribution not in _LAWS or draw.element not in _ELEMENTS:
        raise ValueError(f"invalid draw: {draw}")
    header = _HEADER.pack(
        draw.address,
        draw.elements,
        draw.seed,
        draw.offset & _UINT64_MAX,
        draw.threads,
        *draw.numbers,
        draw.range & _UINT64_MAX,
        draw.base,
        draw.probabilities,
        _LAWS[draw.distribution],
        _ELEMENTS[draw.element],
        draw.is_64bit,
        len(draw.axes),
        0,
    )
    return header + b"".join(struct.pack("=Qq", *axis) for axis in draw.axes) if draw.axes else header


def is_valid_draw(packed: bytes) -> bool:
    """Return True if a random fill can be executed, False if its numbers do not fit each other.

    Parameters
    ----------
    packed : bytes
        What `pack_draw` returned.
    """
    return bool(_is_valid_draw(packed, len(packed)))


def draw_now(draw: Draw) -> None:
    """Execute a random fill of host memory on the calling thread.

    Parameters
    ----------
    draw : Draw
        The fill; its addresses are host addresses.

    Raises
    ------
    DeviceError
        If a probability is outside [0, 1], or a rate is negative: code 710.
    """
    encoded = pack_draw(draw)
    code = _draw_now(encoded, len(encoded))
    if code < 0:
        raise ValueError(f"invalid draw: {draw}")
    if code:
        raise DeviceError("a probability is not in [0, 1], or a rate is negative", code=code, call="draw")


def written_range(draw: Draw) -> tuple[int, int]:
    """Return address and size in bytes of the range that spans all elements of a random fill, gaps included.

    Parameters
    ----------
    draw : Draw
        The fill.
    """
    address, nbytes = ctypes.c_size_t(), ctypes.c_size_t()
    _written(pack_draw(draw), ctypes.byref(address), ctypes.byref(nbytes))
    return address.value, nbytes.value
