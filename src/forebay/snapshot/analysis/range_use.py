"""Memory in the named ranges of a history, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.spans import Kind, Span, step_stem
from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["RangeUse", "range_use"]


@dataclass(frozen=True, slots=True)
class RangeUse:
    """Memory in all ranges of one name. Sizes are in bytes."""

    name: str  #: the name, without a number at its end
    kind: Kind  #: where the name comes from
    count: int  #: number of the ranges
    peak: int  #: most live bytes inside one of them
    at: int  #: the moment of that peak
    peak_in: str  #: the full name of the range with the peak
    allocated: int  #: bytes that were allocated in them
    change: float  #: change of the live bytes from the beginning to the end of one, on average


def range_use(snapshot: Snapshot, timeline: Timeline, found: Sequence[Span]) -> list[RangeUse]:
    """Return the use of memory by name, in the order of the first ranges.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    timeline : Timeline
        The result of `reconstruct(snapshot)`.
    found : sequence of Span
        The result of `spans(snapshot)`.
    """
    sizes = np.where(snapshot.trace["action"] == Action.ALLOC, snapshot.trace["nbytes"], 0).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(sizes)])
    groups = defaultdict[tuple[str, Kind], list[Span]](list)
    for span in found:
        if span.end > span.begin:
            groups[step_stem(span.name) if span.kind == Kind.RANGE else span.name, span.kind].append(span)
    uses = []
    levels = timeline.allocated
    for (name, kind), members in groups.items():
        tops = [span.begin + int(np.argmax(levels[span.begin : span.end + 1])) for span in members]
        best = max(range(len(tops)), key=lambda each: int(levels[tops[each]]))
        changes = [int(levels[span.end]) - int(levels[span.begin]) for span in members]
        allocated = sum(int(sums[span.end] - sums[span.begin]) for span in members)
        uses.append(
            RangeUse(name, kind, len(members), int(levels[tops[best]]), tops[best], members[best].name, allocated,
                     sum(changes) / len(changes))
        )  # fmt: skip
    return uses
