"""The queue of an emulated device: a host queue that looks whether the machine has the memory its work would touch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self

from forebay.backends.common.draw_encoding import written_by
from forebay.backends.emulated.memory_budget import Holder, fresh_in, room
from forebay.backends.host.queue import HostQueue, Owner
from forebay.spi import Draw

__all__ = ["EmulatedOwner", "EmulatedQueue"]

_COUNTED, _GUARDED = 1, 2  # as in native/queue/worker.hpp


class EmulatedOwner(Owner, Holder, Protocol):
    """What it knows of its port."""


class EmulatedQueue(HostQueue):
    """Copies, fills and draws raise OutOfMemory, and are not queued, where the machine has not the memory they touch.

    What callables and native functions touch nobody can know before, unless it is told to `expect`.
    """

    __slots__ = ()

    owner: EmulatedOwner

    def __new__(cls, owner: EmulatedOwner, handle: int, priority: int, *, guarded: bool) -> Self:
        return super().__new__(cls, owner, handle, priority, _COUNTED | (_GUARDED if guarded else 0))

    # The core looks, which costs nothing; MemoryError says that memory is written for the first time.

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        try:
            HostQueue.copy(self, dst, src, nbytes)
        except MemoryError:
            room.count(self.owner, "copy", (dst, nbytes))
            HostQueue.copy(self, dst, src, nbytes)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        try:
            HostQueue.fill(self, dst, byte, nbytes)
        except MemoryError:
            room.count(self.owner, "fill", (dst, nbytes))
            HostQueue.fill(self, dst, byte, nbytes)

    def draw(self, draw: Draw) -> None:
        try:
            HostQueue.draw(self, draw)
        except MemoryError:
            room.count(self.owner, "random fill", written_by(draw))
            HostQueue.draw(self, draw)

    def expect(self, *spans: tuple[int, int]) -> None:
        room.count(self.owner, "function", *spans)

    def expect_programs(self, programs: Iterable[bytes]) -> None:
        room.count(self.owner, "graph", *(span for program in programs for span in fresh_in(program)))
