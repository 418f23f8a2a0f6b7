"""Memory history and snapshot of the model in PyTorch's schema, without stacks and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay.records.model import State
from support.model.blocks import Block, Segment

__all__ = ["History", "snapshot_segments"]

_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("snapshot", "oom", "annotate"),
)
_STATES = {State.FREE: "inactive", State.LIVE: "active_allocated", State.PENDING_FREE: "active_pending_free"}


class History:
    """Memory history: the last `capacity` entries."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.recording = False
        self.capacity = 1
        self.skipped: tuple[str, ...] = ()

    def record(self, enabled: str | None, max_entries: int, clear: bool, skipped: Sequence[str]) -> None:
        for action in skipped:
            if action not in _ACTIONS:
                raise RuntimeError(f"Unknown TraceEntry action: {action}")
        self.recording = enabled is not None
        self.capacity = max(max_entries, 1) if enabled == "all" else 1
        self.skipped = tuple(skipped)
        self.entries = [] if clear or not enabled else self.entries[-self.capacity :]

    def record_event(self, action: str, address: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        """Record an entry. For "oom", the address is the device's free bytes."""
        if self.recording and action not in self.skipped:
            name = "device_free" if action == "oom" else "addr"
            entry = {"action": action, name: address, "size": size, "stream": stream, "pool_id": pool}
            self.entries = [*self.entries, entry][-self.capacity :]


def snapshot_segments(segments: Iterator[Segment], device: int) -> list[dict[str, Any]]:
    """Return the segments by address. Each run of mapped blocks counts as a segment."""
    rows = []
    for segment in segments:
        run: list[Block] = []
        for block in [*segment.blocks, None]:
            if block is not None and block.mapped:
                run.append(block)
            elif run:
                rows.append(_segment_dict(segment, run, device))
                run = []
    return sorted(rows, key=lambda segment: segment["address"])


def _segment_dict(segment: Segment, run: list[Block], device: int) -> dict[str, Any]:
    active = [block for block in run if block.state != State.FREE]
    return {
        "device": device,
        "address": run[0].address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block.size for block in run if block.state == State.LIVE),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.pool.small else "large",
        "segment_pool_id": segment.pool.id,
        "is_expandable": segment.page > 0,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _STATES[block.state],
                "frames": [],
            }
            for block in run
        ],
    }
