"""Strided copies and fills: by a kernel between memory of the device, else by the host.

Conversions are the host's, with the code of the CPU device: half of them involve doubles, which Metal does not have.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial

from forebay.backends.common.strided_copy_encoding import (
    SimplifiedCopy,
    copy_strided_now,
    simplify_strided_copy,
    touched_spans,
)
from forebay.backends.metal.commands import COMPUTE
from forebay.backends.metal.kernels.library import Argument, dispatch
from forebay.backends.metal.transfers import Transferring, region_of, work_on_host
from forebay.spi import StridedCopy

__all__ = ["launch_strided_copy"]

_JOB = struct.Struct("=3Q4I")
_AXIS = struct.Struct("=Qqq")
_LARGEST_VALUE = 256  # bytes of a fill's element that are an argument of the kernel


def launch_strided_copy(queue: Transferring, copy: StridedCopy) -> None:
    """Queue a strided copy or a fill."""
    simplified = simplify_strided_copy(copy)
    queue.check_usable()
    if simplified is None:
        return
    spans = touched_spans(copy)
    regions = [region_of(queue, low, nbytes, "copy_strided") for low, nbytes in spans]
    fits = None not in regions and not copy.source_element and len(copy.value) <= _LARGEST_VALUE
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
    word = _word(simplified, [low - region.start for (low, _), region in zip(spans, regions, strict=True) if region])
    job = _JOB.pack(count, *origins, simplified.to_size, len(simplified.axes), word, 0)
    axes = b"".join(_AXIS.pack(*axis) for axis in simplified.axes)
    pipeline = queue.owner.kernels.own("strided.metal", "copy_strided")
    queue.add_piece(COMPUTE, partial(dispatch, pipeline, (*arguments, job, axes), count))


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


def _word(copy: SimplifiedCopy, offsets: Sequence[int]) -> int:
    """Return how many bytes the kernel copies at once: 8, 4, 2 or 1, to which all elements are aligned."""
    together = copy.to_size | 8
    for offset in (*offsets, copy.to):
        together |= offset
    if copy.source:
        together |= copy.source
    for _, to_step, source_step in copy.axes:
        together |= to_step | source_step
    return together & -together
