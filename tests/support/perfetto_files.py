"""Traces read again from their files, by the schema of those who make the format. conftest.py lets tests import it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    track: str  # with the names of those it stands under: "cuda:0: …/default stream"
    name: str
    category: str
    begin: int
    end: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    line: int = 0
    file: str = ""
    depth: int = 0
    asks: tuple[int, ...] = ()
    does: tuple[int, ...] = ()

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
        (whole,) = (each for each in self.slices if each.track.endswith("recording"))
        return whole.details

    def on(self, track: str) -> list[Slice]:
        """Those of streams or threads of that name."""
        return [each for each in self.slices if each.track.rpartition("/")[2] == track]

    @property
    def executed(self) -> list[Slice]:
        return [each for each in self.slices if each.does]

    @property
    def asked(self) -> list[Slice]:
        return [each for each in self.slices if each.asks]


def decoded(path) -> Decoded:
    """All of a file. It fails where a slice ends that has not begun, or an event is on no track."""
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
    where = event.source_location
    return Slice(
        track, event.name, *event.categories, at, None, details, where.line_number, where.file_name,
        asks=tuple(event.flow_ids), does=tuple(event.terminating_flow_ids),
    )  # fmt: skip
