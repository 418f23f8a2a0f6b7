"""Writer of trace files for https://ui.perfetto.dev, using the package `perfetto` (the extra `trace`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import IO, Any

from forebay.observe.tracing.model import Details, Moment, Place, Slice, TraceData, Track

__all__ = ["MISSING", "check", "write"]

MISSING = "writing a trace requires the package perfetto: pip install perfetto"

_PACKETS = 10_000  # per write
_SEQUENCE = 1  # one writer, so one packet sequence


def check() -> None:
    """Raise ModuleNotFoundError, with the command that installs it, if the package is missing."""
    try:
        from perfetto.trace_builder import proto_builder  # noqa: F401 -- tests whether it is installed
    except ImportError as error:
        raise ModuleNotFoundError(MISSING, name="perfetto") from error


def write(data: TraceData, file: IO[bytes], notes: Mapping[str, str | int]) -> None:
    """Write the trace. The notes become details of the slice of the whole recording."""
    _Writer(file).write(data, notes)


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        self._file = file
        self._new: Any = TraceProtoBuilder
        self._pb: Any = perfetto_trace_pb2
        self._builder: Any = TraceProtoBuilder()
        self._packets = 0
        self._uuids = count(1)
        self._process = next(self._uuids)
        self._devices: dict[str, int] = {}

    def write(self, data: TraceData, notes: Mapping[str, str | int]) -> None:
        process = self._descriptor(self._process)
        process.process.pid, process.process.process_name = os.getpid(), "forebay"
        recording = self._track("recording", self._process)
        whole = Track("recording", "recording", 0)
        self._slices(recording, [Slice(whole, "recording", "recording", data.began, data.ended, notes)])
        for device, name in sorted(data.devices.items()):
            self._devices[device] = self._track(f"{device}: {name}", self._process)
        slices, moments = _by_track(data.slices), _by_track(data.moments)
        for track in sorted({*slices, *moments}, key=lambda track: (track.kind != "thread", *track)):
            uuid = self._track_of(track)
            self._slices(uuid, slices.get(track, []))
            self._moments(uuid, moments.get(track, []))
        self._counters(data)
        self._flush()

    # Tracks

    def _packet(self) -> Any:
        if self._packets >= _PACKETS:
            self._flush()
        self._packets += 1
        packet = self._builder.add_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _flush(self) -> None:
        self._file.write(self._builder.serialize())
        self._builder, self._packets = self._new(), 0

    def _descriptor(self, uuid: int) -> Any:
        descriptor = self._packet().track_descriptor
        descriptor.uuid = uuid
        return descriptor

    def _track(self, name: str, parent: int) -> int:
        descriptor = self._descriptor(next(self._uuids))
        descriptor.name, descriptor.parent_uuid = _text(name), parent
        uuid: int = descriptor.uuid
        return uuid

    def _track_of(self, track: Track) -> int:
        if track.kind != "thread":
            return self._track(track.name, self._devices.get(track.device, self._process))
        descriptor = self._descriptor(next(self._uuids))
        descriptor.thread.pid, descriptor.thread.tid = os.getpid(), track.number & 0x7FFF_FFFF
        descriptor.thread.thread_name = _text(track.name)
        uuid: int = descriptor.uuid
        return uuid

    # Track events

    def _event(self, kind: int, uuid: int, at: int) -> Any:
        packet = self._packet()
        packet.timestamp = at
        packet.track_event.type, packet.track_event.track_uuid = kind, uuid
        return packet.track_event

    def _named(self, kind: int, uuid: int, at: int, item: Slice | Moment) -> Any:
        event = self._event(kind, uuid, at)
        event.name = _text(item.name or item.category)
        event.categories.append(item.category)
        _describe(event, item.details, item.place)
        return event

    def _slices(self, uuid: int, slices: list[Slice]) -> None:
        begins, ends = self._pb.TrackEvent.TYPE_SLICE_BEGIN, self._pb.TrackEvent.TYPE_SLICE_END
        for each in _nested(slices):
            if isinstance(each, int):
                self._event(ends, uuid, each)
                continue
            event = self._named(begins, uuid, each.begin, each)
            if each.leads_to:
                event.flow_ids.append(each.leads_to)
            if each.comes_from:
                event.terminating_flow_ids.append(each.comes_from)

    def _moments(self, uuid: int, moments: list[Moment]) -> None:
        for each in moments:
            self._named(self._pb.TrackEvent.TYPE_INSTANT, uuid, each.at, each)

    def _counters(self, data: TraceData) -> None:
        uuids: dict[tuple[str, str], int] = {}
        for each in data.samples:
            key = each.device, each.name
            if key not in uuids:
                descriptor = self._descriptor(next(self._uuids))
                descriptor.name, descriptor.parent_uuid = each.name, self._devices[each.device]
                descriptor.counter.unit = self._pb.CounterDescriptor.UNIT_SIZE_BYTES
                uuids[key] = descriptor.uuid
            event = self._event(self._pb.TrackEvent.TYPE_COUNTER, uuids[key], each.at)
            event.counter_value = each.value


def _describe(event: Any, details: Details, place: Place | None) -> None:
    for name, value in details.items():
        annotation = event.debug_annotations.add()
        annotation.name = name
        if isinstance(value, int) and value < 1 << 63:
            annotation.int_value = value
        else:
            annotation.string_value = _text(str(value))
    if place is not None:
        location = event.source_location
        location.file_name, location.function_name, location.line_number = _text(place.file), place.function, place.line


def _text(text: str) -> str:
    """Replace surrogates, which names of files and ranges may contain and UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def _by_track(items: Iterable[Any]) -> dict[Track, list[Any]]:
    tracks: dict[Track, list[Any]] = {}
    for each in items:
        tracks.setdefault(each.track, []).append(each)
    return tracks


def _nested(slices: list[Slice]) -> Iterator[Slice | int]:
    """Yield each slice at its begin and, as an int, its end, innermost first. Unfinished slices have no end."""
    ends: list[int] = []
    for each in sorted(slices, key=lambda each: (each.begin, -(each.end or 1 << 63))):
        while ends and ends[-1] <= each.begin:
            yield ends.pop()
        yield each
        if each.end is not None:
            ends.append(min([each.end, *ends[-1:]]))
    yield from reversed(ends)
