"""Data model of a resolved trace. Times are the host's (`time.perf_counter_ns`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["NO_DETAILS", "Details", "Moment", "Place", "Sample", "Slice", "TraceData", "Track"]

Details = Mapping[str, str | int]
NO_DETAILS: Details = MappingProxyType({})


class Place(NamedTuple):
    """A source line of the program."""

    file: str
    function: str
    line: int


class Track(NamedTuple):
    """A timeline: a thread, a stream, or a row of ranges that any thread may end."""

    kind: str  # thread, stream or ranges
    name: str
    number: int  # the operating system's thread id, the stream's id on its device, or the row
    device: str = ""  # of a stream


class Slice(NamedTuple):
    """An interval on a track. Two slices of a track are nested or disjoint."""

    track: Track
    name: str
    category: str  # kind of the operation (copy, fill, draw, call, native, wait, graph), host, or range
    begin: int
    end: int | None  # None: not finished when the recording ended
    details: Details = NO_DETAILS  # of an operation: `id` from 1, `bytes`, `device`, `stream`
    place: Place | None = None
    leads_to: int = 0  # id of the operation that this call queued
    comes_from: int = 0  # id of the operation that this slice executes


class Moment(NamedTuple):
    """A point in time on a track."""

    track: Track
    name: str
    category: str  # event, range, or the kind of the operation that finished then
    at: int
    details: Details = NO_DETAILS
    place: Place | None = None


class Sample(NamedTuple):
    """A counter's value in bytes from a time on."""

    device: str
    name: str  # allocated or reserved
    at: int
    value: int


@dataclass
class TraceData:
    """A resolved trace."""

    began: int
    ended: int
    slices: list[Slice] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)  # hardware names, by device
    untimed: set[str] = field(default_factory=set)  # devices whose queues cannot time: ends are as observed by the host
    operations: int = 0
    unfinished: int = 0  # operations not finished when the recording ended
    lost: int = 0  # oldest entries, overwritten when the recorder was full
