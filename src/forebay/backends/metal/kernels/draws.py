"""Random fills: by a kernel if floats suffice, else by the host. Both compute the numbers of the CPU device."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np

from forebay.backends.metal.commands import COMPUTE
from forebay.backends.metal.kernels.library import dispatch
from forebay.backends.metal.transfers import Transferring, region_of, work_on_host
from forebay.spi import Draw
from forebay.vendor import draw_now, element_size, is_valid_draw, pack_draw, written_range

__all__ = ["launch_draw"]

_LAWS = {"uniform", "normal", "exponential", "bernoulli", "integers"}  # others compute with doubles
_FLOATS = {
    "float32": ("uint", "as_type<uint>(float(number))"),
    "float16": ("ushort", "float16_of(float(number))"),
    "bfloat16": ("ushort", "bfloat16_of(float(number))"),
}
_INTEGERS = {
    "bool": ("uchar", "uchar((number) != 0)"),
    **{
        f"{sign}int{bits}": (f"{sign}{name}", f"{sign}{name}(number)")
        for sign in ("", "u")
        for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    },
}
_ELEMENTS = {**_FLOATS, **_INTEGERS}
_JOB = struct.Struct("=7Q3f3I")
_AXIS = struct.Struct("=Qq")


def launch_draw(queue: Transferring, draw: Draw) -> None:
    """Queue a random fill."""
    if not is_valid_draw(pack_draw(draw)):
        raise ValueError(f"invalid draw: {draw}")
    queue.check_usable()
    if not draw.elements:
        return
    low, nbytes = written_range(draw)
    region = region_of(queue, low, nbytes, "draw")
    if region is None or not _on_gpu(draw):
        _draw_on_host(queue, draw, low, nbytes)
        return
    law = f"LAW_{draw.distribution.upper()}{'_64' if draw.is_64bit else ''}"
    bits, store = _ELEMENTS[draw.element]
    macros = {law: law, "BITS": bits, "STORE(number)": store}
    pipeline = queue.owner.kernels.own("draw.metal", "draw_numbers", before="philox.metal", macros=macros)
    size = element_size(draw.element)
    aligned = not any(
        part % size for part in (low - region.start, draw.address - low, *(step for _, step in draw.axes))
    )
    job = _JOB.pack(
        draw.elements,
        draw.seed,
        draw.offset,
        draw.threads,
        draw.range & (1 << 64) - 1,
        draw.base & (1 << 64) - 1,
        draw.address - low,
        *_parameters(draw),
        len(draw.axes),
        aligned,
        0,
    )
    axes = b"".join(_AXIS.pack(*axis) for axis in draw.axes) or bytes(_AXIS.size)
    threads = min(draw.elements, draw.threads)
    arguments = ((region.buffer, low - region.start), job, axes)
    queue.add_piece(COMPUTE, partial(dispatch, pipeline, arguments, threads))


def _on_gpu(draw: Draw) -> bool:
    if draw.distribution in ("uniform", "normal", "exponential"):
        return draw.element in _FLOATS
    return draw.distribution in _LAWS and draw.element in _ELEMENTS


def _parameters(draw: Draw) -> tuple[float, float, float]:
    """Return the parameters of the law, which are floats, rounded as the native core rounds them."""
    with np.errstate(all="ignore"):
        first, second, third = (float(np.float32(number)) for number in draw.numbers)
        if draw.distribution == "exponential":
            first = float(np.float32(-1) / np.float32(first))
    return first, second, third


def _draw_on_host(queue: Transferring, draw: Draw, low: int, nbytes: int) -> None:
    spans = [(low, nbytes, True)]
    if draw.probabilities:
        spans.append((draw.probabilities, draw.elements * (8 if draw.element == "float64" else 4), False))

    def make(addresses: list[int]) -> partial[None]:
        moved = draw._replace(address=draw.address - low + addresses[0])
        return partial(draw_now, moved._replace(probabilities=addresses[1]) if draw.probabilities else moved)

    work_on_host(queue, spans, make)  # type: ignore[arg-type]  # a list is a sequence
