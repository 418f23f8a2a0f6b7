"""What lies under the allocator: a device's memory and addresses, and how far each stream has come."""

from __future__ import annotations

__all__ = ["Arena", "Memory", "Streams"]

_GRANULE = 2 << 20
_DEVICE_BASE, _DEVICE_SPAN, _RESERVATION_BASE = 0x100000000000, 0x040000000000, 0x200000000000


class Arena:
    """Addresses from `base` on: a range goes to the lowest place where it fits."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.taken: list[tuple[int, int]] = []  # (start, end), sorted

    def place(self, nbytes: int) -> int:
        start = self.base
        for low, high in self.taken:
            if start + nbytes <= low:
                break
            start = high
        self.taken = sorted([*self.taken, (start, start + nbytes)])
        return start

    def remove(self, start: int) -> None:
        self.taken = [taken for taken in self.taken if taken[0] != start]


class Memory:
    """So many bytes, handed out in steps of 2 MiB: with an address, or as pages to be mapped at one."""

    def __init__(self, total: int, other_used: int, index: int) -> None:
        self.total = total
        self.other_used = other_used
        self.used = 0
        self.failures = 0  # so many takes fail from now on
        self.segments = Arena(_DEVICE_BASE + index * _DEVICE_SPAN)
        self.reservations = Arena(_RESERVATION_BASE)

    @property
    def free(self) -> int:
        return max(self.total - self.used - self.other_used, 0)

    def take(self, nbytes: int) -> bool:
        if self.failures:
            self.failures -= 1
            return False
        fits = self.used + self.other_used + nbytes <= self.total
        self.used += nbytes * fits
        return fits

    def allocate(self, nbytes: int) -> int | None:
        nbytes = -(-nbytes // _GRANULE) * _GRANULE
        return self.segments.place(nbytes) if self.take(nbytes) else None

    def release(self, address: int, nbytes: int) -> None:
        self.used -= -(-nbytes // _GRANULE) * _GRANULE
        self.segments.remove(address)


class Streams:
    """Every mark gets the next number. A hold keeps marks unreached, until their stream is waited for or released."""

    def __init__(self) -> None:
        self.now = 1
        self.level = 0
        self.held_from = 0
        self.done: dict[int, int] = {}  # stream to the last mark that is surely reached
        self.all_done = 0  # and for every other stream

    def mark(self) -> int:
        self.now += 1
        return self.now

    def reached(self, stream: int, mark: int) -> bool:
        before_the_hold = self.level == 0 or (self.level == 1 and mark <= self.held_from)
        return before_the_hold or mark <= max(self.done.get(stream, 0), self.all_done)

    def hold(self, level: int) -> None:
        self.level = level
        self.held_from = self.now
        if level == 2:
            self.done, self.all_done = {}, 0

    def wait(self, stream: int, mark: int | None = None) -> None:
        self.done[stream] = max(self.done.get(stream, 0), self.now if mark is None else mark)

    def wait_for_all(self) -> None:
        """Also for streams that were never seen."""
        self.all_done = self.now
