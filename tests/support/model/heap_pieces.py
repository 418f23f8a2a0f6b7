"""What a device of heaps keeps its memory in: heaps, and buffers in them. Room is what no buffer covers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Buffer", "Heap", "HeapPool", "Row"]

Row = tuple[int, int, str, int]  # offset, bytes, what it is, its age


@dataclass(eq=False)
class Buffer:
    """A piece of a heap, which stays as long as it is until it is released."""

    heap: Heap
    offset: int
    size: int
    state: str = "live"  # then "waiting", if queues still use it; then "cached"
    age: int = 0  # how often its pool was searched while it was cached
    users: set[int] = field(default_factory=set)  # queues that must be done with it before it is free


@dataclass(eq=False)
class Heap:
    """Memory from the device: the how manieth it was, its size, and its buffers by offset."""

    number: int
    size: int
    pool: HeapPool
    own: bool  # it came for one buffer, and is as large
    buffers: list[Buffer] = field(default_factory=list)

    def rooms(self) -> list[tuple[int, int]]:
        """Size and offset of each."""
        ends = [0, *(buffer.offset + buffer.size for buffer in self.buffers)]
        starts = [*(buffer.offset for buffer in self.buffers), self.size]
        return [(start - end, end) for end, start in zip(ends, starts, strict=True) if start > end]

    @property
    def available(self) -> int:
        """The largest buffer that it has room for."""
        return max((size for size, _ in self.rooms()), default=0)

    def put(self, size: int) -> Buffer:
        """At the beginning of the smallest room that is large enough; of equal ones the first."""
        _, offset = min(room for room in self.rooms() if room[0] >= size)
        buffer = Buffer(self, offset, size)
        self.buffers = sorted([*self.buffers, buffer], key=lambda each: each.offset)
        return buffer

    def picture(self) -> tuple[int, int, list[Row]]:
        """Its number, its size, and all that tiles it."""
        rows = [(b.offset, b.size, b.state, b.age) for b in self.buffers]
        return self.number, self.size, sorted([*rows, *((offset, size, "room", 0) for size, offset in self.rooms())])


@dataclass(eq=False)
class HeapPool:
    """Heaps of one queue and one use, in the order in which they came."""

    queue: int
    name: str
    heaps: list[Heap] = field(default_factory=list)

    @property
    def small(self) -> bool:
        return self.name in {"scalar", "shared small", "private small"}

    @property
    def storage(self) -> str:
        """The words of an error for it."""
        return "private" if self.name.startswith("private") else "shared"

    def cached(self) -> list[Buffer]:
        """Smallest first; of equal ones that of the oldest heap, and there the lowest."""
        found = [buffer for heap in self.heaps for buffer in heap.buffers if buffer.state == "cached"]
        return sorted(found, key=lambda buffer: (buffer.size, buffer.heap.number, buffer.offset))
