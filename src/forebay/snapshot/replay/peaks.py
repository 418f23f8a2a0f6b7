"""Replay of a history on a device with another memory, with what is live at its peak."""

from __future__ import annotations

from typing import NamedTuple

from forebay._core import METRICS, Block
from forebay.records.model import Action
from forebay.snapshot.replay.engine import History
from forebay.snapshot.replay.requests import DEFERRED_FREE

__all__ = ["Peak", "can_follow", "follow"]

_ALLOCATED, _RESERVED = METRICS.index("allocated_bytes"), METRICS.index("reserved_bytes")


class Peak(NamedTuple):
    """The result of a replay. Sizes are in bytes."""

    allocated: int  # peak of the bytes in blocks
    reserved: int  # peak of the bytes in segments
    live: list[tuple[int, int]]  # what is live at the first one: the entries, and the sizes of the blocks
    levels: list[int]  # the bytes in segments and in blocks after each allocation, one after the other
    ran_out: bool  # an allocation ran out of memory, where the replay ended


def can_follow(history: History) -> bool:
    """Return True if a replay is exact: in one pool, no block is freed later than the program frees it."""
    _, action, _, _, _, pool = history.columns
    return not pool.any() and not ((action == Action.FREE_REQUESTED) | (action == DEFERRED_FREE)).any()


def follow(history: History, memory: int | None) -> Peak:
    """Replay a history with its own settings and another memory, None for unlimited memory."""
    device = history.device(memory)
    allocator = device.allocator
    allocate, current = allocator.allocate, allocator.current
    live: dict[int, tuple[Block, int, int]] = {}  # by recorded address: the block, its entry and size
    freed: list[tuple[int, int]] = []  # live at the peak, and freed since
    levels: list[int] = []
    peak, peak_entry, ran_out = 0, -1, False
    for entry, action, address, nbytes, queue, _ in zip(*(each.tolist() for each in history.columns), strict=True):
        if action == Action.ALLOC:
            try:
                block = allocate(nbytes, queue)
            except MemoryError:
                ran_out = True
                break
            live[address] = block, entry, block.size
            allocated = current(_ALLOCATED)
            levels += (current(_RESERVED), allocated)
            if allocated > peak:
                peak, peak_entry = allocated, entry
                freed.clear()
        elif action == Action.FREE_COMPLETED:
            block, at, size = live.pop(address)
            if at <= peak_entry:
                freed.append((at, size))
            block.free()
        else:
            allocator.empty()
    at_peak = freed + [(at, size) for _, at, size in live.values() if at <= peak_entry]
    found = Peak(device.peak("allocated_bytes"), device.peak("reserved_bytes"), at_peak, levels, ran_out)
    for block, *_ in live.values():
        block.free()
    return found
