"""Results of a run for other cards: replays of its allocations with their memory, see Note [Runs shared by cards]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.interop.torch.attribution.other_settings import settings_that_fit
from forebay.interop.torch.attribution.results import by_category
from forebay.interop.torch.devices.other_cards import OtherCard, differ, same_cards, statistics_were_read
from forebay.records.model import Action, Snapshot
from forebay.runtime.memory.device_snapshot import take_snapshot
from forebay.runtime.settings import process_settings
from forebay.snapshot.replay.engine import History
from forebay.snapshot.replay.peaks import Peak, can_follow, follow

if TYPE_CHECKING:
    from forebay.interop.torch.attribution.allocation_log import AllocationLog
    from forebay.interop.torch.attribution.ledger import Ledger
    from forebay.interop.torch.attribution.workspace_log import WorkspaceLog
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["shared_results"]


def shared_results(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    """Return what each device of the run would have done on other cards, by the name of the card.

    `ran_out` is true if memory would have run out: then `needed` is the peak with unlimited memory, and `settings` are
    those with which memory suffices. The cards that are missing need runs of their own.
    """
    histories = [_Recorded.of(opened, ledger) for opened in ledger.devices]
    recorded = [each for each in histories if each is not None]
    if len(recorded) < len(histories):
        differ()
    found = {}
    for card in same_cards():
        results = [each.on(card) for each in recorded]
        if any(each is None for each in results):
            differ([card])
        else:
            found[card.name] = [each for each in results if each is not None]
    return found


class _Recorded:
    """The allocations of one device."""

    def __init__(
        self, place: int, snapshot: Snapshot, log: AllocationLog, workspaces: WorkspaceLog | None
    ) -> None:  # fmt: skip
        self._place, self._snapshot, self._log, self._workspaces = place, snapshot, log, workspaces
        self._numbers = np.flatnonzero(snapshot.trace["action"] == Action.ALLOC)  # the entry of each allocation
        self._number_of = {entry: number for number, entry in enumerate(self._numbers.tolist())}
        self._own: Peak | None = None

    @classmethod
    def of(cls, opened: OpenDevice, ledger: Ledger) -> _Recorded | None:
        """Return those of a device; None if a replay does not repeat what it has done."""
        allocator, log = opened.allocator, ledger.logs.get(opened)
        is_plain = opened.pluggable is None and process_settings.caching and allocator.limit is None
        if log is None or not is_plain or allocator.num_ooms:
            return None
        snapshot = take_snapshot(opened)
        found = cls(ledger.devices[opened].place, snapshot, log, ledger.workspaces.get(opened))
        if snapshot.lost or not found._has_all():
            return None
        history = History(snapshot)
        if history.initial_blocks or history.recorded.collects_garbage or not can_follow(history):
            return None
        found._own = own = follow(history, snapshot.capacity)
        peaks = tuple(allocator.meter(ledger.meters[opened])[:2])
        return None if own.ran_out or (own.allocated, own.reserved) != peaks else found

    def _has_all(self) -> bool:
        """Return True if the log is about the entries of the history: the program may have reset the counts."""
        addresses = self._snapshot.trace["address"][self._numbers].tolist()
        return all(
            number < len(addresses) and addresses[number] == address for number, address in self._log.addresses.items()
        )

    def on(self, card: OtherCard) -> dict[str, Any] | None:
        """Return what the device would have done on another card; None if that is not known."""
        sizes = [(number, others[card.name]) for number, others in self._log.sizes.items() if card.name in others]
        snapshot = self._with_sizes(sizes)
        history = History(snapshot)
        peak = follow(history, card.capacity - card.reserve)
        if statistics_were_read() and (self._own is None or peak.levels != self._own.levels):
            return None
        found = {
            "index": self._place,
            "capacity": card.capacity,
            "allocated": peak.allocated,
            "reserved": peak.reserved,
            "ran_out": peak.ran_out,
        }
        if peak.ran_out:
            _, settings = settings_that_fit(snapshot, card.capacity - card.reserve)
            return {**found, "needed": follow(history, None).allocated, "settings": settings}
        memory, workspaces = card.capacity - card.reserve, self._workspaces
        most = 0 if workspaces is None else workspaces.most_of(snapshot, memory, peak.reserved)
        return {**found, "categories": self._categories(peak), "workspaces": most}

    def _with_sizes(self, sizes: list[tuple[int, int]]) -> Snapshot:
        if not sizes:
            return self._snapshot
        trace = self._snapshot.trace.copy()
        for number, nbytes in sizes:
            trace["nbytes"][self._numbers[number]] = nbytes
        return replace(self._snapshot, trace=trace)

    def _categories(self, peak: Peak) -> list[Mapping[str, Any]]:
        records = self._log.records
        held = [(records.get(self._number_of[entry]), size) for entry, size in peak.live]
        return by_category(held, peak.allocated)
