"""Heaps of a device, their buffers, and the gaps between buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Buffer", "Heap", "HeapPool", "Row"]

Row = tuple[int, int, str, int]  # offset, bytes, state, age


@dataclass(eq=False)
class Buffer:
    """A part of a heap, which keeps its size until it is released."""

    heap: Heap
    offset: int
    size: int
    state: str = "live"  # then "waiting" if queues still use it, then "cached"
    age: int = 0  # searches of its pool since it was cached
    users: set[int] = field(default_factory=set)  # queues that must finish before the buffer is free


@dataclass(eq=False)
class Heap:
    """Memory from the device: its sequence number, its size, and its buffers by offset."""

    number: int
    size: int
    pool: HeapPool
    own: bool  # dedicated to one buffer
    buffers: list[Buffer] = field(default_factory=list)

    def gaps(self) -> list[tuple[int, int]]:
        """Return size and offset of each gap."""
        ends = [0, *(buffer.offset + buffer.size for buffer in self.buffers)]
        starts = [*(buffer.offset for buffer in self.buffers), self.size]
        return [(start - end, end) for end, start in zip(ends, starts, strict=True) if start > end]

    @property
    def available(self) -> int:
        """The largest gap."""
        return max((size for size, _ in self.gaps()), default=0)

    def put(self, size: int) -> Buffer:
        """Place a buffer at the beginning of the smallest sufficient gap; among equal gaps, the first."""
        _, offset = min(gap for gap in self.gaps() if gap[0] >= size)
        buffer = Buffer(self, offset, size)
        self.buffers = sorted([*self.buffers, buffer], key=lambda each: each.offset)
        return buffer

    def layout(self) -> tuple[int, int, list[Row]]:
        """Return the number, the size, and the rows of buffers and gaps that tile the heap."""
        rows = [(b.offset, b.size, b.state, b.age) for b in self.buffers]
        return self.number, self.size, sorted([*rows, *((offset, size, "gap", 0) for size, offset in self.gaps())])


@dataclass(eq=False)
class HeapPool:
    """Heaps of one queue and usage, oldest first."""

    queue: int
    name: str
    heaps: list[Heap] = field(default_factory=list)

    @property
    def small(self) -> bool:
        return self.name in {"scalar", "shared small", "private small"}

    @property
    def storage(self) -> str:
        """The storage mode named in errors."""
        return "private" if self.name.startswith("private") else "shared"

    def cached(self) -> list[Buffer]:
        """Return the cached buffers by size, then age of the heap, then offset."""
        found = [buffer for heap in self.heaps for buffer in heap.buffers if buffer.state == "cached"]
        return sorted(found, key=lambda buffer: (buffer.size, buffer.heap.number, buffer.offset))
