"""The snapshot schema: segments, blocks and history of one device at one moment, as NumPy columns.

The runtime and the `snapshot` package share this module only. Stacks are stored as a tree: an entry's `stack` is a row
of `stacks` (row 0 means "no stack"), whose `parent` is the caller's row and whose `frame` is a row of `frames`. `file`
and `name` of a frame are indices into `strings`. A million entries from a few hundred call sites therefore stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice

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
    "hooks",
]

VERSION = 2  # increase it when a column changes meaning; native.py reads every version ever written
HEAP_NOTES = ("heaps", "watermarks")  # notes of a heap allocator; in PyTorch's schema they are part of the settings


class Action(IntEnum):
    """Kinds of history entries. The comments give PyTorch's names."""

    ALLOC = 1  # alloc
    FREE_REQUESTED = 2  # free_requested
    FREE_COMPLETED = 3  # free_completed
    RESERVE = 4  # segment_alloc
    RELEASE = 5  # segment_free
    OOM = 6  # oom; `address` holds the device's free bytes, `nbytes` the rounded request
    MAP = 7  # segment_map: pages of an expandable segment were mapped
    UNMAP = 8  # segment_unmap
    SNAPSHOT = 9  # snapshot: a snapshot was taken; `nbytes` is the total size of all blocks in use
    ANNOTATE = 10  # annotate: the program annotated a block


class State(IntEnum):
    """States of a block. The comments give PyTorch's names."""

    FREE = 0  # inactive
    LIVE = 1  # active_allocated
    PENDING_FREE = 2  # active_pending_free


SEGMENT = np.dtype(
    [
        ("address", "u8"),
        ("nbytes", "u8"),
        ("queue", "u8"),
        ("stack", "u4"),
        ("small", "u4"),
        ("pool", "u4"),  # private pool id; 0: the default pool
        ("growing", "u4"),  # 1: a run of mapped pages of an expandable segment
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
        ("pool", "u4"),  # private pool id; 0: the default pool
        ("note", "u4"),  # row of `labels` that annotates the entry, from 1; 0: none
    ]
)
STACK = np.dtype([("parent", "u4"), ("frame", "u4")])
FRAME = np.dtype([("file", "u4"), ("name", "u4"), ("line", "u4")])


class Frame(NamedTuple):
    """One frame of a call stack."""

    file: str  #: path of the source file
    name: str  #: qualified name of the function
    line: int  #: line number; 0 if unknown


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Snapshot:
    """Segments, blocks and history of one device at one moment, as structured arrays.

    Parameters
    ----------
    device : str
        The device, such as "cpu" or "cuda:0".
    capacity : int
        Memory of the device in bytes; 0 if unknown.
    taken_at_ns : int
        Unix time of the snapshot in nanoseconds.
    segments : numpy.ndarray
        Rows of dtype `SEGMENT`, by address.
    blocks : numpy.ndarray
        Rows of dtype `BLOCK`, by address. Blocks fill their segments without gaps.
    trace : numpy.ndarray
        Rows of dtype `ENTRY`, oldest first. Allocations and frees carry the requested size, segment entries the size of
        the segment.
    stacks : numpy.ndarray
        Rows of dtype `STACK`. A parent has a smaller row number than its children, so a stack cannot be circular.
    frames : numpy.ndarray
        Rows of dtype `FRAME`.
    strings : tuple of str
        File and function names.
    lost : int, optional
        Entries that the ring buffer dropped before the oldest entry in `trace`; 0 by default.
    stats : Mapping of str to int, optional
        Flat statistics, as `forebay.memory.memory_stats` returns them; empty by default.
    notes : Mapping of str to object, optional
        JSON-serialisable metadata such as the program and versions; empty by default.
    labels : tuple of tuple of str, optional
        Annotations `(compile_context, user_metadata)`. The column `note` of an entry counts them from 1.
    site_choice : SiteChoice, optional
        How all analyses choose the sites of the stacks; no file contains it.
    """

    device: str
    capacity: int
    taken_at_ns: int
    segments: NDArray[np.void]
    blocks: NDArray[np.void]
    trace: NDArray[np.void]
    stacks: NDArray[np.void]
    frames: NDArray[np.void]
    strings: tuple[str, ...]
    lost: int = 0
    stats: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    notes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    labels: tuple[tuple[str, str], ...] = ()
    # Not an argument of each analysis: tables of one report that disagree about what a site is are wrong, and an
    # analysis that forgets to pass the argument on would make them.
    site_choice: SiteChoice = DEFAULT_CHOICE

    def stack(self, index: int) -> Iterator[Frame]:
        """Yield the frames of one stack, from the innermost one outwards.

        Parameters
        ----------
        index : int
            A row of `stacks`; 0 yields nothing.
        """
        while index:
            node = self.stacks[index]
            frame = self.frames[node["frame"]]
            yield Frame(self.strings[frame["file"]], self.strings[frame["name"]], int(frame["line"]))
            index = int(node["parent"])

    def _repr_html_(self) -> str:
        return hooks.html(self)


class _Hooks:
    """Functions of the packages above: the display of a snapshot and of a timeline in a notebook."""

    html: Callable[[Snapshot], str] = staticmethod(repr)
    timeline_html: Callable[[Any], str] = staticmethod(repr)


hooks = _Hooks  # set by forebay._wiring
