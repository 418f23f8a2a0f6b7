"""All allocations of a device in order, with what they belong to, for replays on other cards."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.interop.torch.attribution.records import Record
from forebay.interop.torch.devices import other_cards
from forebay.interop.torch.devices.other_cards import CardBytes

__all__ = ["AllocationLog"]

_MOST = 1_000_000  # allocations: longer programs run on each card


class AllocationLog:
    """The allocations of tensors and kernels on one device, by their numbers in the allocator's history, from 0."""

    def __init__(self) -> None:
        self.addresses: dict[int, int] = {}
        self.records: dict[int, Record] = {}  # of tensors
        self.sizes: dict[int, Mapping[str, int]] = {}  # of requests that have other sizes on other cards, by card
        self._latest: dict[int, int] = {}  # the number of the latest allocation at an address

    def allocated(self, number: int, address: int, nbytes: int) -> None:
        """Add an allocation."""
        if len(self.addresses) >= _MOST:
            other_cards.differ()
            return
        self.addresses[number] = address
        self._latest[address] = number
        if isinstance(nbytes, CardBytes) and nbytes.others:
            self.sizes[number] = nbytes.others

    def belongs(self, address: int, record: Record) -> None:
        """Note what the allocation at an address, which is live, belongs to."""
        if (number := self._latest.get(address)) is not None:
            self.records[number] = record
