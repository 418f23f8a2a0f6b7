"""Who holds the memory: sites, totals, the summary and the segments, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.model import Action, Frame, Snapshot, State
from forebay.snapshot.sites import label_of, site_of

__all__ = [
    "Layout",
    "Oom",
    "SiteTotal",
    "SiteUse",
    "Summary",
    "layout",
    "ooms",
    "sites",
    "summary",
    "totals",
]


@dataclass(frozen=True, slots=True)
class SiteUse:
    """What one site holds at one moment."""

    label: str
    frame: Frame
    live_bytes: int
    count: int
    largest: int
    share: float  # of all live bytes, 0 to 1


@dataclass(frozen=True, slots=True)
class SiteTotal:
    """What one site did over the whole history; the mean lifetime is None if no end of it was seen."""

    label: str
    frame: Frame
    allocations: int
    total_bytes: int
    mean_lifetime_ns: float | None


@dataclass(frozen=True, slots=True)
class Oom:
    """One time the device was full; `at` is the moment after it."""

    at: int
    time_ns: int
    wanted: int
    device_free: int
    label: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole snapshot in a few numbers of bytes and times."""

    peak: int  # most allocated at one moment of the history
    peak_ever: int  # the same since the counters were reset, if the statistics say so; else the peak
    current: int
    reserved: int
    peak_reserved: int
    allocations: int  # as counted, or else TAKE entries
    frees: int  # as counted, or else GIVE entries
    per_second: float  # allocations / seconds the program ran, or else that the history spans; 0 if that is no time
    span_ns: int
    largest_free: int  # largest piece inside the segments that the next take could have
    fragmentation: float  # 1 - largest free piece / all free bytes in segments: 0 is one piece, towards 1 is dust
    ooms: int
    lost: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One segment: bytes in blocks that are in use (live or awaiting), free bytes, and the largest free piece."""

    address: int
    nbytes: int
    used: int
    free: int
    largest: int
    pieces: int


def sites(snapshot: Snapshot, at: int | None = None, *, timeline: Timeline | None = None) -> list[SiteUse]:
    """Who holds what at a moment (the peak, if none is named), most bytes first."""
    timeline = timeline or reconstruct(snapshot)
    held, known = timeline.allocations, site_of(snapshot)
    live = held.live_at(timeline.peak if at is None else at)
    site, nbytes = known.of_stack[held.stack[live]], held.nbytes[live]
    total, count, largest = _by_group(site, nbytes, len(known.frames))
    everything = max(1, int(nbytes.sum()))
    found = [
        SiteUse(label_of(frame), frame, int(total[i]), int(count[i]), int(largest[i]), int(total[i]) / everything)
        for i, frame in enumerate(known.frames)
        if count[i]
    ]
    return sorted(found, key=lambda use: (-use.live_bytes, use.label))


def totals(snapshot: Snapshot, *, timeline: Timeline | None = None) -> list[SiteTotal]:
    """What every site allocated while the history ran, most bytes first."""
    timeline = timeline or reconstruct(snapshot)
    held, known = timeline.allocations, site_of(snapshot)
    began = held.start > 0
    site, lived = known.of_stack[held.stack[began]], timeline.lifetimes_ns()[began]
    total, count, _ = _by_group(site, held.nbytes[began], len(known.frames))
    ended = np.bincount(site[lived >= 0], minlength=len(known.frames))
    time = np.bincount(site[lived >= 0], weights=lived[lived >= 0], minlength=len(known.frames))
    found = [
        SiteTotal(label_of(frame), frame, int(count[i]), int(total[i]), time[i] / ended[i] if ended[i] else None)
        for i, frame in enumerate(known.frames)
        if count[i]
    ]
    return sorted(found, key=lambda whole: (-whole.total_bytes, whole.label))


def ooms(snapshot: Snapshot) -> list[Oom]:
    """Every time the device was full, oldest first."""
    known = site_of(snapshot)
    return [
        Oom(
            at=int(row) + 1,
            time_ns=int(snapshot.trace["time_ns"][row]),
            wanted=int(snapshot.trace["nbytes"][row]),
            device_free=int(snapshot.trace["address"][row]),
            label=label_of(known.frames[known.of_stack[snapshot.trace["stack"][row]]]),
        )
        for row in np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    ]


def summary(snapshot: Snapshot, *, timeline: Timeline | None = None) -> Summary:
    """The numbers that a person wants first; without a history, those that the allocator counted."""
    timeline = timeline or reconstruct(snapshot)
    counts = np.bincount(snapshot.trace["action"], minlength=max(Action) + 1)
    free = snapshot.blocks["nbytes"][snapshot.blocks["state"] == State.FREE].astype(np.int64)
    largest = int(free.max(initial=0))
    peak, span = int(timeline.allocated[timeline.peak]), int(timeline.time_ns[-1] - timeline.time_ns[0])
    stats, seconds = snapshot.stats, snapshot.notes.get("seconds", span / 1e9)
    # The ring may have dropped entries, the counters have not; without a history they are all there is.
    allocations = max(int(counts[Action.TAKE]), stats.get("allocation.all.allocated", 0))
    recorded = len(snapshot.trace) > 0
    peak_ever = max(peak, stats.get("requested_bytes.all.peak", 0))
    return Summary(
        peak=peak if recorded else peak_ever,
        peak_ever=peak_ever,
        current=int(timeline.allocated[-1]),
        reserved=int(timeline.reserved[-1]),
        peak_reserved=max(int(timeline.reserved.max()), 0 if recorded else stats.get("reserved_bytes.all.peak", 0)),
        allocations=allocations,
        frees=max(int(counts[Action.GIVE]), stats.get("allocation.all.freed", 0)),
        per_second=allocations / seconds if seconds > 0 else 0.0,
        span_ns=max(0, span),
        largest_free=largest,
        fragmentation=1 - largest / int(free.sum()) if largest else 0.0,
        ooms=max(int(counts[Action.OOM]), stats.get("num_ooms", 0)),
        lost=snapshot.lost,
    )


def layout(snapshot: Snapshot) -> list[Layout]:
    """How full every segment is, by address."""
    blocks, many = snapshot.blocks, len(snapshot.segments)
    free = blocks["state"] == State.FREE
    idle, _, largest = _by_group(blocks["segment"][free], blocks["nbytes"][free], many)
    busy, _, _ = _by_group(blocks["segment"][~free], blocks["nbytes"][~free], many)
    pieces = np.bincount(blocks["segment"], minlength=many)
    return [
        Layout(int(s["address"]), int(s["nbytes"]), int(busy[i]), int(idle[i]), int(largest[i]), int(pieces[i]))
        for i, s in enumerate(snapshot.segments)
    ]


def _by_group(
    group: NDArray[np.integer], nbytes: NDArray[np.integer], groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sum, count and largest of every group; in integers, as floats would lose bytes above 2^53."""
    total, largest = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    np.add.at(total, group, nbytes.astype(np.int64))
    np.maximum.at(largest, group, nbytes.astype(np.int64))
    return total, np.bincount(group, minlength=groups).astype(np.int64), largest
