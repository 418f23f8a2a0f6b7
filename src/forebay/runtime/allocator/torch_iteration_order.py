"""The order in which PyTorch visits streams and pools. It shows in the statistics, so it belongs to what is equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["HashOrder", "of_pools", "of_streams"]

_GOLDEN = 11400714819323198485  # 2**64 divided by the golden ratio


_Member = TypeVar("_Member")


class HashOrder(Generic[_Member]):
    """A set of numbers in the order of a Robin Hood hash table: who is farther from home takes the holder's slot.

    Each change is made on a copy, which then takes the table's place: whoever comes in between, another thread or a
    signal handler, finds it whole.
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
    """`places` homes, a power of two once something is in, and some slots behind the last."""

    def __init__(self, hash_of: Callable[[_Member], int], places: int, slots: list[_Member | None]) -> None:
        self.hash_of, self.places, self.slots = hash_of, places, slots

    def copy(self) -> _Table[_Member]:
        return _Table(self.hash_of, self.places, self.slots[:])

    def members(self) -> list[_Member]:
        return [member for member in self.slots if member is not None]

    def home(self, member: _Member) -> int:
        product = self.hash_of(member) * _GOLDEN % (1 << 64)
        return product >> 64 - (self.places.bit_length() - 1)

    def distance(self, at: int) -> int:
        """How far from home the one in that slot is; -1 where nobody is."""
        member = self.slots[at]
        return -1 if member is None else at - self.home(member)

    def add(self, new: _Member) -> None:
        reach = max(4, self.places.bit_length() - 1)
        at, distance = self.home(new) if self.places else 0, 0
        while self.places and self.distance(at) >= distance:
            at, distance = at + 1, distance + 1
        if self.places == 0 or distance == reach or 2 * (len(self.members()) + 1) > self.places:
            self.grow()
            self.add(new)
            return
        first, displaced = at, self.slots[at]
        self.slots[at] = new
        while displaced is not None:  # who was there looks on
            distance = at - self.home(displaced) + 1
            at += 1
            if distance == reach:
                self.slots[first] = displaced
                self.grow()
                self.add(new)
                return
            if self.distance(at) < distance:
                self.slots[at], displaced = displaced, self.slots[at]

    def grow(self) -> None:
        members = self.members()
        self.places = max(4, 2 * self.places)
        self.slots = [None] * (self.places + max(4, self.places.bit_length() - 1))
        for member in members:
            self.add(member)

    def remove(self, member: _Member) -> None:
        """Those behind move up, as far as they are not at home."""
        at = self.slots.index(member)
        self.slots[at] = None
        while at + 1 < len(self.slots) and self.distance(at + 1) > 0:
            self.slots[at], self.slots[at + 1] = self.slots[at + 1], None
            at += 1


def of_streams(device: int, stream_id: Callable[[int], int] | None = None) -> HashOrder[int]:
    """By PyTorch's ids of a device's streams; if nobody tells, stream n is the n-th that was made, 0 the default."""
    id_of = stream_id or (lambda stream: (stream - 1) * 32 + 3 if stream else 0)
    return HashOrder(lambda stream: 1 << 56 | device << 48 | id_of(stream))


def of_pools() -> HashOrder[tuple[int, int]]:
    """By the n of (0, n), a MemPool, and of (n, 0), a graph's."""
    return HashOrder(lambda pool: pool[0] or pool[1])
