"""Strided copies, conversions and fills: by a kernel between memory of the device, else by the host.

The host converts what involves doubles or complex numbers, which Metal does not have, and floats to integers, with the
code of the CPU device.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial

from forebay.backends.metal.commands import COMPUTE
from forebay.backends.metal.kernels.library import Argument, dispatch
from forebay.backends.metal.transfers import Transferring, region_of, work_on_host
from forebay.spi import StridedCopy
from forebay.vendor import SimplifiedCopy, copy_strided_now, simplify_strided_copy, touched_spans

__all__ = ["launch_strided_copy"]

_JOB, _CONVERT_JOB = struct.Struct("=3Q4I"), struct.Struct("=3Q2I")
_AXIS = struct.Struct("=Qqq")
_INTEGERS = {
    f"{sign}int{bits}": f"{sign}{name}"
    for sign in ("", "u")
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
}
# By element: the type of its bits, its value from the bits, and the bits of a value.
_FORMS = {
    "bool": ("uchar", "uchar((bits) != 0)", "uchar(is_true(value))"),
    **{name: (bits, "(bits)", f"{bits}(value)") for name, bits in _INTEGERS.items()},
    "float16": ("ushort", "float_of_float16(bits)", "float16_of(float(value))"),
    "bfloat16": ("ushort", "float_of_bfloat16(bits)", "bfloat16_of(float(value))"),
    "float32": ("uint", "as_type<float>(bits)", "as_type<uint>(float(value))"),
}
_FLOATS = {"float16", "bfloat16", "float32"}
_LARGEST_VALUE = 256  # bytes of a fill's element that are an argument of the kernel


def launch_strided_copy(queue: Transferring, copy: StridedCopy) -> None:
    """Queue a strided copy or a fill."""
    simplified = simplify_strided_copy(copy)
    queue.check_usable()
    if simplified is None:
        return
    spans = touched_spans(copy)
    regions = [region_of(queue, low, nbytes, "copy_strided") for low, nbytes in spans]
    fits = None not in regions and _is_converted_by_gpu(copy) and len(copy.value) <= _LARGEST_VALUE
    if not fits or _may_overlap(copy, spans):
        _copy_on_host(queue, copy, spans)
        return
    arguments: list[Argument] = []
    origins: list[int] = []
    for (low, _), region, address in zip(spans, regions, (simplified.to, simplified.source), strict=False):
        assert region is not None  # noqa: S101 -- `fits`
        arguments.append((region.buffer, low - region.start))
        origins.append(address - low)
    if copy.value:
        arguments.append(copy.value)
        origins.append(0)
    count = math.prod(length for length, _, _ in simplified.axes)
    axes = b"".join(_AXIS.pack(*axis) for axis in simplified.axes)
    kernels = queue.owner.kernels
    if copy.source_element:
        job = _CONVERT_JOB.pack(count, *origins, len(simplified.axes), _is_aligned(simplified))
        (from_bits, load, _), (to_bits, _, store) = _FORMS[copy.source_element], _FORMS[copy.element]
        if copy.element == "bool" and copy.source_element not in _FLOATS:
            store = "uchar((value) != 0)"
        macros = {"FROM_BITS": from_bits, "LOAD(bits)": load, "TO_BITS": to_bits, "STORE(value)": store}
        pipeline = kernels.own("convert.metal", "convert", before="philox.metal", macros=macros)
    else:
        job = _JOB.pack(count, *origins, simplified.to_size, len(simplified.axes), _word(simplified), 0)
        pipeline = kernels.own("strided.metal", "copy_strided")
    queue.add_piece(COMPUTE, partial(dispatch, pipeline, (*arguments, job, axes), count))


def _is_converted_by_gpu(copy: StridedCopy) -> bool:
    """Return True if a kernel converts the elements with the results of the host, or there is no conversion."""
    source, to = copy.source_element, copy.element
    if not source:
        return True
    return source in _FORMS and to in _FORMS and not (source in _FLOATS and to in _INTEGERS)


def _may_overlap(copy: StridedCopy, spans: Sequence[tuple[int, int]]) -> bool:
    """Return True if the source must be read before the destination is written."""
    if not copy.may_overlap or copy.value:
        return False
    (to, to_size), (source, source_size) = spans
    return max(to, source) < min(to + to_size, source + source_size)


def _copy_on_host(queue: Transferring, copy: StridedCopy, spans: Sequence[tuple[int, int]]) -> None:
    def make(addresses: Sequence[int]) -> partial[None]:
        moved = copy._replace(to=copy.to - spans[0][0] + addresses[0])
        if not copy.value:
            moved = moved._replace(source=copy.source - spans[1][0] + addresses[1])
        return partial(copy_strided_now, moved)

    work_on_host(queue, [(low, nbytes, at == 0) for at, (low, nbytes) in enumerate(spans)], make)


def _is_aligned(copy: SimplifiedCopy) -> bool:
    """Return True if all elements are aligned to their size. Buffers begin at pages."""
    to, source = copy.to, copy.source
    for _, to_step, source_step in copy.axes:
        to |= to_step
        source |= source_step
    return to % copy.to_size == 0 and source % copy.source_size == 0


def _word(copy: SimplifiedCopy) -> int:
    """Return how many bytes the kernel copies at once: 8, 4, 2 or 1, to which all elements are aligned."""
    together = copy.to_size | 8 | copy.to | copy.source
    for _, to_step, source_step in copy.axes:
        together |= to_step | source_step
    return together & -together
