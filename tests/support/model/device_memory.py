"""The device below the allocator: its memory, its addresses, and the progress of its streams."""

from __future__ import annotations

__all__ = ["Arena", "Memory", "Streams"]

_GRANULE = 2 << 20
_DEVICE_BASE, _DEVICE_SPAN, _RESERVATION_BASE = 0x100000000000, 0x040000000000, 0x200000000000


class Arena:
    """First-fit allocator of addresses from `base` on."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.ranges: list[tuple[int, int]] = []  # (start, end), sorted

    def place(self, nbytes: int) -> int:
        start = self.base
        for low, high in self.ranges:
            if start + nbytes <= low:
                break
            start = high
        self.ranges = sorted([*self.ranges, (start, start + nbytes)])
        return start

    def remove(self, start: int) -> None:
        self.ranges = [each for each in self.ranges if each[0] != start]


class Memory:
    """Device memory in units of 2 MiB: segments with an address, or pages to be mapped."""

    def __init__(self, total: int, other_used: int, index: int) -> None:
        self.total = total
        self.other_used = other_used
        self.used = 0
        self.failures = 0  # number of following reservations that fail
        self.segments = Arena(_DEVICE_BASE + index * _DEVICE_SPAN)
        self.reservations = Arena(_RESERVATION_BASE)

    @property
    def free(self) -> int:
        return max(self.total - self.used - self.other_used, 0)

    def reserve(self, nbytes: int) -> bool:
        if self.failures:
            self.failures -= 1
            return False
        fits = self.used + self.other_used + nbytes <= self.total
        self.used += nbytes * fits
        return fits

    def allocate(self, nbytes: int) -> int | None:
        nbytes = -(-nbytes // _GRANULE) * _GRANULE
        return self.segments.place(nbytes) if self.reserve(nbytes) else None

    def release(self, address: int, nbytes: int) -> None:
        self.used -= -(-nbytes // _GRANULE) * _GRANULE
        self.segments.remove(address)


class Streams:
    """Progress of streams. Marks are numbered; a hold keeps them unreached until a release or a wait."""

    def __init__(self) -> None:
        self.now = 1
        self.level = 0
        self.held_from = 0
        self.done: dict[int, int] = {}  # by stream: the last mark known to be reached
        self.all_done = 0  # the same for all other streams

    def mark(self) -> int:
        self.now += 1
        return self.now

    def reached(self, stream: int, mark: int) -> bool:
        before_hold = self.level == 0 or (self.level == 1 and mark <= self.held_from)
        return before_hold or mark <= max(self.done.get(stream, 0), self.all_done)

    def hold(self, level: int) -> None:
        self.level = level
        self.held_from = self.now
        if level == 2:
            self.done, self.all_done = {}, 0

    def wait(self, stream: int, mark: int | None = None) -> None:
        self.done[stream] = max(self.done.get(stream, 0), self.now if mark is None else mark)

    def wait_for_all(self) -> None:
        """Mark all work as done, including that of unknown streams."""
        self.all_done = self.now
