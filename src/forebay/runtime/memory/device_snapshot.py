"""Snapshot of an open device: its blocks, history, statistics and policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.records.model import Snapshot
from forebay.runtime.allocator import statistics
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.history import memory_snapshot
from forebay.runtime.history.recorded_pool import RecordedPool

__all__ = ["take_snapshot"]


def take_snapshot(opened: OpenDevice, notes: Mapping[str, Any] | None = None, *, for_program: bool = False) -> Snapshot:
    """Return a snapshot with all that is recorded; `for_program`: with what the program has recorded."""
    _, total = opened.port.memory_info()
    allocator = opened.allocator
    taken = memory_snapshot.snapshot(
        allocator,
        str(opened.device),
        total,
        stats=statistics.flat_stats(allocator),
        notes={**allocator.snapshot_notes(), **_annotations(allocator, for_program=for_program), **(notes or {})},
        labels=allocator.labels.table,
    )
    return allocator.program.view(taken) if for_program and allocator.program is not None else taken


def _annotations(allocator: RecordedPool, *, for_program: bool) -> dict[str, Any]:
    """Return the note with the annotations, if there are any: those of the command, or those of the program."""
    program = None if for_program else allocator.program
    found = allocator.labels.annotations if program is None else program.annotations
    return {"external_annotations": [*found]} if found else {}
