"""Decoder of trace files, using Perfetto's own schema. conftest.py makes it importable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    track: str  # path of names: "forebay/cuda:0: .../default stream"
    name: str
    category: str
    begin: int
    end: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    line: int = 0
    file: str = ""
    depth: int = 0
    queued_ids: tuple[int, ...] = ()  # ids of the operations that this call queued
    executed_ids: tuple[int, ...] = ()  # ids of the operations that this slice executes

    @property
    def id(self) -> int:
        return self.details.get("id", 0)


@dataclass
class Decoded:
    tracks: list[str] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    moments: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def recording(self) -> dict[str, Any]:
        """The details of the whole recording."""
        (whole,) = (each for each in self.slices if each.track.endswith("recording"))
        return whole.details

    def on(self, track: str) -> list[Slice]:
        """Return the slices of the streams and threads with this name."""
        return [each for each in self.slices if each.track.rpartition("/")[2] == track]

    @property
    def executed(self) -> list[Slice]:
        """The executions of operations."""
        return [each for each in self.slices if each.executed_ids]

    @property
    def queueing_calls(self) -> list[Slice]:
        """The calls that queued an executed operation."""
        return [each for each in self.slices if each.queued_ids]


def decode(path) -> Decoded:
    """Decode a file. Raises if a slice ends without a begin, or an event has no track."""
    trace = Trace.FromString(path.read_bytes())
    names: dict[int, str] = {}
    found = Decoded()
    open_slices: dict[int, list[Slice]] = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            own = track.name or track.thread.thread_name or track.process.process_name
            assert track.uuid not in names
            names[track.uuid] = f"{names[track.parent_uuid]}/{own}" if track.HasField("parent_uuid") else own
            found.tracks.append(names[track.uuid])
        elif packet.HasField("track_event"):
            event, at = packet.track_event, packet.timestamp
            track = names[event.track_uuid]
            nested = open_slices.setdefault(event.track_uuid, [])
            if event.type == TrackEvent.TYPE_SLICE_END:
                nested.pop().end = at
            elif event.type == TrackEvent.TYPE_COUNTER:
                found.counters.setdefault(track, []).append((at, event.counter_value))
            else:
                new = _slice(event, track, at)
                new.depth = len(nested)
                if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                    found.slices.append(new)
                    nested.append(new)
                else:
                    found.moments.append(new)
    return found


def _slice(event, track: str, at: int) -> Slice:
    details = {each.name: getattr(each, each.WhichOneof("value")) for each in event.debug_annotations}
    location = event.source_location
    return Slice(
        track, event.name, *event.categories, at, None, details, location.line_number, location.file_name,
        queued_ids=tuple(event.flow_ids), executed_ids=tuple(event.terminating_flow_ids),
    )  # fmt: skip
