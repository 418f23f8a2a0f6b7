"""Why there was no memory, in words: PyTorch's sentence, then where the free memory lies and who holds the rest."""

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
from forebay.snapshot.sites import label_of, site_of
from forebay.spi import Occupied

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.allocator.expandable_segments import Request

__all__ = [
    "ADVISERS",
    "DOCUMENTATION",
    "MOST_BYTES",
    "beyond",
    "explain",
    "heap_sentence",
    "holders",
    "rejected",
    "sentence",
    "too_long",
]

DOCUMENTATION = "https://forebay.readthedocs.io/en/stable/how-to/out-of-memory.html"
MOST_BYTES = 1 << 60  # PyTorch's bound, and the core's: so much is asked of no device
_SITES = 3  # named in the text

# Asked, with the history and the request, what would have helped; each gives lines for the text.
ADVISERS: list[Callable[[Snapshot, Allocator, Request], list[str]]] = []


def beyond(name: str, wanted: int) -> OutOfMemory:
    """The error for a request of MOST_BYTES or more, which no remedy is tried for."""
    message = f"{_kind(name)} out of memory. Tried to allocate more than 1EB memory."  # as PyTorch says it
    return OutOfMemory(message, wanted=wanted, device=name)


def rejected(name: str, request: Request) -> OutOfMemory:
    """The error of `throw_on_cudamalloc_oom`, which comes before the device is asked."""
    message = (
        f"{_kind(name)} out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {_size(request.nbytes)}"
    )
    return OutOfMemory(message, wanted=request.nbytes, device=name)


def explain(allocator: Allocator, request: Request, sentence: str, free: int, capacity: int) -> OutOfMemory:
    """The error for a request that no remedy helped; names those who hold most when the history is on."""
    lines = [sentence]
    if allocator.explains:
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


def _explanation(allocator: Allocator, request: Request, capacity: int) -> list[str]:
    lines = []
    asked, needed = format_bytes(request.nbytes), format_bytes(request.segment)
    if request.segment >= request.nbytes + (1 << 20) and asked != needed:
        lines.append(f"  {asked} were asked for, for which a segment of {needed} is needed.")
    try:
        snapshot = memory_snapshot.snapshot(allocator, allocator.name, capacity, trace=bool(ADVISERS))
        lines += _pieces(snapshot, request)
        if allocator.recording:
            lines += holders(snapshot)
            lines += _pinning(snapshot, request)
            for adviser in ADVISERS:
                lines += adviser(snapshot, allocator, request)
        else:
            lines.append(
                "  Who holds it is not known: forebay.memory.record_history() before the allocations would tell."
            )
    except MemoryError:  # NumPy may be living in this very pool
        lines.append("  There was not even memory to find out who holds it.")
    return lines


def holders(snapshot: Snapshot) -> list[str]:
    """A line for each of the sites that hold most."""
    live = snapshot.blocks[snapshot.blocks["state"] == State.LIVE]
    return [
        f"  {format_bytes(nbytes)} in {count} {'block' if count == 1 else 'blocks'}: {label}"
        for nbytes, count, label in _most(snapshot, live["stack"], live["requested"])
    ]


def sentence(allocator: Allocator, request: Request, free: int, capacity: int) -> str:
    """PyTorch's, to the letter (torch-semantics 3.7)."""
    reserved, allocated = allocator.current(RESERVED_BYTES), allocator.current(ALLOCATED_BYTES)
    private = _idle_in_private_pools(allocator)
    text = f"{_kind(allocator.name)} out of memory. Tried to allocate {_size(request.segment)}. "
    text += f"{_device(allocator)} has a total capacity of {_size(capacity)} of which {_size(free)} is free. "
    if isinstance(allocator.port, Occupied):
        text += "".join(_occupants(allocator.port.occupants()))
    if allocator.limit is not None:
        text += f"{_size(allocator.limit)} allowed; "
    text += f"Of the allocated memory {_size(allocated + private)} is allocated by forebay, "
    if private:
        text += f"with {_size(private)} allocated in private pools (e.g., CUDA Graphs), "
    text += f"and {_size(reserved - allocated - private)} is reserved by forebay but unallocated."
    if allocator.grows and (reserve := allocator.settings.expandable_reserve(capacity)) < request.segment <= capacity:
        return text + (
            f" This allocation exceeds the expandable-segment reserve of {_size(reserve)} for this stream, and a single"
            " allocation cannot span expandable segments. Raise FOREBAY_ALLOC_CONF expandable_segments_reserve or"
            " expandable_segments_reserve_by_class (or unset it) so that a segment is at least"
            f" {_size(request.segment)}."
        )
    if allocator.grows:
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


def heap_sentence(allocator: Allocator, request: Request, other: int, pool: str) -> str:
    """The same of an MPS device (torch-semantics 4.1): bytes of others than the allocator, and which buffer pool."""
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


def too_long(nbytes: int) -> ForebayError:
    """The error for a request that no single buffer can have."""
    return ForebayError(f"Invalid buffer size: {_metal_size(nbytes)}")


def _metal_size(nbytes: int) -> str:
    return _size(nbytes if nbytes <= 1024 else float(np.float32(nbytes)), ("KB", "MB", "GB"))  # as PyTorch rounds it


def _pieces(snapshot: Snapshot, request: Request) -> list[str]:
    """Where the free memory lies."""
    free = snapshot.blocks[snapshot.blocks["state"] == State.FREE]
    if not len(free):
        return []
    home = snapshot.segments[free["segment"]]
    largest = int(np.argmax(free["nbytes"]))
    where = f"at {int(free['address'][largest]):#x}, for stream {int(home['queue'][largest])}"
    lines = [f"  The largest free piece is {format_bytes(int(free['nbytes'][largest]))}, {where}."]
    mine = (home["queue"] == request.queue) & (home["small"] == request.small) & (home["home"] == request.home)
    usable = free["nbytes"][mine]
    best = int(usable.max(initial=0))
    if best < int(free["nbytes"][largest]):
        what = "none" if best == 0 else f"at most {format_bytes(best)}"
        lines.append(f"  For this size and stream: {what}.")
    short = usable[usable < request.size]
    if len(short):
        lines.append(
            f"  {format_bytes(int(short.sum()))} are free in {len(short)} "
            f"{'piece' if len(short) == 1 else 'pieces'} too small for {format_bytes(request.nbytes)}."
        )
    return lines


def _pinning(snapshot: Snapshot, request: Request) -> list[str]:
    """Whose blocks keep segments that are mostly free from going back to the device."""
    used = np.zeros(len(snapshot.segments), np.int64)
    busy = snapshot.blocks[snapshot.blocks["state"] != State.FREE]
    np.add.at(used, busy["segment"], busy["nbytes"].astype(np.int64))
    total = snapshot.segments["nbytes"].astype(np.int64)
    pinned = (used > 0) & (used < total)
    idle = int((total - used)[pinned].sum())
    if idle < request.size:
        return []
    many = int(pinned.sum())
    which = "a segment" if many == 1 else f"{many} segments"
    lines = [f"  {format_bytes(idle)} lie idle in {which} that cannot be released, because of"]
    culprits = busy[pinned[busy["segment"]]]
    return lines + [
        f"    {format_bytes(nbytes)} in {count} {'block' if count == 1 else 'blocks'}: {label}"
        for nbytes, count, label in _most(snapshot, culprits["stack"], culprits["requested"])
    ]


def _most(snapshot: Snapshot, stacks: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int, str]]:
    known = site_of(snapshot)
    site = known.of_stack[stacks]
    nbytes = np.bincount(site, sizes, len(known.frames)).astype(np.int64)
    count = np.bincount(site, minlength=len(known.frames))
    for at in [int(at) for at in np.argsort(-nbytes, kind="stable")[:_SITES] if nbytes[at]]:
        label = label_of(known.frames[at]) if at > 1 else "of no known origin, as the history was off or took no stacks"
        yield int(nbytes[at]), int(count[at]), label


def _occupants(holding: Mapping[int, int]) -> Iterator[str]:
    for pid, nbytes in holding.items():
        if pid == os.getpid():
            yield f"Including non-forebay memory, this process has {_size(nbytes)} memory in use. "
        else:
            yield f"Process {pid} has {_size(nbytes)} memory in use. "


def _idle_in_private_pools(allocator: Allocator) -> int:
    return sum(allocator.idle_in(pool.home) for pool in allocator.private)


def _kind(name: str) -> str:
    kind = name.partition(":")[0]
    return kind.upper() if kind in ("cuda", "mps", "mtia") else kind


def _device(allocator: Allocator) -> str:
    props = allocator.port.props
    return f"GPU {props.index}" if props.kind == "cuda" else allocator.name


def _size(nbytes: float, units: tuple[str, str, str] = ("KiB", "MiB", "GiB")) -> str:
    """As PyTorch's texts write it: a size exactly at a border keeps the smaller unit."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    power = 1 if nbytes <= 1 << 20 else 2 if nbytes <= 1 << 30 else 3
    return f"{nbytes / (1 << 10 * power):.2f} {units[power - 1]}"
