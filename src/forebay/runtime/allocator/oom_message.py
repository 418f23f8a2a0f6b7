"""Texts of OutOfMemory errors: PyTorch's text, then where the free memory is and which call sites hold the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from forebay.byte_sizes import format_bytes
from forebay.config import HIGH_WATERMARK
from forebay.errors import ForebayError, OutOfMemory
from forebay.runtime.allocator.statistics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.history import memory_snapshot
from forebay.snapshot.model import Snapshot, State
from forebay.snapshot.sites import find_sites, label_of
from forebay.spi import ProcessUsage
from forebay.system_memory import UNLIMITED

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.allocator.request import AllocRequest

__all__ = [
    "ADVISERS",
    "DOCUMENTATION",
    "MAX_REQUEST_BYTES",
    "heap_text",
    "invalid_buffer_size_error",
    "largest_holders",
    "oom_error",
    "rejected_error",
    "segment_text",
    "too_large_error",
]

DOCUMENTATION = "https://forebay.readthedocs.io/en/stable/how-to/out-of-memory.html"
MAX_REQUEST_BYTES = 1 << 60  # the bound of PyTorch and of the core; a request this large never reaches the device
_MAX_SITES = 3  # named in the text

# Functions that suggest remedies, from the memory history and the request, as lines for the text.
ADVISERS: list[Callable[[Snapshot, Allocator, AllocRequest], list[str]]] = []


def too_large_error(name: str, wanted: int) -> OutOfMemory:
    """Return the error for a request of MOST_BYTES or more, for which no recovery step is tried."""
    message = f"{_kind(name)} out of memory. Tried to allocate more than 1EB memory."  # PyTorch's text
    return OutOfMemory(message, wanted=wanted, device=name)


def rejected_error(name: str, request: AllocRequest) -> OutOfMemory:
    """Return the error of `throw_on_cudamalloc_oom`, raised before the request reaches the device."""
    message = (
        f"{_kind(name)} out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {_size(request.nbytes)}"
    )
    return OutOfMemory(message, wanted=request.nbytes, device=name)


def oom_error(allocator: Allocator, request: AllocRequest, text: str, free: int, capacity: int) -> OutOfMemory:
    """Return the error for a request that no recovery step could serve.

    While the memory history is recorded, the text names the call sites that hold the most memory.
    """
    lines = [text]
    if allocator.explains_oom:
        lines += _explanation(allocator, request, capacity)
    return OutOfMemory(
        "\n".join(lines),
        wanted=request.nbytes,
        free=free,
        reserved=allocator.current(RESERVED_BYTES),
        capacity=capacity,
        call="reserve",
        device=allocator.name,
    )


def _explanation(allocator: Allocator, request: AllocRequest, capacity: int) -> list[str]:
    lines = []
    requested, needed = format_bytes(request.nbytes), format_bytes(request.segment)
    if requested != needed:
        lines.append(f"  The request of {requested} needs a segment of {needed}.")
    if capacity >= UNLIMITED:
        lines.append("  The device has no limit: the system refused the memory.")
    try:
        snapshot = memory_snapshot.snapshot(allocator, allocator.name, capacity, trace=bool(ADVISERS))
        lines += _free_blocks(snapshot, request)
        if allocator.recording:
            lines += largest_holders(snapshot)
            lines += _fragmentation(snapshot, request)
            for adviser in ADVISERS:
                lines += adviser(snapshot, allocator, request)
        else:
            lines.append("  To see which call sites hold it, call forebay.memory.record_history() before allocating.")
    except MemoryError:  # NumPy may allocate from this pool
        lines.append("  There was too little memory to find the call sites that hold it.")
    return lines


def largest_holders(snapshot: Snapshot) -> list[str]:
    """Return one line for each of the call sites that hold the most memory."""
    live = snapshot.blocks[snapshot.blocks["state"] == State.LIVE]
    return [
        f"  {format_bytes(nbytes)} in {count} {'block' if count == 1 else 'blocks'}: {label}"
        for nbytes, count, label in _largest_sites(snapshot, live["stack"], live["requested"])
    ]


def segment_text(allocator: Allocator, request: AllocRequest, free: int, capacity: int) -> str:
    """Return PyTorch's text for a CUDA device, verbatim."""
    reserved, allocated = allocator.current(RESERVED_BYTES), allocator.current(ALLOCATED_BYTES)
    private = _free_in_private_pools(allocator)
    text = f"{_kind(allocator.name)} out of memory. Tried to allocate {_size(request.segment)}. "
    text += f"{_device(allocator)} has a total capacity of {_size(capacity)} of which {_size(free)} is free. "
    if isinstance(allocator.port, ProcessUsage):
        text += "".join(_occupants(allocator.port.process_memory()))
    if allocator.limit is not None:
        text += f"{_size(allocator.limit)} allowed; "
    text += f"Of the allocated memory {_size(allocated + private)} is allocated by forebay, "
    if private:
        text += f"with {_size(private)} allocated in private pools (e.g., CUDA Graphs), "
    text += f"and {_size(reserved - allocated - private)} is reserved by forebay but unallocated."
    if (
        allocator.uses_expandable_segments
        and (reserve := allocator.settings.expandable_reserve(capacity)) < request.segment <= capacity
    ):
        return text + (
            f" This allocation exceeds the expandable-segment reserve of {_size(reserve)} for this stream, and a single"
            " allocation cannot span expandable segments. Raise FOREBAY_ALLOC_CONF expandable_segments_reserve or"
            " expandable_segments_reserve_by_class (or unset it) so that a segment is at least"
            f" {_size(request.segment)}."
        )
    if allocator.uses_expandable_segments:
        return text + (
            " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ),"
            " expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the"
            " number of streams); reduce it via FOREBAY_ALLOC_CONF expandable_segments_reserve /"
            " expandable_segments_reserve_by_class."
        )
    return text + (
        " If reserved but unallocated memory is large try setting FOREBAY_ALLOC_CONF=expandable_segments:True to avoid"
        f" fragmentation.  See documentation for Memory Management  ({DOCUMENTATION})"
    )


def heap_text(allocator: Allocator, request: AllocRequest, other: int, pool: str) -> str:
    """Return PyTorch's text for an MPS device, verbatim.

    `other` is the bytes allocated outside the allocator; `pool` is the storage mode of the buffer pool.
    """
    kind = _kind(allocator.name)
    text = f"{kind} backend out of memory ({kind} allocated: "
    text += f"{_metal_size(allocator.current(RESERVED_BYTES))}, other allocations: {_metal_size(other)}"
    if allocator.limit is not None:
        text += f", max allowed: {_metal_size(allocator.limit)}"
    text += f"). Tried to allocate {_metal_size(request.size)} on {pool} pool."
    if allocator.limit is None:
        return text
    return text + (
        f" Use {HIGH_WATERMARK.name}=0.0 to disable upper limit for memory allocations (may cause system failure)."
    )


def invalid_buffer_size_error(nbytes: int) -> ForebayError:
    """Return the error for a request above the largest buffer size."""
    return ForebayError(f"Invalid buffer size: {_metal_size(nbytes)}")


def _metal_size(nbytes: int) -> str:
    return _size(nbytes if nbytes <= 1024 else float(np.float32(nbytes)), ("KB", "MB", "GB"))  # as PyTorch rounds it


def _free_blocks(snapshot: Snapshot, request: AllocRequest) -> list[str]:
    """Describe where the free memory is."""
    free = snapshot.blocks[snapshot.blocks["state"] == State.FREE]
    if not len(free):
        return []
    segment = snapshot.segments[free["segment"]]
    largest = int(np.argmax(free["nbytes"]))
    where = f"at {int(free['address'][largest]):#x}, for stream {int(segment['queue'][largest])}"
    lines = [f"  The largest free block is {format_bytes(int(free['nbytes'][largest]))}, {where}."]
    eligible = (
        (segment["queue"] == request.queue)
        & (segment["small"] == request.small)
        & (segment["home"] == request.partition)
    )
    usable = free["nbytes"][eligible]
    best = int(usable.max(initial=0))
    if best < int(free["nbytes"][largest]):
        usable_text = "none" if best == 0 else f"at most {format_bytes(best)}"
        lines.append(f"  Usable for this size and stream: {usable_text}.")
    short = usable[usable < request.size]
    if len(short):
        lines.append(
            f"  {format_bytes(int(short.sum()))} are free in {len(short)} "
            f"{'block' if len(short) == 1 else 'blocks'} too small for {format_bytes(request.nbytes)}."
        )
    return lines


def _fragmentation(snapshot: Snapshot, request: AllocRequest) -> list[str]:
    """Name the call sites whose blocks keep partly free segments from being released to the device."""
    used = np.zeros(len(snapshot.segments), np.int64)
    busy = snapshot.blocks[snapshot.blocks["state"] != State.FREE]
    np.add.at(used, busy["segment"], busy["nbytes"].astype(np.int64))
    total = snapshot.segments["nbytes"].astype(np.int64)
    pinned = (used > 0) & (used < total)
    free = int((total - used)[pinned].sum())
    if free < request.size:
        return []
    segments = int(pinned.sum())
    which = "1 segment" if segments == 1 else f"{segments} segments"
    lines = [f"  {format_bytes(free)} are free in {which} that cannot be released because of"]
    pinning = busy[pinned[busy["segment"]]]
    return lines + [
        f"    {format_bytes(nbytes)} in {count} {'block' if count == 1 else 'blocks'}: {label}"
        for nbytes, count, label in _largest_sites(snapshot, pinning["stack"], pinning["requested"])
    ]


def _largest_sites(snapshot: Snapshot, stacks: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int, str]]:
    known = find_sites(snapshot)
    site = known.of_stack[stacks]
    nbytes = np.bincount(site, sizes, len(known.frames)).astype(np.int64)
    count = np.bincount(site, minlength=len(known.frames))
    for at in [int(at) for at in np.argsort(-nbytes, kind="stable")[:_MAX_SITES] if nbytes[at]]:
        label = label_of(known.frames[at]) if at > 1 else "unknown origin (the history was off or recorded no stacks)"
        yield int(nbytes[at]), int(count[at]), label


def _occupants(holding: Mapping[int, int]) -> Iterator[str]:
    for pid, nbytes in holding.items():
        if pid == os.getpid():
            yield f"Including non-forebay memory, this process has {_size(nbytes)} memory in use. "
        else:
            yield f"Process {pid} has {_size(nbytes)} memory in use. "


def _free_in_private_pools(allocator: Allocator) -> int:
    return sum(allocator.free_bytes(pool.partition) for pool in allocator.private)


def _kind(name: str) -> str:
    kind = name.partition(":")[0]
    return kind.upper() if kind in ("cuda", "mps", "mtia") else kind


def _device(allocator: Allocator) -> str:
    props = allocator.port.props
    return f"GPU {props.index}" if props.kind == "cuda" else allocator.name


def _size(nbytes: float, units: tuple[str, str, str] = ("KiB", "MiB", "GiB")) -> str:
    """Format a size as PyTorch's texts do: a size exactly at a unit's boundary keeps the smaller unit."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    power = 1 if nbytes <= 1 << 20 else 2 if nbytes <= 1 << 30 else 3
    return f"{nbytes / (1 << 10 * power):.2f} {units[power - 1]}"
