"""Memory use of a snapshot: by allocation site, in total, and by segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import Html, box, facts, note, table
from forebay.records.model import Action, Frame, Snapshot, State
from forebay.records.site_labels import place_of
from forebay.records.sites import find_sites
from forebay.snapshot.analysis.sampling import relative_errors
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.formats.known_notes import sampling_mean, seconds_of

__all__ = [
    "Layout",
    "Oom",
    "SiteTotal",
    "SiteUse",
    "Summary",
    "figures_html",
    "layout",
    "library_lines",
    "ooms",
    "sites",
    "summary",
    "totals",
]


@dataclass(frozen=True, slots=True)
class SiteUse:
    """Live memory of one allocation site at one moment."""

    label: str  #: the site as text, see `forebay.records.sites.Sites`
    frame: Frame  #: the site
    live_bytes: int  #: requested bytes of its live allocations
    count: int  #: number of its live allocations
    largest: int  #: bytes of its largest live allocation
    share: float  #: fraction of all live bytes, from 0 to 1
    library: str = ""  #: the file and line of a library that it calls for most of the bytes; "" for none
    error: float = 0.0  #: standard error of `live_bytes` relative to it, if the blocks are a sample; 0 for exact sizes


@dataclass(frozen=True, slots=True)
class SiteTotal:
    """Totals of one allocation site over the whole history."""

    label: str  #: the site as text, see `forebay.records.sites.Sites`
    frame: Frame  #: the site
    allocations: int  #: number of allocations
    total_bytes: int  #: sum of the requested bytes
    mean_lifetime_ns: float | None  #: mean lifetime in nanoseconds of the allocations that were freed; None if none was


@dataclass(frozen=True, slots=True)
class Oom:
    """One out-of-memory event."""

    at: int  #: the moment after the event
    time_ns: int  #: Unix time in nanoseconds
    wanted: int  #: rounded bytes of the request
    device_free: int  #: free bytes of the device
    label: str  #: the allocation site as text


@dataclass(frozen=True, slots=True)
class Summary:
    """Key figures of a snapshot. Sizes are in bytes."""

    peak: int  #: maximum of the requested bytes of live blocks during the history
    peak_ever: int  #: the same since the statistics were reset; `peak` if the statistics do not include it
    current: int  #: requested bytes of live blocks at the end
    reserved: int  #: bytes in segments at the end
    peak_reserved: int  #: maximum of the bytes in segments
    allocations: int  #: allocations, from the statistics or else the history
    frees: int  #: frees, from the statistics or else the history
    #: Allocations per second of run time, or else of the time spanned by the history; 0 if that time is 0.
    per_second: float
    span_ns: int  #: nanoseconds spanned by the history
    largest_free: int  #: largest free block
    #: 1 - `largest_free` / all free bytes in segments. 0 for a single free block, near 1 for many small ones.
    fragmentation: float
    ooms: int  #: number of out-of-memory events
    lost: int  #: history entries dropped by the ring buffer
    #: Maximum of the bytes in live blocks, as `max_memory_allocated` returns it; `peak` if the statistics do not tell.
    peak_allocated: int
    allocated: int  #: bytes in live blocks at the end; `current` if the statistics do not tell

    def _repr_html_(self) -> str:
        return box("Memory summary", figures_html(self))


@dataclass(frozen=True, slots=True)
class Layout:
    """Use of one segment. Sizes are in bytes."""

    address: int  #: start of the segment
    nbytes: int  #: size of the segment
    used: int  #: bytes in blocks that are live or whose free is pending
    free: int  #: bytes in free blocks
    largest: int  #: size of the largest free block
    pieces: int  #: number of blocks


def sites(snapshot: Snapshot, at: int | None = None, *, timeline: Timeline | None = None) -> list[SiteUse]:
    """Return the live memory of each allocation site at one moment, most bytes first.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    at : int, optional
        The moment; the peak by default.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.
    """
    timeline = timeline or reconstruct(snapshot)
    held = timeline.allocations
    live = held.live_at(timeline.peak if at is None else at)
    stack, nbytes = held.stack[live], held.nbytes[live]
    site_table = find_sites(snapshot)
    site = site_table.of_stack[stack]
    lines = library_lines(snapshot, site, site_table.called[stack], nbytes)
    total, count, largest = _by_group(site, nbytes, len(site_table.frames))
    everything = max(1, int(nbytes.sum()))
    mean = sampling_mean(snapshot.notes)
    error = relative_errors(nbytes, site, len(total), mean) if mean else np.zeros(len(total))
    found = [
        SiteUse(site_table.labels[i], frame, int(total[i]), int(count[i]), int(largest[i]),
                int(total[i]) / everything, lines.get(i, ""), float(error[i]))
        for i, frame in enumerate(site_table.frames)
        if count[i]
    ]  # fmt: skip
    return sorted(found, key=lambda use: (-use.live_bytes, use.label))


def library_lines(
    snapshot: Snapshot, site: NDArray[np.int64], called: NDArray[np.int64], nbytes: NDArray[np.integer]
) -> dict[int, str]:
    """Return for each site the line of the library that it calls for most of its bytes.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    site, called, nbytes : numpy.ndarray
        The site of each allocation, the row of `Snapshot.frames` that it calls (-1 for none), and the size.
    """
    pairs, which = np.unique(np.stack([site, called], 1), axis=0, return_inverse=True)
    held = np.zeros(len(pairs), np.int64)
    np.add.at(held, which.reshape(-1), nbytes.astype(np.int64))
    found = {}
    for at in np.argsort(held, kind="stable").tolist():
        number, row = pairs[at].tolist()
        if row >= 0:
            file, name, line = snapshot.frames[row].tolist()
            found[number] = place_of(Frame(snapshot.strings[file], snapshot.strings[name], line))
        else:
            found.pop(number, None)
    return found


def totals(snapshot: Snapshot, *, timeline: Timeline | None = None) -> list[SiteTotal]:
    """Return the totals of each site that allocated during the history, most bytes first.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.
    """
    timeline = timeline or reconstruct(snapshot)
    held, site_table = timeline.allocations, find_sites(snapshot)
    began = held.start > 0
    site, lived = site_table.of_stack[held.stack[began]], timeline.lifetimes_ns()[began]
    total, count, _ = _by_group(site, held.nbytes[began], len(site_table.frames))
    ended = np.bincount(site[lived >= 0], minlength=len(site_table.frames))
    time = np.bincount(site[lived >= 0], weights=lived[lived >= 0], minlength=len(site_table.frames))
    found = [
        SiteTotal(site_table.labels[i], frame, int(count[i]), int(total[i]), time[i] / ended[i] if ended[i] else None)
        for i, frame in enumerate(site_table.frames)
        if count[i]
    ]
    return sorted(found, key=lambda whole: (-whole.total_bytes, whole.label))


def ooms(snapshot: Snapshot) -> list[Oom]:
    """Return the out-of-memory events, oldest first.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    """
    site_table = find_sites(snapshot)
    return [
        Oom(
            at=int(row) + 1,
            time_ns=int(snapshot.trace["time_ns"][row]),
            wanted=int(snapshot.trace["nbytes"][row]),
            device_free=int(snapshot.trace["address"][row]),
            label=site_table.labels[site_table.of_stack[snapshot.trace["stack"][row]]],
        )
        for row in np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    ]


def summary(snapshot: Snapshot, *, timeline: Timeline | None = None) -> Summary:
    """Return the key figures of a snapshot.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot. Without a history, the figures are from its statistics.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.
    """
    timeline = timeline or reconstruct(snapshot)
    counts = np.bincount(snapshot.trace["action"], minlength=max(Action) + 1)
    free = snapshot.blocks["nbytes"][snapshot.blocks["state"] == State.FREE].astype(np.int64)
    largest = int(free.max(initial=0))
    peak, span = int(timeline.allocated[timeline.peak]), int(timeline.time_ns[-1] - timeline.time_ns[0])
    stats, seconds = snapshot.stats, seconds_of(snapshot.notes) or span / 1e9
    # Unlike the ring buffer, the statistics drop nothing; without a history they are the only source.
    allocations = max(int(counts[Action.ALLOC]), stats.get("allocation.all.allocated", 0))
    recorded = len(snapshot.trace) > 0
    counted = stats.get("requested_bytes.all.peak", 0)  # with blocks whose free is pending
    peak_ever = peak if recorded and counted <= _peak_with_pending(snapshot, timeline) else max(peak, counted)
    return Summary(
        peak=peak if recorded else peak_ever,
        peak_ever=peak_ever,
        current=int(timeline.allocated[-1]),
        reserved=int(timeline.reserved[-1]),
        peak_reserved=max(int(timeline.reserved.max()), 0 if recorded else stats.get("reserved_bytes.all.peak", 0)),
        allocations=allocations,
        frees=max(int(counts[Action.FREE_REQUESTED]), stats.get("allocation.all.freed", 0)),
        per_second=allocations / seconds if seconds > 0 else 0.0,
        span_ns=max(0, span),
        largest_free=largest,
        fragmentation=1 - largest / int(free.sum()) if largest else 0.0,
        ooms=max(int(counts[Action.OOM]), stats.get("num_ooms", 0)),
        lost=snapshot.lost,
        # The peak of the statistics may have been before the history, as that of the requested bytes then was.
        peak_allocated=peak if recorded and peak < peak_ever else max(peak, stats.get("allocated_bytes.all.peak", 0)),
        allocated=stats.get("allocated_bytes.all.current", int(timeline.allocated[-1])),
    )


def _peak_with_pending(snapshot: Snapshot, timeline: Timeline) -> int:
    """Return the maximum of the requested bytes of blocks that are live or whose free is pending."""
    action, sizes = snapshot.trace["action"], snapshot.trace["nbytes"].astype(np.int64)
    changes = np.where(action == Action.FREE_REQUESTED, sizes, 0) - np.where(action == Action.FREE_COMPLETED, sizes, 0)
    pending = np.concatenate([[0], np.cumsum(changes)])
    return int((timeline.allocated + pending - min(0, int(pending.min()))).max())


def figures_html(numbers: Summary) -> Html:
    """Return the key figures as two tables, of the bytes and of the counts, for a notebook."""
    sizes = [
        ("allocated", format_bytes(numbers.peak_allocated), format_bytes(numbers.allocated)),
        ("reserved", format_bytes(numbers.peak_reserved), format_bytes(numbers.reserved)),
    ]
    counts = [
        ("allocations", f"{numbers.allocations:,}"),
        ("frees", f"{numbers.frees:,}"),
        ("largest free block", format_bytes(numbers.largest_free)),
        ("fragmentation", f"{numbers.fragmentation:.0%}" if numbers.current else "-"),
        ("out of memory", f"{numbers.ooms:,}"),
    ]
    remarks = []
    if numbers.lost:
        remarks.append(note(f"The ring buffer dropped the first {numbers.lost:,} entries of the history."))
    if numbers.peak_ever > numbers.peak:
        remarks.append(note(f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history."))
    return Html("".join([table(("", "peak", "now"), sizes), facts(counts), *remarks]))


def layout(snapshot: Snapshot) -> list[Layout]:
    """Return the use of each segment, by address.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    """
    blocks, segments = snapshot.blocks, len(snapshot.segments)
    free = blocks["state"] == State.FREE
    unused, _, largest = _by_group(blocks["segment"][free], blocks["nbytes"][free], segments)
    used, _, _ = _by_group(blocks["segment"][~free], blocks["nbytes"][~free], segments)
    pieces = np.bincount(blocks["segment"], minlength=segments)
    return [
        Layout(int(s["address"]), int(s["nbytes"]), int(used[i]), int(unused[i]), int(largest[i]), int(pieces[i]))
        for i, s in enumerate(snapshot.segments)
    ]


def _by_group(
    group: NDArray[np.integer], nbytes: NDArray[np.integer], groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return sum, count and maximum of each group, in integers: floats would lose bytes above 2^53."""
    total, largest = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    np.add.at(total, group, nbytes.astype(np.int64))
    np.maximum.at(largest, group, nbytes.astype(np.int64))
    return total, np.bincount(group, minlength=groups).astype(np.int64), largest
