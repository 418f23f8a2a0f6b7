"""Comparison of two snapshots: the memory that grew, by site, at the peak and at the end.

Allocations are matched by their stacks: file, function and line of every frame. Stacks that have no equal are matched
again without line numbers and folders, as a program may have been edited or moved between the two recordings.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.records.frame_kinds import is_native_name, is_of_forebay
from forebay.records.model import Action, Frame, Snapshot
from forebay.records.site_labels import label_of
from forebay.records.sites import find_sites, with_split
from forebay.snapshot.analysis.alignment import Alignment, align
from forebay.snapshot.analysis.largest_sites import largest_sites
from forebay.snapshot.analysis.summary import summary
from forebay.snapshot.analysis.timeline import Timeline, reconstruct

__all__ = ["Comparison", "Held", "SiteChange", "StackChange", "Totals", "compare"]


@dataclass(frozen=True, slots=True)
class Held:
    """Live memory of one site."""

    nbytes: int  #: requested bytes
    blocks: int  #: number of blocks


@dataclass(frozen=True, slots=True)
class SiteChange:
    """The memory of one site in both snapshots."""

    label: str  #: the site as text, as it is in the second snapshot, or else in the first
    peak: tuple[Held, Held]  #: at the peak of each snapshot
    end: tuple[Held, Held]  #: at the end of each snapshot
    known: tuple[bool, bool]  #: whether each snapshot has allocations of the site at all
    moved: bool  #: true if its stacks were matched without line numbers and folders

    @property
    def status(self) -> str:
        """The words "new", "vanished" or "moved"; "" for a site that both snapshots have at the same place."""
        if not self.known[0]:
            return "new"
        return "vanished" if not self.known[1] else "moved" if self.moved else ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures of one snapshot. Sizes are in bytes."""

    device: str  #: the device
    peak: int  #: peak of the live bytes
    end: int  #: live bytes at the end
    reserved_peak: int  #: peak of the bytes in segments
    reserved_end: int  #: bytes in segments at the end
    allocations: int  #: allocations of the history
    ooms: int  #: out-of-memory events of the history
    entries: int  #: length of the history


@dataclass(frozen=True, slots=True)
class StackChange:
    """The memory of equal call stacks in both snapshots."""

    frames: tuple[str, ...]  #: the frames as text, the innermost first
    peak: tuple[Held, Held]  #: at the peak of each snapshot
    end: tuple[Held, Held]  #: at the end of each snapshot


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two snapshots, compared."""

    totals: tuple[Totals, Totals]  #: the figures of the first and of the second snapshot
    sites: tuple[SiteChange, ...]  #: all sites, those whose memory at the peak changed most first
    moved_stacks: int  #: number of stacks that were matched without line numbers and folders
    timelines: Alignment | None  #: memory over time on one axis; None if one of them has no history
    stacks: tuple[StackChange, ...]  #: call stacks that changed at the peak or the end, as `sites`; empty for depth 0


def compare(before: Snapshot, after: Snapshot, *, depth: int = 0) -> Comparison:
    """Compare two snapshots by site.

    Parameters
    ----------
    before : Snapshot
        The first snapshot.
    after : Snapshot
        The second snapshot.
    depth : int, default 0
        Frames of the call stacks that are compared, too: those that are equal in so many are one. None for 0.

    Examples
    --------
    >>> from forebay import simulate
    >>> from forebay.snapshot.formats import torch_pickle
    >>> def recorded(nbytes):
    ...     gpu = simulate.Device(1 << 30)
    ...     gpu.record_history()
    ...     gpu.allocate(nbytes)
    ...     return torch_pickle.snapshots(gpu.snapshot())[0]
    >>> found = compare(recorded(1 << 20), recorded(3 << 20))
    >>> (site,) = found.sites
    >>> [held.nbytes >> 20 for held in site.peak], site.status
    ([1, 3], '')
    """
    names = _Names()
    timelines = reconstruct(before), reconstruct(after)
    largest = frozenset[str]().union(
        *(largest_sites(each, line, line.peak, line.moments - 1)
          for each, line in zip((before, after), timelines, strict=True))
    )  # fmt: skip
    sides = (_Side(with_split(before, largest), timelines[0], names),
             _Side(with_split(after, largest), timelines[1], names))  # fmt: skip
    pairs, moved = _match(sides)
    found: dict[str, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        found[sides[1].label(pair.after[0]) if pair.after else sides[0].label(pair.before[0])].append(pair)
    changes = [_change(label, matched, sides) for label, matched in found.items()]
    changes.sort(key=lambda site: (*_by_change(site.peak, site.end), site.label))
    return Comparison(
        (sides[0].totals, sides[1].totals), tuple(changes), moved,
        align((before, after), (sides[0].timeline, sides[1].timeline)), _stack_changes(pairs, sides, depth),
    )  # fmt: skip


def _by_change(peak: tuple[Held, Held], end: tuple[Held, Held]) -> tuple[int, int]:
    return -abs(peak[1].nbytes - peak[0].nbytes), -abs(end[1].nbytes - end[0].nbytes)


def _stack_changes(pairs: list[_Pair], sides: tuple[_Side, _Side], depth: int) -> tuple[StackChange, ...]:
    """Return the call stacks whose memory differs, grouped by their innermost frames."""
    if depth < 1:
        return ()
    found: dict[tuple[str, ...], list[_Pair]] = defaultdict(list)
    for pair in pairs:
        side, row = (sides[1], pair.after[0]) if pair.after else (sides[0], pair.before[0])
        found[side.frames(row, depth)].append(pair)
    changes = []
    for frames, matched in found.items():
        same = _change("", matched, sides)
        if any(old != new for old, new in (same.peak, same.end)):
            changes.append(StackChange(frames, same.peak, same.end))
    return tuple(sorted(changes, key=lambda each: (*_by_change(each.peak, each.end), each.frames)))


class _Pair(NamedTuple):
    """Rows of matched stacks in both snapshots."""

    before: list[int]
    after: list[int]
    moved: bool


def _change(label: str, matched: list[_Pair], sides: tuple[_Side, _Side]) -> SiteChange:
    """Return the sums of the matched stacks of one site."""
    rows = [row for pair in matched for row in pair.before], [row for pair in matched for row in pair.after]
    peak, end = (
        (Held(*sides[0].sums(moment, rows[0])), Held(*sides[1].sums(moment, rows[1]))) for moment in ("peak", "end")
    )
    return SiteChange(label, peak, end, (bool(rows[0]), bool(rows[1])), any(pair.moved for pair in matched))


class _Names:
    """Numbers of frames and of stacks, equal in both snapshots: a stack is a frame and the number of its caller."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)


class _Side:
    """One of the snapshots: its live memory by stack, and its used stacks by number.

    `exact` has the rows of equal stacks, `loose` the number without line numbers and folders of each row.
    """

    def __init__(self, snapshot: Snapshot, timeline: Timeline, names: _Names) -> None:
        self._snapshot, self.timeline = snapshot, timeline
        self._sites = find_sites(snapshot)
        held = timeline.allocations
        used = np.unique(held.stack).tolist()
        numbers, self.loose = _numbers(snapshot, names)
        self.lines = _lines(snapshot)
        self.exact: dict[int, list[int]] = defaultdict(list)
        for row in used:
            self.exact[numbers[row]].append(row)
        self._live = {
            "peak": _by_stack(timeline, timeline.peak, len(snapshot.stacks)),
            "end": _by_stack(timeline, timeline.moments - 1, len(snapshot.stacks)),
        }
        figures = summary(snapshot, timeline=timeline)
        self.totals = Totals(
            snapshot.device, figures.peak, figures.current, figures.peak_reserved, figures.reserved,
            int((held.start > 0).sum()), int((snapshot.trace["action"] == Action.OOM).sum()), len(snapshot.trace),
        )  # fmt: skip

    def label(self, row: int) -> str:
        return self._sites.labels[int(self._sites.of_stack[row])]

    def frames(self, row: int, depth: int) -> tuple[str, ...]:
        """Return the innermost frames of a stack, without native code and what belongs to forebay."""
        snapshot = self._snapshot
        found: list[str] = []
        at = max(row, 0)
        while at and len(found) < depth:
            parent, number = snapshot.stacks[at].tolist()
            file, name, line = snapshot.frames[number].tolist()
            frame = Frame(snapshot.strings[file], snapshot.strings[name], line)
            if not is_native_name(frame.name) and not is_of_forebay(frame.file):
                found.append(label_of(frame))
            at = parent
        return tuple(found) or (self.label(row),)

    def sums(self, moment: str, rows: list[int]) -> tuple[int, int]:
        nbytes, blocks = self._live[moment]
        return int(nbytes[rows].sum()), int(blocks[rows].sum())


def _numbers(snapshot: Snapshot, names: _Names) -> tuple[list[int], list[int]]:
    """Return the numbers of all stacks, exactly and without lines and folders; the last element is `NEVER_SEEN`'s."""
    strings = snapshot.strings
    without_folder = [text[max(text.rfind("/"), text.rfind("\\")) + 1 :] for text in strings]
    frames = [
        (
            names.number("frame", strings[file], strings[name], line),
            names.number("place", without_folder[file], strings[name]),
        )
        for file, name, line in snapshot.frames.tolist()
    ]
    exact, loose = [0] * max(1, len(snapshot.stacks)), [0] * max(1, len(snapshot.stacks))
    for row, (parent, frame) in enumerate(snapshot.stacks[1:].tolist(), 1):  # parents come before their children
        exact[row] = names.number("stack", exact[parent], frames[frame][0])
        loose[row] = names.number("shape", loose[parent], frames[frame][1])
    return [*exact, -1], [*loose, -1]


def _lines(snapshot: Snapshot) -> list[int]:
    """Return the line of the innermost frame of all stacks, with an additional last element."""
    if len(snapshot.stacks) < 2:
        return [0, 0]
    lines: list[int] = snapshot.frames["line"][snapshot.stacks["frame"][1:]].tolist()
    return [0, *lines, 0]


def _by_stack(timeline: Timeline, moment: int, stacks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return live bytes and blocks of each stack; the additional last element is for `NEVER_SEEN`."""
    held = timeline.allocations
    live = held.live_at(moment)
    nbytes, blocks = np.zeros(max(stacks, 1) + 1, np.int64), np.zeros(max(stacks, 1) + 1, np.int64)
    np.add.at(nbytes, held.stack[live], held.nbytes[live])
    np.add.at(blocks, held.stack[live], 1)
    return nbytes, blocks


def _match(sides: tuple[_Side, _Side]) -> tuple[list[_Pair], int]:
    """Return pairs of stacks, and the number of those that the second pass matched."""
    before, after = sides
    pairs = [_Pair(before.exact[number], rows, False) for number, rows in after.exact.items() if number in before.exact]
    # Of several stacks that differ in lines only, the first is matched with the first, in the order of their lines.
    left: dict[int, list[list[int]]] = defaultdict(list)
    for rows in _unmatched(before, after):
        left[before.loose[rows[0]]].append(rows)
    moved = 0
    for rows in _unmatched(after, before):
        candidates = left[after.loose[rows[0]]]
        moved += bool(candidates)
        pairs.append(_Pair(candidates.pop(0), rows, True) if candidates else _Pair([], rows, False))
    pairs += [_Pair(rows, [], False) for candidates in left.values() for rows in candidates]
    return pairs, moved


def _unmatched(side: _Side, other: _Side) -> list[list[int]]:
    rows = [rows for number, rows in side.exact.items() if number not in other.exact]
    return sorted(rows, key=lambda each: side.lines[each[0]])
