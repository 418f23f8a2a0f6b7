"""The trace of a memory history for https://ui.perfetto.dev: allocated and reserved bytes, and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from forebay._base.untrusted import printable
from forebay.observe.tracing import perfetto
from forebay.observe.tracing.model import Moment, Place, Sample, Slice, TraceData, Track
from forebay.records.sites import find_sites
from forebay.snapshot import Action, Snapshot
from forebay.snapshot.analysis.spans import lanes, spans
from forebay.snapshot.analysis.timeline import reconstruct

_LANES = 100  # of the program's ranges
_EVENTS = {Action.OOM: "out of memory", Action.SNAPSHOT: "snapshot", Action.ANNOTATE: "annotation"}


def write_trace(snapshots: Sequence[Snapshot], file: IO[bytes]) -> None:
    """Write the trace. Raises ModuleNotFoundError if the package perfetto is not installed."""
    perfetto.check()
    times = np.concatenate([each.trace["time_ns"] for each in snapshots] or [np.zeros(1, np.uint64)])
    began, ended = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    data = TraceData(began, ended)
    for snapshot in snapshots:
        device = printable(snapshot.device)
        data.devices[device] = "memory history"
        data.samples += _samples(snapshot, device)
        data.moments += _moments(snapshot, device)
        data.slices += _slices(snapshot, device, began)
    perfetto.write(data, file, {"entries": sum(len(each.trace) for each in snapshots)})


def _samples(snapshot: Snapshot, device: str) -> Iterator[Sample]:
    timeline = reconstruct(snapshot)
    for name, values in (("allocated", timeline.allocated), ("reserved", timeline.reserved)):
        kept = _changes(timeline.time_ns, values)
        for at, value in zip(timeline.time_ns[kept].tolist(), values[kept].tolist(), strict=True):
            yield Sample(device, name, at, value)


def _changes(times: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the rows at which a value differs from the previous time's; the last row of each time counts."""
    last = np.flatnonzero(np.append(times[1:] != times[:-1], True))
    changed = np.ones(len(last), bool)
    changed[1:] = values[last][1:] != values[last][:-1]
    found: NDArray[np.intp] = last[changed]
    return found


def _moments(snapshot: Snapshot, device: str) -> Iterator[Moment]:
    track, sites = Track("ranges", f"{device} events", 0), find_sites(snapshot)
    for row in snapshot.trace[np.isin(snapshot.trace["action"], list(_EVENTS))]:
        action, details = Action(int(row["action"])), {"bytes": int(row["nbytes"])}
        if action == Action.OOM:
            details["free bytes of the device"] = int(row["address"])
        frame = sites.frames[int(sites.of_stack[row["stack"]])] if row["stack"] else None
        place = None if frame is None else Place(printable(frame.file), printable(frame.name), frame.line)
        yield Moment(track, _EVENTS[action], "event", int(row["time_ns"]), details, place)


def _slices(snapshot: Snapshot, device: str, began: int) -> Iterator[Slice]:
    """Yield the ranges that the program named, in one track for each depth."""
    for number, lane in enumerate(lanes(spans(snapshot), _LANES)):
        track = Track("ranges", f"{device} ranges", number + 1)
        for span in lane:
            begin = max(span.begin_ns, began)
            yield Slice(track, printable(span.name), "range", begin, max(begin, span.end_ns), {"kind": span.kind.value})
