"""Copies and fills: blits between buffers, kernels where Metal's blits are restricted, and the host for other memory.

A blit needs offsets and sizes that are multiples of 4 on macOS, and ranges of one buffer that do not overlap. Memory of
the host has no buffer. It is copied by the host if the other side is shared memory, and by way of a shared buffer
otherwise.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from forebay.backends.metal.commands import BLIT, COMPUTE
from forebay.backends.metal.kernels.library import Kernels, dispatch
from forebay.backends.metal.memory import Region, Regions
from forebay.errors import DeviceError
from forebay.vendor import cuda_errors

__all__ = ["Transferring", "copy", "fill", "on_host", "region_of", "work_on_host"]

_WORD = 4  # bytes: granularity of blits
_LARGEST_FILL = 127  # of blits: PyObjC passes the value as a signed char, and Metal expects an unsigned number


class _Owner(Protocol):
    name: str
    regions: Regions

    @property
    def kernels(self) -> Kernels: ...
    def scratch(self, nbytes: int) -> Region: ...


class Transferring(Protocol):
    """The part of a queue that copies, fills and kernels use."""

    @property
    def owner(self) -> _Owner: ...
    def check_usable(self) -> None: ...
    def add_piece(self, encoder: str, encode: Callable[[Any], object]) -> None: ...
    def add_host_call(self, function: Callable[[], object], *, here: bool = False) -> None: ...


def copy(queue: Transferring, to: int, source: int, nbytes: int) -> None:
    """Queue a copy between any two ranges of memory."""
    if to == source:
        return
    there, here = region_of(queue, to, nbytes, "copy"), region_of(queue, source, nbytes, "copy")
    overlap = max(to, source) < min(to, source) + nbytes
    if there is None or here is None or overlap:
        spans = ((to, nbytes, True), (source, nbytes, False))
        work_on_host(queue, spans, lambda at: partial(ctypes.memmove, at[0], at[1], nbytes))
        return
    to_offset, source_offset = to - there.start, source - here.start
    if (to_offset | source_offset | nbytes) % _WORD == 0:
        queue.add_piece(BLIT, partial(_blit, here.buffer, source_offset, there.buffer, to_offset, nbytes))
        return
    pipeline = queue.owner.kernels.own("bytes.metal", "copy_bytes")
    buffers = ((there.buffer, to_offset), (here.buffer, source_offset), struct.pack("=Q", nbytes))
    queue.add_piece(COMPUTE, partial(dispatch, pipeline, buffers, nbytes))


def fill(queue: Transferring, to: int, byte: int, nbytes: int) -> None:
    """Queue a fill of a range of memory with a byte."""
    region = region_of(queue, to, nbytes, "fill")
    if region is None:
        queue.add_host_call(partial(ctypes.memset, to, byte, nbytes), here=True)
        return
    offset = to - region.start
    if (offset | nbytes) % _WORD == 0 and byte <= _LARGEST_FILL:
        queue.add_piece(BLIT, partial(_fill, region.buffer, offset, nbytes, byte))
        return
    pipeline = queue.owner.kernels.own("bytes.metal", "fill_bytes")
    queue.add_piece(
        COMPUTE,
        partial(dispatch, pipeline, ((region.buffer, offset), bytes([byte]), struct.pack("=Q", nbytes)), nbytes),
    )


def _blit(source: Any, source_offset: int, to: Any, to_offset: int, nbytes: int, encoder: Any) -> None:
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, source_offset, to, to_offset, nbytes)


def _fill(buffer: Any, offset: int, nbytes: int, byte: int, encoder: Any) -> None:
    encoder.fillBuffer_range_value_(buffer, (offset, nbytes), byte)


def region_of(queue: Transferring, address: int, nbytes: int, call: str) -> Region | None:
    """Return the device memory that contains a range; None for memory of the host.

    Raises DeviceError if only a part of the range is memory of the device.
    """
    region = queue.owner.regions.find(address)
    if region is not None and address + nbytes > region.start + region.length:
        name = queue.owner.name
        message = f"{name}: {nbytes} bytes at {address:#x} end beyond the memory at {region.start:#x}"
        message += f", which has {region.length} bytes"
        raise DeviceError(message, code=cuda_errors.INVALID_VALUE, call=call, device=name)
    return region


_Span = tuple[int, int, bool]  # address, size in bytes, and whether it is written


def on_host(queue: Transferring, spans: Sequence[_Span], function: Callable[[], object]) -> None:
    """Queue a function of the host that uses memory that the host can access."""
    kept = [queue.owner.regions.find(address) for address, _, _ in spans]
    queue.add_host_call(partial(_run, function, kept), here=True)


def work_on_host(
    queue: Transferring, spans: Sequence[_Span], make: Callable[[Sequence[int]], Callable[[], object]]
) -> None:
    """Queue a function that `make` returns for the addresses of some ranges of memory.

    Ranges in private memory are replaced by copies in shared memory, which are copied there and back.
    """
    with _accessible(queue, spans) as addresses:
        moved = [(at, nbytes, written) for at, (_, nbytes, written) in zip(addresses, spans, strict=True)]
        on_host(queue, moved, make(addresses))


@contextmanager
def _accessible(queue: Transferring, spans: Sequence[_Span]) -> Iterator[list[int]]:
    addresses, written_back = [], []
    scratch: list[Region] = []
    for address, nbytes, written in spans:
        region = region_of(queue, address, nbytes, "copy")
        if region is None or region.shared:
            addresses.append(address)
            continue
        slack = (address - region.start) % _WORD
        stand_in = queue.owner.scratch(nbytes + slack)
        scratch.append(stand_in)
        addresses.append(stand_in.start + slack)
        copy(queue, addresses[-1], address, nbytes)
        if written:
            written_back.append((address, addresses[-1], nbytes))
    yield addresses
    for to, source, nbytes in written_back:
        copy(queue, to, source, nbytes)
    if scratch:  # they stay in the table until the work is done
        queue.add_host_call(partial(_drop, queue.owner.regions, scratch))


def _run(function: Callable[[], object], kept: object) -> None:  # noqa: ARG001 -- keeps buffers alive
    function()


def _drop(regions: Regions, scratch: Sequence[Region]) -> None:
    for region in scratch:
        regions.remove(region.start)
