"""The history that a program records itself of a device whose whole history a command records.

# Note [Two recordings]
`forebay run` and `fit` record the whole history of each device, and the program that they run may record a part of it,
stop, and write it to a file. A pool has one history. While a command records it (`recording.start_whole`), the calls of
the program change nothing of it but add what they need, such as the stacks of frees; they open and close windows, by
the numbers of the entries. The program's snapshots have the entries of its windows, and the stacks that it would have
recorded; those of the command have everything. Rejected: a second history in the pool, as each allocation would be
recorded twice; and the innermost frames of forebay, which a program's `stacks="all"` asks for, as the command would
record them, too: PyTorch has no such frames.
Test: tests/process/test_run_torch_history.py::test_program_and_report_see_what_each_recorded
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot

__all__ = ["ProgramHistory"]

_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_STARTS = (Action.RESERVE, Action.MAP)
_END = (1 << 63) - 1
_MOST_ANNOTATIONS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of the history with one set of options, by the numbers of its entries."""

    start: int
    context: str | None
    skip: frozenset[int]  # actions
    stop: int = _END

    def has(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (numbers >= self.start) & (numbers < self.stop)


class ProgramHistory:
    """The windows of a history that the program has recorded."""

    def __init__(self) -> None:
        self._windows: list[_Window] = []  # of the entries
        self._before: list[_Window] = []  # discarded with their entries: live blocks keep their stacks
        self._most = 0  # entries that are kept, the newest
        self.annotations: deque[dict[str, Any]] = deque(maxlen=_MOST_ANNOTATIONS)  # of the whole history

    @property
    def is_recording(self) -> bool:
        """True while the program records."""
        return bool(self._windows) and self._windows[-1].stop == _END

    def start(
        self, number: int, context: str | None, most: int, *, clear_history: bool, skip: Collection[int] = ()
    ) -> None:
        """Open a window at the entry with this number. The entries before it are kept unless `clear_history`."""
        if clear_history or not self.is_recording:
            self._discard(number)
        else:
            self._windows[-1] = replace(self._windows[-1], stop=number)
        self._windows.append(_Window(number, context, frozenset(skip)))
        self._most = most

    def stop(self, number: int) -> None:
        """Stop at the entry with this number, and discard the entries."""
        self._discard(number)

    def _discard(self, number: int) -> None:
        self._before += [replace(each, stop=min(each.stop, number)) for each in self._windows]
        self._windows.clear()

    def view(self, snapshot: Snapshot) -> Snapshot:
        """Return the part of a snapshot of the whole history that the program has recorded."""
        trace, first = snapshot.trace, snapshot.lost
        numbers = np.arange(first, first + len(trace), dtype=np.int64)
        made = _numbers_before(trace, numbers, [Action.ALLOC])
        kept, lost = np.zeros(len(trace), bool), 0
        stacks = np.zeros(len(trace), bool)
        for each in self._windows:
            inside = each.has(numbers) & ~np.isin(trace["action"], [*each.skip])
            kept |= inside
            lost += max(min(each.stop, first) - each.start, 0)
            if each.context in ("alloc", "all"):
                stacks |= inside
            if each.context == "alloc":  # the entry of a free has the stack of the allocation
                stacks &= ~(inside & np.isin(trace["action"], _FREES) & ~self._has_stack(made, first))
        shown = trace[kept].copy()
        shown["stack"][~stacks[kept]] = 0
        cut = max(len(shown) - self._most, 0)
        blocks, segments = snapshot.blocks.copy(), snapshot.segments.copy()
        for rows, actions in ((blocks, [Action.ALLOC]), (segments, _STARTS)):
            begun = _newest(trace, numbers, rows["address"], actions)
            rows["stack"][~self._has_stack(begun, first)] = 0
        return replace(snapshot, trace=shown[cut:], blocks=blocks, segments=segments, lost=lost + cut)

    def _has_stack(self, numbers: NDArray[np.int64], first: int) -> NDArray[np.bool_]:
        """Return whether the program records the stacks of blocks, at the entries with these numbers.

        An entry before the history, -1, counts as recorded if the program has recorded all that was before it.
        """
        found = np.zeros(len(numbers), bool)
        end = 0
        for each in sorted([*self._before, *self._windows], key=lambda window: window.start):
            if each.context is not None:
                found |= each.has(numbers)
                if each.start <= end:
                    end = max(end, each.stop)
        return found | ((numbers < 0) & (0 < first <= end))


def _numbers_before(trace: NDArray[np.void], numbers: NDArray[np.int64], actions: Collection[int]) -> NDArray[np.int64]:
    """Return for each entry the number of the newest one up to it with one of the actions at its address; else -1."""
    order = np.lexsort((numbers, trace["address"]))
    is_action = np.isin(trace["action"][order], [*actions])
    at = np.maximum.accumulate(np.where(is_action, np.arange(len(order)), -1))
    same = trace["address"][order][at] == trace["address"][order]
    found = np.empty(len(order), np.int64)
    found[order] = np.where((at >= 0) & same, numbers[order][at], -1)
    return found


def _newest(
    trace: NDArray[np.void], numbers: NDArray[np.int64], addresses: NDArray[np.uint64], actions: Collection[int]
) -> NDArray[np.int64]:
    """Return for each address the number of the newest entry with one of the actions; else -1."""
    chosen = np.isin(trace["action"], [*actions])
    by_address = dict(zip(trace["address"][chosen].tolist(), numbers[chosen].tolist(), strict=True))
    return np.array([by_address.get(each, -1) for each in addresses.tolist()], np.int64)
