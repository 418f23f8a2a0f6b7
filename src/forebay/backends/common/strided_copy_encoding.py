"""Binary encoding of `spi.StridedCopy` for the native core; the structs are those of native/queue/strided_copy.hpp."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

from forebay import _core
from forebay.errors import DeviceError
from forebay.spi import StridedCopy

__all__ = ["SimplifiedCopy", "copy_strided_now", "pack_strided_copy", "simplify_strided_copy", "touched_spans"]

_SIZES = {  # in the order of the native enum Format
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
_FORMATS = {name: (at, size) for at, (name, size) in enumerate(_SIZES.items())}
_BYTES = len(_FORMATS)
_HEADER, _AXIS = struct.Struct("=4Q4BI"), struct.Struct("=Qqq")
_FILL, _MAY_OVERLAP = 1, 2
_native = ctypes.CDLL(_core.__file__)
_run_now, _simplify = _native.forebay_copy_strided_now, _native.forebay_simplify_strided_copy
_run_now.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
_simplify.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p]


class SimplifiedCopy(NamedTuple):
    """A packed copy with as few axes as possible, of positive and descending steps in the destination."""

    packed: bytes  # header and axes
    to: int  # address of the destination's first element
    source: int  # address of the source's first element; 0 for a fill
    to_size: int  # bytes of an element of the destination
    source_size: int  # bytes of an element of the source
    # Length, step in the destination and step in the source of each axis; at least one axis.
    axes: tuple[tuple[int, int, int], ...]


def pack_strided_copy(copy: StridedCopy) -> bytes:
    """Return the bytes for `_core.Queue.copy_packed`. Raises ValueError if the copy is invalid."""
    shape, to, to_strides, element, itemsize, source, source_strides, source_element, value, may_overlap = copy
    if source_element:
        try:
            (to_format, itemsize), (source_format, source_size) = _FORMATS[element], _FORMATS[source_element]
        except KeyError as unknown:
            raise ValueError(f"elements of type {unknown} cannot be converted: {copy}") from None
    else:
        to_format, source_format, source_size = _BYTES, _BYTES, itemsize
    flags = (_FILL if value else 0) | (_MAY_OVERLAP if may_overlap else 0)
    if not to or not (source or value) or itemsize < 1 or (value and (source_element or len(value) != itemsize)):
        raise ValueError(f"invalid strided copy: {copy}")
    if value:
        source_strides = (0,) * len(shape)
    try:
        parts = [_HEADER.pack(to, source, itemsize, source_size, to_format, source_format, flags, len(shape), 0)]
        parts += [_AXIS.pack(*axis) for axis in zip(shape, to_strides, source_strides, strict=True)]
    except (struct.error, ValueError) as error:
        raise ValueError(f"invalid strided copy, {error}: {copy}") from None
    return b"".join((*parts, value))


def copy_strided_now(copy: StridedCopy) -> None:
    """Execute a strided copy or a fill of host memory on the calling thread.

    Parameters
    ----------
    copy : StridedCopy
        The copy; its addresses are host addresses.

    Raises
    ------
    DeviceError
        If there is no memory for the elements of a source that may overlap the destination: code 2.
    ValueError
        If the copy is invalid.
    """
    encoded = pack_strided_copy(copy)
    code = _run_now(encoded, len(encoded))
    if code < 0:
        raise ValueError(f"invalid strided copy: {copy}")
    if code:
        raise DeviceError("no memory to buffer the source of an overlapping copy", code=code, call="copy_strided")


def simplify_strided_copy(copy: StridedCopy) -> SimplifiedCopy | None:
    """Return a strided copy with as few axes as possible; None if it has no elements.

    Parameters
    ----------
    copy : StridedCopy
        The copy or the fill.

    Raises
    ------
    ValueError
        If the copy is invalid.
    """
    encoded = pack_strided_copy(copy)
    buffer = ctypes.create_string_buffer(len(encoded) + _AXIS.size)
    size = _simplify(encoded, len(encoded), buffer)
    if size < 0:
        raise ValueError(f"invalid strided copy: {copy}")
    if size == 0:
        return None
    packed = buffer.raw[:size]
    to, source, to_size, source_size, *_ = _HEADER.unpack_from(packed)
    return SimplifiedCopy(packed, to, source, to_size, source_size, tuple(_AXIS.iter_unpack(packed[_HEADER.size :])))


def touched_spans(copy: StridedCopy) -> list[tuple[int, int]]:
    """Return address and size in bytes of the destination and, if it is not a fill, of the source, gaps included.

    Parameters
    ----------
    copy : StridedCopy
        The copy or the fill.
    """
    spans = [_span(copy.to, copy.shape, copy.to_strides, copy.itemsize)]
    if not copy.value:
        size = _SIZES[copy.source_element] if copy.source_element else copy.itemsize
        spans.append(_span(copy.source, copy.shape, copy.source_strides, size))
    return spans


def _span(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    reaches = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    low = address + sum(reach for reach in reaches if reach < 0)
    return low, sum(abs(reach) for reach in reaches) + itemsize
