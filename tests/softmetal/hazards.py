"""Which passes are ordered: a pass that uses an untracked resource must know that earlier ones have ended.

A pass that finds a conflicting use of its memory that is not in its clock breaks the rule "hazard", even though the
stand-in executes a queue's passes in order. The commands of one pass are ordered, except those between two barriers of
a concurrent encoder or of an indirect command buffer, for which tracking does not help either. The bytes that a kernel
uses are not known: from the offset of a binding to the end of its buffer counts as used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import constants as k
from .clocks import Clock, merge
from .control import control
from .faults import GPUFault


class Use(NamedTuple):
    """A use of a range of a storage by a pass."""

    start: int
    end: int
    queue: int
    number: int
    write: bool
    what: str
    section: int  # of a concurrent pass, between two barriers
    command: int


class CurrentPass:
    """The execution of a pass."""

    def __init__(self, engine: Any, record: Any) -> None:
        engine.passes += 1
        self.number = engine.passes
        self.queue = engine.number
        self.concurrent = record.concurrent
        self.known: Clock = dict(engine.known)
        self._section = self._command = 0
        self._fences: list[Any] = []

    def use(self, region: Any, what: str, offset: int = 0, nbytes: int | None = None, *, write: bool) -> int:
        """Return the address of a part of a region that the GPU uses; without a size, of all that follows."""
        if region.dead:
            control.note_violation("unretained", f"{what}: its buffer of {region.nbytes} bytes was released")
            raise GPUFault(k.MTLCommandBufferErrorInvalidResource)
        if control.strict_hazards:
            start = region.offset + offset
            end = region.offset + region.nbytes if nbytes is None else start + nbytes
            own = Use(start, end, self.queue, self.number, write, what, self._section, self._command)
            with control.lock:
                self._check(region, own)
        return int(region.address) + offset

    def _check(self, region: Any, own: Use) -> None:
        kept = []
        for other in region.storage.uses:
            if region.tracked and not self._is_here(other):
                continue  # Metal orders it
            ordered = self._is_ordered(other)
            overlaps = other.start < own.end and own.start < other.end
            if overlaps and (own.write or other.write) and not ordered:
                detail = f"{own.what} in pass {own.number} of queue {own.queue} conflicts with {other.what}"
                control.violated("hazard", f"{detail} in pass {other.number} of queue {other.queue}")
            covered = own.start <= other.start and other.end <= own.end
            if not (covered and ordered and (own.write or not other.write)):
                kept.append(other)
        region.storage.uses = [*kept, own]

    def _is_here(self, other: Use) -> bool:
        return (other.queue, other.number) == (self.queue, self.number)

    def _is_ordered(self, other: Use) -> bool:
        if self._is_here(other):
            return not self.concurrent or other.section < self._section or other.command == self._command
        return self.known.get(other.queue, 0) >= other.number

    def next_command(self) -> None:
        """Begin another command of the pass."""
        self._command += 1

    @contextmanager
    def unordered(self, *, serial: bool) -> Iterator[None]:
        """Treat the commands inside a with statement as concurrent, between barriers if the encoder is serial."""
        before, self.concurrent = self.concurrent, True
        self._section += serial
        try:
            yield
        finally:
            self._section += serial
            self.concurrent = before

    def barrier(self) -> None:
        """Order the commands before and after it."""
        self._section += 1

    def update_fence(self, fence: Any) -> None:
        """Let later passes that wait for the fence know this one, at its end."""
        self._fences.append(fence)

    def wait_for_fence(self, fence: Any) -> None:
        """Know what the fence's update implies."""
        merge(self.known, fence.known)

    def end(self) -> None:
        """Publish the fences."""
        for fence in self._fences:
            merge(fence.known, {**self.known, self.queue: self.number})
