"""Checked values of a PyTorch snapshot: what validation passes on to the conversion, without a function of either.

See Note [Snapshots are read in three passes].
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.formats.budget import Budget
from forebay.snapshot.formats.torch_decode import Tables

__all__ = ["NODE_COST", "Blocks", "Device", "Entries", "FrameKey", "Segments", "StackLists", "StreamEntries"]

FrameKey = tuple[str, str, int, tuple[tuple[str, str], ...]]  # file, name, line, and details of generated code

NODE_COST = 250  # bytes of memory of a frame, and of a node of the stack tree


@dataclass(slots=True)
class StackLists:
    """Distinct lists of frames, outermost first, with consecutive numbers from 0, the empty list."""

    frames: dict[FrameKey, int] = field(default_factory=dict)  # the number of each frame
    content: array[int] = field(default_factory=lambda: array("I"))  # the numbers of the frames of all lists
    ends: array[int] = field(default_factory=lambda: array("Q", [0]))  # of each list in `content`
    forward: dict[int, tuple[str, ...]] = field(default_factory=dict)  # forward frames, by number of the list

    def __iter__(self) -> Iterator[array[int]]:
        """Yield the numbers of the frames of each list."""
        begin = 0
        for end in self.ends:
            yield self.content[begin:end]
            begin = end


class Segments(NamedTuple):
    """Values of the segments, in the order of the file."""

    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    streams: NDArray[np.uint64]
    stacks: NDArray[np.uint32]  # numbers of lists in `Device.stacks`, or rows of the decoder's stack tree
    small: list[int]
    pools: NDArray[np.uint64]  # ids: pairs of numbers
    expandable: list[bool]


class Blocks(NamedTuple):
    """Values of the blocks, by segment."""

    sizes: NDArray[np.uint64]
    segments: NDArray[np.int64]
    addresses: NDArray[np.uint64] | None  # None before 2.1: each block follows the previous one
    requested: NDArray[np.uint64]
    stacks: NDArray[np.uint32]
    states: list[int]


class Entries(NamedTuple):
    """Values of the entries whose actions are known."""

    actions: NDArray[np.uint32]
    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    streams: NDArray[np.uint64]
    times: NDArray[np.uint64]  # µs
    stacks: NDArray[np.uint32]
    pools: NDArray[np.uint64] | None  # ids: pairs of numbers
    labels: tuple[list[str], list[str], list[str]] | None  # compile_context, user_metadata and internal_metadata
    state_pools: bool  # the file is of a version that records the pools of entries


@dataclass(frozen=True, slots=True)
class StreamEntries:
    """Entries that the streaming reader has checked, and the tables that they refer to."""

    rows: NDArray[np.void]
    tables: Tables

    def __len__(self) -> int:
        return len(self.rows)


class Device(NamedTuple):
    """Checked values of one device."""

    name: str
    settings: Mapping[str, Any]
    annotations: tuple[Mapping[str, Any], ...]  # of all devices
    segments: Segments
    blocks: Blocks
    entries: Entries | StreamEntries
    stacks: StackLists | Tables
    budget: Budget
    truncated: str
