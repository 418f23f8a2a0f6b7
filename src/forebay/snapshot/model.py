"""What a snapshot is: segments, blocks and history at one moment, as NumPy columns.

This is the schema, and the one thing the runtime and the snapshot wing share. Stacks are a tree: entry `stack` is a row
of `stacks` (row 0 is "no stack"), whose `parent` is the caller's row and whose `frame` is a row of `frames`; a frame's
`file` and `name` are indices of `strings`. So a million entries that come from a few hundred places stay small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "ENTRY",
    "FRAME",
    "HEAP_NOTES",
    "SEGMENT",
    "STACK",
    "VERSION",
    "Action",
    "Frame",
    "Snapshot",
    "State",
]

VERSION = 2  # raise it when a column changes meaning; codec.py reads every version it ever wrote
HEAP_NOTES = ("heaps", "watermarks")  # of memory that came so; in PyTorch's schema they are among the settings


class Action(IntEnum):
    """What an entry of the history says; PyTorch's words for them stand beside."""

    TAKE = 1  # alloc
    GIVE = 2  # free_requested
    GIVEN = 3  # free_completed
    RESERVE = 4  # segment_alloc
    RELEASE = 5  # segment_free
    OOM = 6  # oom; the address is the device's free bytes, the size the rounded request
    MAP = 7  # segment_map: pages of a growing segment came
    UNMAP = 8  # segment_unmap
    LOOK = 9  # snapshot: somebody took one; the size is that of all blocks in use
    ANNOTATE = 10  # annotate: the program said something of a block


class State(IntEnum):
    """What a block is doing; PyTorch's words for them stand beside."""

    FREE = 0  # inactive
    LIVE = 1  # active_allocated
    AWAITING = 2  # active_pending_free


SEGMENT = np.dtype(
    [
        ("address", "u8"),
        ("nbytes", "u8"),
        ("queue", "u8"),
        ("stack", "u4"),
        ("small", "u4"),
        ("home", "u4"),  # 0, or the number of a private pool
        ("growing", "u4"),  # a run of pages of a growing segment
    ]
)
BLOCK = np.dtype(
    [("address", "u8"), ("nbytes", "u8"), ("requested", "u8"), ("stack", "u4"), ("segment", "u4"), ("state", "u8")]
)
ENTRY = np.dtype(
    [
        ("time_ns", "u8"),
        ("address", "u8"),
        ("nbytes", "u8"),
        ("queue", "u8"),
        ("stack", "u4"),
        ("action", "u4"),
        ("home", "u4"),
        ("note", "u4"),  # what the program said of itself meanwhile: a row of `labels`; 0: nothing
    ]
)
STACK = np.dtype([("parent", "u4"), ("frame", "u4")])
FRAME = np.dtype([("file", "u4"), ("name", "u4"), ("line", "u4")])


class Frame(NamedTuple):
    """One line of a stack, in words."""

    file: str
    name: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Segments, blocks and history of one device at one moment. The arrays are structured, one dtype above each."""

    device: str  # "host:0"
    capacity: int  # bytes the device has in all
    taken_at_ns: int  # Unix time
    segments: NDArray[np.void]  # SEGMENT, by address
    blocks: NDArray[np.void]  # BLOCK, by address; they tile their segments
    trace: NDArray[np.void]  # ENTRY, oldest first; TAKE and GIVE carry the requested size, RESERVE the segment's
    stacks: NDArray[np.void]  # STACK; a parent's row is smaller than its child's, so no stack can be a circle
    frames: NDArray[np.void]  # FRAME
    strings: tuple[str, ...]
    lost: int = 0  # entries that the ring dropped before the oldest one here
    stats: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # memory_stats(), flat
    notes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # JSON-able: program, versions, …
    labels: tuple[tuple[str, str], ...] = ()  # what entries' notes say, from 1 on: compile context, user's own

    def stack(self, index: int) -> Iterator[Frame]:
        """The frames of one stack, innermost first."""
        while index:
            node = self.stacks[index]
            frame = self.frames[node["frame"]]
            yield Frame(self.strings[frame["file"]], self.strings[frame["name"]], int(frame["line"]))
            index = int(node["parent"])
