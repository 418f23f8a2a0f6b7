"""The explanation of an out-of-memory error, or of the peak of memory where there was no error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from forebay._core import MAX_REQUEST_BYTES, MAX_SMALL_BYTES
from forebay.records.model import Snapshot
from forebay.snapshot.analysis.growth import Growth, growth
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.other_devices import OtherDevice, other_devices
from forebay.snapshot.analysis.range_use import RangeUse, range_use
from forebay.snapshot.analysis.spans import spans
from forebay.snapshot.analysis.summary import Oom, SiteUse, ooms, sites, summary
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.formats.known_notes import truncation_of
from forebay.snapshot.replay.changes import Change
from forebay.snapshot.replay.memory_state import MemoryState, memory_state
from forebay.snapshot.replay.pinning import Pins, find_pins
from forebay.snapshot.replay.pool_memory import PoolMemory, free_in_pools
from forebay.snapshot.replay.program_advice import Advice, advise
from forebay.snapshot.replay.recorded_heaps import recorded_settings_of
from forebay.snapshot.replay.remedies import Remedies, available_memory, find_remedies
from forebay.snapshot.report.selection import Selection

__all__ = ["Cause", "Chosen", "Explanation", "OomRequest", "Use", "explanation", "of_host"]


class Cause(StrEnum):
    """Reasons for an explained moment."""

    TOO_LARGE = "too large"  # the live blocks and the request together exceed the memory
    FRAGMENTED = "fragmented"  # enough bytes are free, but in pieces
    SEGMENT = "segment size"  # enough for the block is free on the device, but not for a new segment
    OTHER_CLASS = "other size class"  # a free block is large enough, but in a segment for smaller or larger blocks
    OTHER_QUEUE = "other queue"  # a free block is large enough, but belongs to another stream
    OTHER_POOL = "other pool"  # enough is free, but private pools have so much of it that the rest does not suffice
    LIMIT = "limit"  # a limit of the process, below the memory of the device
    PEAK = "peak"  # no error: the explained moment is the peak
    CHOSEN = "chosen"  # no error: the explained moment, or the range whose peak it is, was chosen
    FINAL = "final"  # no history: the explained moment is that of the snapshot


@dataclass(frozen=True, slots=True)
class Use:
    """Use of the reserved memory at one moment, in bytes. The first five add up to `reserved`."""

    live: int  #: requested by the program, and not freed
    rounding: int  #: added to the live blocks by rounding
    pending: int  #: freed, but still in use by other streams
    cached: int  #: free, in segments or pages without blocks, which can return to the device
    fragmented: int  #: free, beside blocks in the same segment or page
    reserved: int  #: in segments
    largest_free: int  #: largest free block
    segments: int  #: number of segments
    outside: int  #: live, but in none of the segments: the file is incomplete or contradicts itself


@dataclass(frozen=True, slots=True)
class OomRequest:
    """The request that ran out of memory. Sizes are in bytes."""

    event: Oom  #: the event
    entry: int  #: its number in the history, from 0
    queue: int  #: stream of the request
    pool: int  #: private pool of the request; 0 is the default pool
    segment: int  #: size of the new segment that it needed
    largest_free: int  #: largest free block that could have served it, of that stream, pool and size class


@dataclass(frozen=True, slots=True)
class Chosen:
    """A part of a history. Sizes are in bytes."""

    selection: Selection  #: the part
    first_bytes: int  #: live at its beginning
    last_bytes: int  #: live at its end
    changes: tuple[tuple[str, int], ...]  #: sites, and the changes of their live bytes; the largest changes first


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """The cause of an out-of-memory error or of a peak. Sizes are in bytes."""

    device: str  #: the device
    capacity: int  #: its memory; 0 if unknown
    entries: int  #: length of the history
    lost: int  #: entries that the ring buffer dropped
    truncated: str  #: what is missing in a truncated file; "" for a complete one
    settings: str | None  #: allocator settings of the recording; None if the file does not contain them
    cause: Cause  #: the reason
    moment: int  #: the explained moment
    use: Use  #: use of the reserved memory then
    request: OomRequest | None  #: the request that failed; None for a peak
    errors: tuple[Oom, ...]  #: all out-of-memory events of the history, oldest first
    counted_errors: int  #: out-of-memory errors that the statistics count, also before the history
    available: int | None  #: bytes that the program could reserve; None if unknown
    peak_ever: int  #: peak of the live bytes since the statistics were reset
    sites: tuple[SiteUse, ...]  #: live memory by site at the moment, most first
    pools: tuple[PoolMemory, ...]  #: private pools with free memory, most first
    pins: tuple[Pins, ...]  #: sites whose blocks hold segments that are mostly free
    growth: Growth | None  #: growth from step to step; None if the history does not repeat
    remedies: Remedies | None  #: replays with other settings; None if none was asked for, or the history is empty
    others: tuple[OtherDevice, ...]  #: the other devices of the program at that moment; empty without an error
    what_if: Advice | None  #: replays of the program with changes; None where `remedies` is None, or has no allocation
    chosen: Chosen | None = None  #: the part of the history that was asked for; None for all of it
    inside: tuple[str, ...] = ()  #: names of the program's ranges at the explained moment, the outermost first
    ranges: tuple[RangeUse, ...] = ()  #: memory in the ranges that the program named

    def as_json(self) -> dict[str, Any]:
        """Return the fields, and their fields, as values that `json.dumps` accepts."""
        fields = {
            name: getattr(self, name)
            for name in ("device", "capacity", "entries", "lost", "truncated", "settings", "cause", "moment",
                         "counted_errors", "available", "peak_ever")
        }  # fmt: skip
        grown = self.growth
        return {
            **fields,
            "cause": self.cause.value,
            "use": asdict(self.use),
            "request": asdict(self.request) if self.request else None,
            "errors": [asdict(error) for error in self.errors],
            "sites": [asdict(use) for use in self.sites],
            "others": [asdict(other) | {"unused": other.unused} for other in self.others],
            "pools": [asdict(pool) for pool in self.pools],
            "pins": [asdict(pins) for pins in self.pins],
            "growth": grown and {
                "repetitions": grown.steps.count,
                "allocations": grown.steps.allocations,
                "exact": grown.steps.exact,
                "moments": grown.steps.moments.tolist(),
                **{name: getattr(grown, name) for name in ("first_bytes", "last_bytes", "per_step", "grown", "compared",
                                                           "peak_per_step", "steady")},
                "sites": [asdict(site) | {"leaks": site.leaks} for site in grown.sites],
            },
            "chosen": self.chosen and asdict(self.chosen) | {"selection": self.chosen.selection._asdict()},
            "inside": [*self.inside],
            "ranges": [asdict(each) for each in self.ranges],
            "remedies": self.remedies and asdict(self.remedies) | {
                "exact": self.remedies.fidelity.exact, "proved": self.remedies.proved,
            },
            "what_if": self.what_if and {
                "memory": self.what_if.memory,
                "baseline": asdict(self.what_if.baseline),
                "replays": self.what_if.replays,
                "cut": self.what_if.cut,
                **{name: [asdict(each) | {"text": each.text} for each in getattr(self.what_if, name)]
                   for name in ("asked", "suggested", "movable")},
            },
        }  # fmt: skip


def explanation(
    snapshot: Snapshot,
    *,
    error: int = -1,
    replay: bool = True,
    asked: Sequence[Sequence[Change]] = (),
    others: Sequence[Snapshot] = (),
    progress: Callable[[int, int], None] | None = None,
    select: Callable[[Timeline], Selection] | None = None,
) -> Explanation:
    """Explain why memory ran out, or which allocations made the peak where it did not.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    error : int, default -1
        The out-of-memory event to explain: an index into those of the history. The last one by default.
    replay : bool, default True
        Replay the history with other settings, and with changes of the program, to find those that help.
    asked : sequence of sequence of Change, default ()
        Changes of the program to replay, too: each item is replayed by itself.
    others : sequence of Snapshot, default ()
        Those of the other devices of the program, whose memory is compared with that of one that ran out.
    progress : callable, optional
        Called as `progress(replays_done, replays_total)`.
    select : callable, optional
        Returns the part of the history to explain, for its timeline: its last out-of-memory event is explained, or else
        its peak. By default all of the history.

    Returns
    -------
    Explanation
        The explanation; `forebay.snapshot.report.explanation_text.paragraphs` returns it as text.

    Raises
    ------
    IndexError
        If the history has no such event.
    ValueError
        If a change names nothing in the snapshot.
    Unsupported
        If the snapshot has too many private pools to reconstruct its segments.

    Examples
    --------
    >>> from forebay import OutOfMemory, simulate
    >>> from forebay.snapshot.formats import torch_pickle
    >>> gpu = simulate.Device(96 << 20)
    >>> gpu.record_history()
    >>> gpu.free(gpu.allocate(40 << 20))
    >>> small = gpu.allocate(2 << 20)
    >>> try:
    ...     gpu.allocate(60 << 20)
    ... except OutOfMemory:
    ...     (snapshot,) = torch_pickle.snapshots(gpu.snapshot())
    >>> found = explanation(snapshot)
    >>> found.cause.value, found.use.live >> 20, found.use.fragmented >> 20, found.request.event.device_free >> 20
    ('fragmented', 2, 38, 56)
    >>> found.remedies.helpful[0].environment
    'PYTORCH_ALLOC_CONF=expandable_segments:True'
    """
    timeline = reconstruct(snapshot)
    recorded = recorded_settings_of(snapshot)
    errors = tuple(ooms(snapshot))
    numbers = summary(snapshot, timeline=timeline)
    selection = select(timeline) if select is not None else None
    inner = errors if selection is None else [event for event in errors if selection.begin < event.at <= selection.end]
    named = spans(snapshot)
    if inner:
        event = inner[error]
        moment = event.at
    elif selection is not None:
        moment = selection.begin + int(np.argmax(timeline.allocated[selection.begin : selection.end + 1]))
    elif error != -1:
        raise IndexError(f"the history of {snapshot.device} has no out-of-memory event")
    else:
        moment = timeline.peak if len(snapshot.trace) else 0
    ends = () if selection is None else (selection.begin, selection.end)
    snapshot = split_largest(snapshot, timeline, moment, timeline.peak, *ends)
    errors = tuple(ooms(snapshot))
    state = memory_state(snapshot, moment, timeline=timeline)
    is_host = of_host(snapshot.device)
    if is_host and asked:
        raise ValueError(f"{snapshot.device}: the machine's memory has no allocator to replay: leave out --what-if")
    request = None
    cause = Cause.PEAK if len(snapshot.trace) else Cause.FINAL
    if selection is not None:
        cause = Cause.CHOSEN
    if inner:
        event = next(each for each in errors if each.at == moment)  # with its site as it is now
        request = _request(snapshot, state, event, recorded.segment_size(min(event.wanted, MAX_REQUEST_BYTES)))
        cause = _cause(state, request)
    available, failed = available_memory(snapshot), None if request is None else request.entry
    beside = other_devices(snapshot, others, failed, available) if failed is not None else ()
    room = max((other.unused or 0 for other in beside), default=0)
    grown = growth(snapshot, timeline=timeline)
    remedies = find_remedies(snapshot, progress=progress) if replay and len(snapshot.trace) and not is_host else None
    return Explanation(
        device=snapshot.device,
        capacity=snapshot.capacity,
        entries=len(snapshot.trace),
        lost=snapshot.lost,
        truncated=truncation_of(snapshot.notes),
        settings=recorded.text if recorded.known else None,
        cause=cause,
        moment=moment,
        use=_use(state),
        request=request,
        errors=errors,
        counted_errors=numbers.ooms,
        available=available,
        peak_ever=numbers.peak_ever,
        sites=tuple(sites(snapshot, moment, timeline=timeline)),
        pools=tuple(free_in_pools(snapshot, state)),
        pins=tuple(find_pins(snapshot, state)),
        growth=grown,
        remedies=remedies,
        others=beside,
        what_if=None if remedies is None or not (remedies.allocations or asked) else advise(
            snapshot, remedies, moment, failed, asked=asked, growth=grown, timeline=timeline, room=room
        ),
        chosen=selection and _chosen(snapshot, timeline, selection),
        inside=tuple(span.name for span in named if span.begin < moment <= span.end),
        ranges=tuple(range_use(snapshot, timeline, named)),
    )  # fmt: skip


def _chosen(snapshot: Snapshot, timeline: Timeline, selection: Selection) -> Chosen:
    first, last = (sites(snapshot, at, timeline=timeline) for at in (selection.begin, selection.end))
    before = {use.label: use.live_bytes for use in first}
    after = {use.label: use.live_bytes for use in last}
    changes = {label: after.get(label, 0) - before.get(label, 0) for label in before | after}
    ordered = sorted((item for item in changes.items() if item[1]), key=lambda item: (-abs(item[1]), item[0]))
    levels = timeline.allocated
    return Chosen(selection, int(levels[selection.begin]), int(levels[selection.end]), tuple(ordered))


def of_host(device: str) -> bool:
    """Return True for the CPU device, whose users know arrays and the machine's memory: no streams, no settings."""
    return device.partition(" ")[0] == "cpu"  # of a child process: "cpu in process 4711"


def _use(state: MemoryState) -> Use:
    return Use(
        live=state.requested,
        rounding=state.rounding,
        pending=state.pending,
        cached=state.releasable,
        fragmented=state.fragmented,
        reserved=state.reserved,
        largest_free=state.largest_free(),
        segments=len(state.segments),
        outside=state.outside,
    )


def _request(snapshot: Snapshot, state: MemoryState, event: Oom, segment: int) -> OomRequest:
    entry = snapshot.trace[event.at - 1]
    queue, pool = int(entry["queue"]), int(entry["pool"])
    largest = state.largest_free(queue, pool, event.wanted <= MAX_SMALL_BYTES)
    return OomRequest(event, event.at - 1, queue, pool, segment, largest)


def _cause(state: MemoryState, request: OomRequest) -> Cause:
    wanted, free = request.event.wanted, request.event.device_free
    if free >= request.segment:
        return Cause.LIMIT
    if wanted > free + state.free:
        return Cause.TOO_LARGE
    if request.largest_free < wanted <= state.largest_free(request.queue, request.pool):
        return Cause.OTHER_CLASS
    if request.largest_free < wanted <= state.largest_free():
        return Cause.OTHER_QUEUE if state.largest_free(pool=request.pool) >= wanted else Cause.OTHER_POOL
    others = state.segments[~np.isin(state.segments["pool"], (0, request.pool))]
    if wanted > free + state.free - int((others["nbytes"] - others["live"]).sum()):
        return Cause.OTHER_POOL
    return Cause.SEGMENT if wanted <= free else Cause.FRAGMENTED
