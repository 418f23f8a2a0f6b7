"""Records of allocations, and those that are alive at the peak of a device."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.interop.torch.attribution.user_frames import Site

__all__ = ["DeviceUse", "Record"]


class Record:
    """One allocation of PyTorch."""

    __slots__ = ("alive", "category", "grad", "kept", "module", "nbytes", "number", "phase", "site", "size", "stream")

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
        self.category = ""  # decided later, by what the tensor becomes
        self.alive = True
        self.kept = False  # of the forward pass, and alive when its backward pass began


class DeviceUse:
    """The live records of a device, and those that were alive at its peak.

    A record that was freed is kept only while it belongs to the newest peak: a program of any length needs no more
    memory than its largest number of live tensors.
    """

    def __init__(self, place: int = 0, capacity: int = 0) -> None:
        self.place, self.capacity = place, capacity  # the machine's index of the device, and its memory
        self.live: dict[int, Record] = {}  # by number, oldest first
        self.peak = self.peak_number = self.number = 0
        self.allocations = 0
        self.failed = 0  # bytes of the last request that ran out of memory
        self.idle_since_oom = False  # nothing was allocated after it
        self._is_new = False  # the peak, since the last block
        self._freed_since: list[Record] = []  # alive at the peak

    def allocated(self, record: Record, total: int) -> None:
        """Add a record that has the number `self.number + 1`. `total` is what the allocator has allocated with it."""
        self.number = record.number
        self.allocations += 1
        self.live[record.number] = record
        if self._is_new and total == self.peak:  # the block of this record has been counted
            self.peak_number = record.number
        else:
            self.reached(total)
        self._is_new = False

    def reached(self, total: int) -> None:
        """Note that the allocator has allocated `total` bytes, those of tensors and others."""
        self._is_new = total > self.peak
        if self._is_new:
            self.peak, self.peak_number = total, self.number
            if self._freed_since:
                self._freed_since.clear()

    def freed(self, record: Record) -> None:
        """Remove a record."""
        if self.live.get(record.number) is not record:
            return
        del self.live[record.number]
        record.alive = False
        self.number += 1
        if record.number <= self.peak_number:
            self._freed_since.append(record)

    def at_peak(self) -> Iterator[Record]:
        """Yield the records that were alive at the peak."""
        yield from self._freed_since
        yield from (each for each in [*self.live.values()] if each.number <= self.peak_number)
