"""Explanations of OutOfMemory errors: where the free memory is, and which call sites hold the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from forebay._base.byte_sizes import format_bytes
from forebay.records.model import Snapshot, State
from forebay.runtime.history import memory_snapshot

if TYPE_CHECKING:
    from forebay.runtime.allocator.request import AllocRequest
    from forebay.runtime.history.recorded_pool import RecordedPool

    Adviser = Callable[[Snapshot, RecordedPool, AllocRequest], list[str]]  # returns remedies, as lines for the text

__all__ = ["explain", "largest_holders"]

_MAX_SITES = 3  # named in the text


def explain(pool: RecordedPool, request: AllocRequest, capacity: int, advisers: list[Adviser]) -> list[str]:
    """Return the lines for a request that no recovery step could serve. Raises MemoryError if NumPy finds no memory."""
    snapshot = memory_snapshot.snapshot(pool, pool.name, capacity, trace=bool(advisers))
    lines = _free_blocks(snapshot, request, is_host=pool.port.props.kind == "cpu")
    if not pool.recording:
        return [
            *lines,
            "  To see which call sites hold it, call forebay.memory.record_history() before allocating.",
        ]
    lines += largest_holders(snapshot)
    lines += _fragmentation(snapshot, request)
    for adviser in advisers:
        lines += adviser(snapshot, pool, request)
    return lines


def largest_holders(snapshot: Snapshot) -> list[str]:
    """Return one line for each of the call sites that hold the most memory."""
    live = snapshot.blocks[snapshot.blocks["state"] == State.LIVE]
    return [
        f"  {format_bytes(nbytes)} in {count} {'block' if count == 1 else 'blocks'}: {label}"
        for nbytes, count, label in _largest_sites(snapshot, live["stack"], live["requested"])
    ]


def _free_blocks(snapshot: Snapshot, request: AllocRequest, *, is_host: bool) -> list[str]:
    """Describe where the free memory is: by stream, which arrays in the memory of the machine have none of."""
    free = snapshot.blocks[snapshot.blocks["state"] == State.FREE]
    if not len(free):
        return []
    segment = snapshot.segments[free["segment"]]
    largest = int(np.argmax(free["nbytes"]))
    stream = "" if is_host else f", for stream {int(segment['queue'][largest])}"
    where = f"at {int(free['address'][largest]):#x}{stream}"
    lines = [f"  The largest free block is {format_bytes(int(free['nbytes'][largest]))}, {where}."]
    eligible = (
        (segment["queue"] == request.queue)
        & (segment["small"] == request.small)
        & (segment["pool"] == request.pool_number)
    )
    usable = free["nbytes"][eligible]
    best = int(usable.max(initial=0))
    if best < int(free["nbytes"][largest]):
        usable_text = "none" if best == 0 else f"at most {format_bytes(best)}"
        lines.append(f"  Usable for {'this size' if is_host else 'this size and stream'}: {usable_text}.")
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
    from forebay.records.sites import find_sites  # late: its expressions take 30 ms of the start of each program

    known = find_sites(snapshot)
    site = known.of_stack[stacks]
    nbytes = np.bincount(site, sizes, len(known.frames)).astype(np.int64)
    count = np.bincount(site, minlength=len(known.frames))
    for at in [int(at) for at in np.argsort(-nbytes, kind="stable")[:_MAX_SITES] if nbytes[at]]:
        label = known.labels[at] if at > 1 else "unknown origin (the history was off or recorded no stacks)"
        yield int(nbytes[at]), int(count[at]), label
