"""What happened, and what is there now, in PyTorch's schema. The model keeps no stacks and no times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay.snapshot.model import State
from support.model.blocks import Block, Segment

__all__ = ["History", "picture"]

_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("snapshot", "oom", "annotate"),
)
_STATES = {State.FREE: "inactive", State.LIVE: "active_allocated", State.AWAITING: "active_pending_free"}


class History:
    """The last entries, as many as are wanted."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.recording = False
        self.room = 1
        self.skipped: tuple[str, ...] = ()

    def record(self, enabled: str | None, max_entries: int, clear: bool, skipped: Sequence[str]) -> None:
        for action in skipped:
            if action not in _ACTIONS:
                raise RuntimeError(f"Unknown TraceEntry action: {action}")
        self.recording = enabled is not None
        self.room = max(max_entries, 1) if enabled == "all" else 1
        self.skipped = tuple(skipped)
        self.entries = [] if clear or not enabled else self.entries[-self.room :]

    def note(self, action: str, address: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        """Of an "oom", the address is how much the device has free."""
        if self.recording and action not in self.skipped:
            name = "device_free" if action == "oom" else "addr"
            entry = {"action": action, name: address, "size": size, "stream": stream, "pool_id": pool}
            self.entries = [*self.entries, entry][-self.room :]


def picture(segments: Iterator[Segment], device: int) -> list[dict[str, Any]]:
    """By address. Each row of mapped blocks is shown as a segment."""
    shown = []
    for segment in segments:
        row: list[Block] = []
        for block in [*segment.blocks, None]:
            if block is not None and block.mapped:
                row.append(block)
            elif row:
                shown.append(_shown(segment, row, device))
                row = []
    return sorted(shown, key=lambda segment: segment["address"])


def _shown(segment: Segment, row: list[Block], device: int) -> dict[str, Any]:
    active = [block for block in row if block.state != State.FREE]
    return {
        "device": device,
        "address": row[0].address,
        "total_size": sum(block.size for block in row),
        "allocated_size": sum(block.size for block in row if block.state == State.LIVE),
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
            for block in row
        ],
    }
