"""Records of allocations, and those that are alive at the peak of a device.

# Note [Records of the peak]
What held the peak is known only when the program has ended, and a program of any length may make millions of
allocations. So a record that is freed is kept only if it was alive at the newest peak, and all of these are dropped
when a higher one is reached: a program needs no more memory than its largest number of live tensors. A block is counted
by the allocator before its record exists, so the record that follows a new peak belongs to it. Frees come from
destructors that execute no Python code (Note [Storages are deleted in one step]), in a list that the next call takes
into account. Rejected: a copy of all live records at each peak, as nearly each allocation of a forward pass is one.
Test: tests/interop/torch/attribution/test_records.py::test_records_at_the_peak_are_those_alive_then
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay.interop.torch.attribution.user_frames import Site

if TYPE_CHECKING:
    from forebay.interop.torch.attribution.variables import Variable

__all__ = ["DeviceUse", "Record"]


class Record:
    """One allocation of PyTorch."""

    __slots__ = (
        "alive", "backward", "call", "category", "grad", "holder", "kept", "module", "nbytes", "node", "number",
        "phase", "role", "site", "size", "stream", "survived",
    )  # fmt: skip

    def __init__(
        self, number: int, nbytes: int, size: int, stream: int, site: Site | None, module: str, phase: str, grad: bool
    ) -> None:
        self.number = number  # in the order of all allocations and frees of the device
        self.nbytes = nbytes  # requested
        self.size = size  # of the block
        self.stream = stream
        self.site = site
        self.module = module
        self.phase = phase  # forward, backward, optimizer or other
        self.grad = grad  # whether autograd recorded operations then
        self.role = ""  # what the function that allocates it does so for, if that is known
        self.call = self.backward = 0  # calls of outermost modules and backward passes until then
        self.node = -1  # number of the newest node of autograd's graph then
        self.category = ""  # decided later, by what the tensor becomes
        self.holder: Variable | None = None  # the variable that holds it, if one was found
        self.alive = True
        self.survived = False  # alive when the next call of a module, backward pass or step began
        self.kept = False  # of the forward pass, and alive when its backward pass began


class DeviceUse:
    """The live records of a device, and those that were alive at its peak: Note [Records of the peak].

    `freed` gets the record of each memory that PyTorch frees, at any point of the program: Note [Storages are deleted
    in one step]. The next call takes them into account, which nothing can tell from doing so at once: no number is
    given and no peak is reached in between.
    """

    def __init__(self, place: int = 0, capacity: int = 0) -> None:
        self.place, self.capacity = place, capacity  # the machine's index of the device, and its memory
        self.freed: list[Record] = []
        self.peak = self.peak_reserved = self.peak_number = 0
        self.allocations = 0
        self.failed = 0  # bytes of the last request that ran out of memory
        self.idle_since_oom = False  # nothing was allocated after it
        self._live: dict[int, Record] = {}  # by number, oldest first
        self._number = 0
        self._is_new = False  # the peak, since the last block
        self._freed_since: dict[int, Record] = {}  # alive at the peak, by number

    @property
    def live(self) -> dict[int, Record]:
        """The live records by number, oldest first."""
        self._take_freed()
        return self._live

    @property
    def number(self) -> int:
        """The number of allocations and frees until now."""
        self._take_freed()
        return self._number

    def allocated(self, record: Record, total: int) -> None:
        """Add a record that has the number `self.number + 1`. `total` is what the allocator has allocated with it."""
        self._take_freed()
        self._number = record.number
        self.allocations += 1
        self._live[record.number] = record
        if self._is_new and total == self.peak:  # the block of this record has been counted
            self.peak_number = record.number
        else:
            self.reached(total)
        self._is_new = False

    def reached(self, total: int, reserved: int = 0) -> None:
        """Note that `total` bytes are allocated, those of tensors and others, of `reserved` bytes."""
        self._take_freed()
        self.peak_reserved = max(self.peak_reserved, reserved)
        self._is_new = total > self.peak
        if self._is_new:
            self.peak, self.peak_number = total, self._number
            if self._freed_since:
                self._freed_since.clear()

    def at_peak(self) -> Iterator[Record]:
        """Yield the records that were alive at the peak."""
        live = self.live
        yield from [*self._freed_since.values()]
        yield from (each for each in [*live.values()] if each.number <= self.peak_number)

    def _take_freed(self) -> None:
        """Remove the records that were freed. After an interrupt, this is repeated, and changes nothing."""
        if not (count := len(self.freed)):
            return
        for record in self.freed[:count]:
            if self._live.get(record.number) is record:
                if record.number <= self.peak_number:
                    self._freed_since[record.number] = record
                record.alive = False
                self._number += 1
                del self._live[record.number]
        del self.freed[:count]
