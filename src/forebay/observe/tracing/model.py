"""A recording as it is told: what was where and when, by the host's clock (`time.perf_counter_ns`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["NONE", "Details", "Moment", "Place", "Sample", "Slice", "Traced", "Track"]

Details = Mapping[str, str | int]
NONE: Details = MappingProxyType({})


class Place(NamedTuple):
    """A line of the program."""

    file: str
    function: str
    line: int


class Track(NamedTuple):
    """Where things are one after another: a thread, a stream, or ranges that are no one thread's."""

    kind: str  # thread stream ranges
    name: str
    number: int  # the system's, of a thread; of a stream, on its device; of those ranges, as several may be open
    device: str = ""  # a stream's


class Slice(NamedTuple):
    """Something that took time. Those of a track are nested in each other, or apart."""

    track: Track
    name: str
    category: str  # an operation's kind (copy fill draw call native wait graph), host, or range
    begin: int
    end: int | None  # None: it was not done when the recording ended
    details: Details = NONE  # of an operation: its `id` from 1 on, `bytes`, `device`, `stream`
    place: Place | None = None
    leads_to: int = 0  # the operation that it queued
    comes_from: int = 0  # the operation whose execution it is


class Moment(NamedTuple):
    """Something that happened."""

    track: Track
    name: str
    category: str  # event, range, or an operation's kind: it was done then
    at: int
    details: Details = NONE
    place: Place | None = None


class Sample(NamedTuple):
    """What a counter of a device shows from then on, in bytes."""

    device: str
    name: str  # allocated reserved
    at: int
    value: int


@dataclass
class Traced:
    """All of it."""

    began: int
    ended: int
    slices: list[Slice] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)  # what they are, by device
    untimed: set[str] = field(default_factory=set)  # whose queues cannot time: work ended when the host saw that it had
    operations: int = 0
    unfinished: int = 0  # of these: they were not done when the recording ended
    lost: int = 0  # entries, the oldest, that there was no room for
