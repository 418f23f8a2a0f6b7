"""Sets that iterate over streams and pools in PyTorch's order.

# Note [Order of iteration]
PyTorch keeps streams with outstanding work, and pools, in hash tables, and completes pending frees, lends memory and
empties caches in the order of these tables. The order decides which freed blocks merge first, and so later addresses
and `inactive_split.*`: one recorded trace differed in nothing else. So the table itself is reproduced: Robin Hood
hashing with the Fibonacci multiplier, at first 4 slots, doubled when more than half are used, never shrunk. Devices
with PyTorch's stream ids use it. The CPU device has other handles, so no recording could be compared, and uses plain
sets. Rejected: the order of creation, which is PyTorch's with one stream only.
Test: tests/golden/test_golden.py::test_allocator_reproduces_the_trace
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["RobinHoodSet", "pool_set", "stream_set"]

_GOLDEN = 11400714819323198485  # 2**64 divided by the golden ratio


_Member = TypeVar("_Member")


class RobinHoodSet(Generic[_Member]):
    """A set that iterates in the order of a Robin Hood hash table (a farther member displaces a nearer one).

    Each change is made on a copy that then replaces the table, so that another thread or a signal handler always sees a
    consistent table.
    """

    def __init__(self, hash_of: Callable[[_Member], int]) -> None:
        self._table = _Table(hash_of, 0, [])

    def __iter__(self) -> Iterator[_Member]:
        return iter(self._table.members())

    def add(self, new: _Member) -> None:
        if new not in (table := self._table).slots:
            table = table.copy()
            table.add(new)
            self._table = table

    def discard(self, member: _Member) -> None:
        if member in (table := self._table).slots:
            table = table.copy()
            table.remove(member)
            self._table = table


class _Table(Generic[_Member]):
    """A hash table of `buckets` slots (0, or a power of two) and some overflow slots after the last."""

    def __init__(self, hash_of: Callable[[_Member], int], buckets: int, slots: list[_Member | None]) -> None:
        self.hash_of, self.buckets, self.slots = hash_of, buckets, slots

    def copy(self) -> _Table[_Member]:
        return _Table(self.hash_of, self.buckets, self.slots[:])

    def members(self) -> list[_Member]:
        return [member for member in self.slots if member is not None]

    def bucket(self, member: _Member) -> int:
        product = self.hash_of(member) * _GOLDEN % (1 << 64)
        return product >> 64 - (self.buckets.bit_length() - 1)

    def distance(self, at: int) -> int:
        """Return how far the member in slot `at` is from its bucket; -1 for an empty slot."""
        member = self.slots[at]
        return -1 if member is None else at - self.bucket(member)

    def add(self, new: _Member) -> None:
        max_distance = max(4, self.buckets.bit_length() - 1)
        at, distance = self.bucket(new) if self.buckets else 0, 0
        while self.buckets and self.distance(at) >= distance:
            at, distance = at + 1, distance + 1
        if self.buckets == 0 or distance == max_distance or 2 * (len(self.members()) + 1) > self.buckets:
            self.grow()
            self.add(new)
            return
        first, displaced = at, self.slots[at]
        self.slots[at] = new
        while displaced is not None:  # the displaced member looks for a new slot
            distance = at - self.bucket(displaced) + 1
            at += 1
            if distance == max_distance:
                self.slots[first] = displaced
                self.grow()
                self.add(new)
                return
            if self.distance(at) < distance:
                self.slots[at], displaced = displaced, self.slots[at]

    def grow(self) -> None:
        members = self.members()
        self.buckets = max(4, 2 * self.buckets)
        self.slots = [None] * (self.buckets + max(4, self.buckets.bit_length() - 1))
        for member in members:
            self.add(member)

    def remove(self, member: _Member) -> None:
        """Remove the member and shift the following ones back, up to the first that is in its bucket."""
        at = self.slots.index(member)
        self.slots[at] = None
        while at + 1 < len(self.slots) and self.distance(at + 1) > 0:
            self.slots[at], self.slots[at + 1] = self.slots[at + 1], None
            at += 1


def stream_set(device: int, stream_id: Callable[[int], int] | None = None) -> RobinHoodSet[int]:
    """Return an empty set ordered by PyTorch's stream ids.

    Without `stream_id`, stream n is the n-th one created and 0 is the default stream.
    """
    id_of = stream_id or (lambda stream: (stream - 1) * 32 + 3 if stream else 0)
    return RobinHoodSet(lambda stream: 1 << 56 | device << 48 | id_of(stream))


def pool_set() -> RobinHoodSet[tuple[int, int]]:
    """Return an empty set of pools ordered by the n of (0, n), a MemPool's id, or of (n, 0), a graph's."""
    return RobinHoodSet(lambda pool: pool[0] or pool[1])
