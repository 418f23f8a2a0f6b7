"""The history of pinned host memory, in the words of PyTorch's snapshots ("host_segments", "host_traces")."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from forebay.runtime.pinned.tables import HostBlock

__all__ = ["ALL", "STATE", "Frames", "PinnedHistory", "segment"]

Frames = tuple[tuple[CodeType, int], ...]  # code and line, innermost first

_NEVER, STATE, _ALLOC, ALL = range(4)  # of which moments the stacks are taken, each with those before it
_LEVELS = {None: _NEVER, "state": STATE, "alloc": _ALLOC, "all": ALL}
_DEEPEST = 256


class _Entry(NamedTuple):
    action: str
    address: int
    size: int
    time_ns: int
    frames: Frames | None


class PinnedHistory:
    """What happened to pinned blocks, the newest entries first to stay. Off until `start`."""

    def __init__(self) -> None:
        self.recording = False
        self._level = _NEVER
        self._depth = _DEEPEST  # of stacks
        self._entries: deque[_Entry] = deque(maxlen=0)

    def start(
        self,
        enabled: str | None,
        context: str | None,
        max_entries: int,
        *,
        clear_history: bool = False,
        depth: int = _DEEPEST,
    ) -> None:
        """Begin, change or end. Words as `recording.start`, which checks them; what was recorded stays when it ends."""
        if enabled is None:
            self.recording, self._level = False, _NEVER
        else:
            most = max(max_entries, 1) if enabled == "all" else 1
            self._entries = deque(self._entries, maxlen=min(most, sys.maxsize))
            self._depth = min(depth, _DEEPEST)
            self.recording, self._level = True, _LEVELS[context]
        if clear_history:
            self._entries.clear()

    def stack(self, level: int) -> Frames | None:
        """Where the program is, if that is wanted."""
        return None if self._level < level else tuple(_walk(sys._getframe(1), self._depth))  # noqa: SLF001 -- the documented way

    def note(self, action: str, block: HostBlock, frames: Frames | None = None) -> None:
        if self.recording:
            kept = frames if self._level >= _ALLOC else None
            self._entries.append(_Entry(action, block.address, block.size, time.time_ns(), kept))

    def lent(self, block: HostBlock, frames: Frames | None, *, new: bool) -> None:
        block.frames = frames
        if self.recording:
            if new:
                self.note("segment_alloc", block, frames)
            self.note("alloc", block, frames)

    def back(self, block: HostBlock, frames: Frames | None) -> None:
        if self.recording:
            self.note("free_completed", block, frames or block.frames)
            block.frames = None

    def traces(self) -> list[dict[str, Any]]:
        """Oldest first; nothing unless it is on."""
        if not self.recording:
            return []
        return [
            {
                "action": entry.action,
                "addr": entry.address,
                "size": entry.size,
                "stream": 0,
                "time_us": entry.time_ns // 1000,
                "compile_context": "",
                "user_metadata": "",
                "pool_id": (0, 0),
            }
            | ({} if entry.frames is None else {"frames": _shown(entry.frames)})
            for entry in self._entries.copy()
        ]


def segment(block: HostBlock, *, allocated: bool, active: bool) -> dict[str, Any]:
    """A pinned block is a segment of one block."""
    state = "active_allocated" if allocated else "active_pending_free" if active else "inactive"
    frames = _shown(block.frames or ())
    return {
        "device": -1,
        "address": block.address,
        "total_size": block.size,
        "allocated_size": block.size if allocated else 0,
        "active_size": block.size if active else 0,
        "requested_size": block.size,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.size,
                "state": state,
                "frames": frames,
            }
        ],
    }


def _walk(frame: FrameType | None, depth: int) -> Iterator[tuple[CodeType, int]]:
    """Without the allocator's own frames."""
    while frame is not None and depth > 0:
        if not frame.f_globals.get("__name__", "").startswith("forebay.runtime.pinned_"):
            yield frame.f_code, frame.f_lineno
            depth -= 1
        frame = frame.f_back


def _shown(frames: Iterable[tuple[CodeType, int]]) -> list[dict[str, Any]]:
    return [{"filename": code.co_filename, "line": line, "name": code.co_qualname} for code, line in frames]
