"""Snapshot of a pool: the rows of the C++ core as the columns of snapshot/model.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Snapshot

if TYPE_CHECKING:
    from forebay._core import Pool

__all__ = ["snapshot"]


def snapshot(
    pool: Pool,
    name: str,
    capacity: int,
    *,
    trace: bool = True,
    stats: Mapping[str, int] | None = None,
    notes: Mapping[str, Any] | None = None,
    labels: Callable[[], tuple[tuple[str, str], ...]] = tuple,
) -> Snapshot:
    """Return segments, blocks and, if `trace` is true, the history of a pool at one moment."""
    segments, blocks, entries, lost, stack_rows = pool.tables(trace)
    strings: dict[str, int] = {}
    frames: dict[tuple[int, int, int], int] = {}
    stacks = np.zeros(len(stack_rows) + 1, STACK)
    for row, (parent, file, function, line) in enumerate(stack_rows, start=1):
        frame = (strings.setdefault(file, len(strings)), strings.setdefault(function, len(strings)), line)
        stacks[row] = (parent, frames.setdefault(frame, len(frames)))
    return Snapshot(
        device=name,
        capacity=capacity,
        taken_at_ns=time.time_ns(),
        segments=np.frombuffer(segments, SEGMENT),
        blocks=np.frombuffer(blocks, BLOCK),
        trace=np.frombuffer(entries, ENTRY),
        stacks=stacks,
        frames=np.array(list(frames), FRAME),
        strings=tuple(strings),
        lost=lost,
        stats=stats or {},
        notes=notes or {},
        labels=labels(),  # read last, so that it has every label that the entries use
    )
