"""Why there was no memory, in words: what was wanted, what there is, where it lies and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import OutOfMemory
from penstock.runtime import history
from penstock.runtime.statistics import ALLOCATED_BYTES, RESERVED_BYTES
from penstock.sizes import format_bytes
from penstock.snapshot.model import Snapshot, State
from penstock.snapshot.sites import label_of, site_of

if TYPE_CHECKING:
    from penstock._core import Pool

__all__ = ["MOST_BYTES", "beyond", "explain", "holders"]

MOST_BYTES = 1 << 60  # PyTorch's bound, and the core's: so much is asked of no device
_HOLDERS = 3  # sites named in the text


def beyond(name: str, wanted: int) -> OutOfMemory:
    """The error for a request of MOST_BYTES or more, which no remedy is tried for."""
    message = f"{name} out of memory. Tried to allocate more than 1EB memory."  # as PyTorch says it
    return OutOfMemory(message, wanted=wanted, device=name)


def explain(pool: Pool, name: str, wanted: int, segment: int, queue: int, free: int, capacity: int) -> OutOfMemory:
    """The error for `wanted` bytes in a segment of that size; names those who hold most when the history is on."""
    reserved, allocated = pool.current(RESERVED_BYTES), pool.current(ALLOCATED_BYTES)
    pieces = f"pieces of at most {format_bytes(pool.largest_free())}"
    _, small = pool.segment_size(wanted)
    if (here := pool.largest_free(queue, small)) < pool.largest_free():
        pieces += f" ({format_bytes(here)} for this size and stream)"
    large = f", for which a segment of {format_bytes(segment)} is needed" if segment >= wanted + (1 << 20) else ""
    text = (
        f"{name} out of memory. Tried to allocate {format_bytes(wanted)}{large}. "
        f"{name} has a total capacity of {format_bytes(capacity)} of which {format_bytes(free)} is free. "
        f"{format_bytes(reserved)} is reserved by penstock: {format_bytes(allocated)} allocated, and "
        f"{format_bytes(reserved - allocated)} unallocated in {pieces}."
    )
    lines = [text]
    if pool.recording:
        try:
            lines += holders(history.snapshot(pool, name, capacity, trace=False))
        except MemoryError:  # NumPy may be living in this very pool
            lines.append("  There was not even memory to find out who holds it.")
    else:
        lines.append("  Who holds it is not known: penstock.memory.record_history() before the allocations would tell.")
    return OutOfMemory(
        "\n".join(lines), wanted=wanted, free=free, reserved=reserved, capacity=capacity, call="reserve", device=name
    )


def holders(snapshot: Snapshot) -> list[str]:
    """A line for each of the sites that hold most."""
    live = snapshot.blocks[snapshot.blocks["state"] == State.LIVE]
    known = site_of(snapshot)
    site = known.of_stack[live["stack"]]
    nbytes = np.bincount(site, live["requested"], len(known.frames)).astype(np.int64)
    count = np.bincount(site, minlength=len(known.frames))
    most = [int(at) for at in np.argsort(-nbytes, kind="stable")[:_HOLDERS] if nbytes[at]]
    labels = [label_of(known.frames[at]) if at > 1 else "allocated before the history was on" for at in most]
    return [
        f"  {format_bytes(int(nbytes[at]))} in {count[at]} {'block' if count[at] == 1 else 'blocks'}: {label}"
        for at, label in zip(most, labels, strict=True)
    ]
