"""History of pinned host memory, in PyTorch's snapshot schema ("host_segments", "host_traces")."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.runtime.history import recording

if TYPE_CHECKING:
    from forebay.runtime.pinned._cache import HostBlock

__all__ = ["ALL", "STATE", "Frames", "PinnedHistory", "segment_dict", "set_default", "start_default"]

Frames = tuple[tuple[CodeType, int], ...]  # code and line, innermost first

_NEVER, STATE, _ALLOC, ALL = range(4)  # stack capture levels; each includes those before it
_LEVELS = {None: _NEVER, "state": STATE, "alloc": _ALLOC, "all": ALL}
_MAX_DEPTH = 256


class _Entry(NamedTuple):
    action: str
    address: int
    size: int
    time_ns: int
    frames: Frames | None


class PinnedHistory:
    """Ring of pinned-memory events that keeps the newest entries. Off until `start`."""

    def __init__(self) -> None:
        self.recording: bool = False
        self._level = _NEVER
        self._depth = _MAX_DEPTH
        self._outside: str | None = None
        self._entries: deque[_Entry] = deque(maxlen=0)

    def start(
        self,
        enabled: str | None,
        context: str | None,
        max_entries: int,
        *,
        clear_history: bool = False,
        stacks: str = "all",
        depth: int = _MAX_DEPTH,
    ) -> None:
        """Start, change or stop recording; entries are kept on stop. `recording.start` checks the arguments."""
        if enabled is None:
            self.recording, self._level = False, _NEVER
        else:
            capacity = max(max_entries, 1) if enabled == "all" else 1
            self._entries = deque(self._entries, maxlen=min(capacity, sys.maxsize))
            self._depth, self._outside = min(depth, _MAX_DEPTH), recording.first_frames_outside(stacks)
            self.recording, self._level = True, _LEVELS[context]
        if clear_history:
            self._entries.clear()

    def capture_stack(self, level: int) -> Frames | None:
        """Return the caller's stack if the recording captures stacks at `level`, else None."""
        if self._level < level:
            return None
        return tuple(_frames_from(sys._getframe(1), self._depth, self._outside))  # noqa: SLF001 -- the documented way

    def record(self, action: str, block: HostBlock, frames: Frames | None = None) -> None:
        if self.recording:
            kept = frames if self._level >= _ALLOC else None
            self._entries.append(_Entry(action, block.address, block.size, time.time_ns(), kept))

    def record_alloc(self, block: HostBlock, frames: Frames | None, *, new: bool) -> None:
        block.frames = frames
        if self.recording:
            if new:
                self.record("segment_alloc", block, frames)
            self.record("alloc", block, frames)

    def record_free_completed(self, block: HostBlock, frames: Frames | None) -> None:
        if self.recording:
            self.record("free_completed", block, frames or block.frames)
            block.frames = None

    def traces(self) -> list[dict[str, Any]]:
        """Return the entries, oldest first; an empty list while recording is off."""
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
            | ({} if entry.frames is None else {"frames": _frame_dicts(entry.frames)})
            for entry in self._entries.copy()
        ]


_defaults: dict[str, Callable[[PinnedHistory], object]] = {}  # by kind: starts the recording of a new allocator


def set_default(kind: str, start_recording: Callable[[PinnedHistory], object] | None) -> None:
    """Set how the kind's pinned memory starts to record if its allocator is made later; None: not at all."""
    if start_recording is None:
        _defaults.pop(kind, None)
    else:
        _defaults[kind] = start_recording


def start_default(kind: str, history: PinnedHistory) -> None:
    """Start recording pinned memory whose allocator was just made, if set for its kind."""
    if (start_recording := _defaults.get(kind)) is not None:
        start_recording(history)


def segment_dict(block: HostBlock, *, allocated: bool, active: bool) -> dict[str, Any]:
    """Return a pinned block as a PyTorch segment that consists of this one block."""
    state = "active_allocated" if allocated else "active_pending_free" if active else "inactive"
    frames = _frame_dicts(block.frames or ())
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


def _frames_from(frame: FrameType | None, depth: int, outside: str | None) -> Iterator[tuple[CodeType, int]]:
    """Yield up to `depth` frames, skipping those of this package, from the first one outside the folder."""
    while outside is not None and frame is not None and frame.f_code.co_filename.startswith(outside):
        frame = frame.f_back
    while frame is not None and depth > 0:
        if not frame.f_globals.get("__name__", "").startswith("forebay.runtime.pinned."):
            yield frame.f_code, frame.f_lineno
            depth -= 1
        frame = frame.f_back


def _frame_dicts(frames: Iterable[tuple[CodeType, int]]) -> list[dict[str, Any]]:
    return [{"filename": code.co_filename, "line": line, "name": code.co_name} for code, line in frames]
