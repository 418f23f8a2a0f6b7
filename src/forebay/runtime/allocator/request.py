"""A request for memory that the allocator's recovery steps work on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AllocRequest"]


@dataclass(slots=True)
class AllocRequest:
    """One allocation for which the pool had no free block. Sizes are bytes."""

    nbytes: int  # as requested by the caller
    size: int  # of the block, rounded up
    segment: int  # of the segment to reserve from the device
    small: bool
    queue: int
    pool_number: int
    stack: int = 0  # of the caller, for the history: `Pool.caller_stack`
    memory_pressure: bool = False  # heaps only (`has_memory_pressure` in PyTorch)
