"""Queue of an emulated device: a host queue that checks whether the machine has memory for the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self

from forebay import _core
from forebay.backends.common.draw_encoding import pack_draw, written_range
from forebay.backends.common.strided_copy_encoding import pack_strided_copy
from forebay.backends.emulated.memory_budget import MemoryOwner, budget, unbacked_ranges
from forebay.backends.host.program import strided_copy_step
from forebay.backends.host.queue import NATIVE_ERRORS, HostQueue, Owner
from forebay.spi import Draw, StridedCopy

__all__ = ["EmulatedOwner", "EmulatedQueue"]

_COUNTED, _GUARDED = 1, 2  # as in native/queue/worker.hpp


class EmulatedOwner(Owner, MemoryOwner, Protocol):
    """The part of an emulated port that its queues use."""


class EmulatedQueue(HostQueue):
    """A host queue whose copies, fills and draws raise OutOfMemory, unqueued, if the machine lacks memory for them.

    The memory that host functions write to is unknown unless it is declared with `ensure_backed`.
    """

    __slots__ = ()

    owner: EmulatedOwner

    def __new__(cls, owner: EmulatedOwner, handle: int, priority: int, *, guarded: bool) -> Self:
        return super().__new__(cls, owner, handle, priority, _COUNTED | (_GUARDED if guarded else 0))

    # The native queue checks the table, at no cost, and raises MemoryError for memory that is written the first time.

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        try:
            HostQueue.copy(self, dst, src, nbytes)
        except MemoryError:
            budget.charge(self.owner, "copy", (dst, nbytes))
            HostQueue.copy(self, dst, src, nbytes)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        try:
            HostQueue.fill(self, dst, byte, nbytes)
        except MemoryError:
            budget.charge(self.owner, "fill", (dst, nbytes))
            HostQueue.fill(self, dst, byte, nbytes)

    def draw(self, draw: Draw) -> None:
        try:
            _core.Queue.draw_packed(self, pack_draw(draw))  # as `HostQueue.draw`, without a call
        except NATIVE_ERRORS as error:
            raise self._error(error) from None
        except MemoryError:
            budget.charge(self.owner, "random fill", written_range(draw))
            HostQueue.draw(self, draw)

    def copy_strided(self, copy: StridedCopy) -> None:
        try:
            HostQueue.copy_strided(self, copy)
        except MemoryError:
            program = strided_copy_step(pack_strided_copy(copy))
            budget.charge(self.owner, "fill" if copy.value else "copy", *unbacked_ranges(program))
            HostQueue.copy_strided(self, copy)

    def ensure_backed(self, *spans: tuple[int, int]) -> None:
        budget.charge(self.owner, "function", *spans)

    def ensure_programs_backed(self, programs: Iterable[bytes]) -> None:
        budget.charge(self.owner, "graph", *(span for program in programs for span in unbacked_ranges(program)))
