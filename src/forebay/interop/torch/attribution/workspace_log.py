"""The workspaces that cuDNN may have requested on a device, and replays of its history with them.

See Note [Workspaces of cuDNN].
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forebay.errors import Unsupported
from forebay.records.model import ENTRY, Action, Snapshot
from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.runtime.history import recording
from forebay.runtime.memory.device_snapshot import take_snapshot
from forebay.runtime.settings import process_settings
from forebay.runtime.streams.stream import current_stream_for
from forebay.snapshot.replay.engine import History

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["WorkspaceLog"]

_ENTRIES = 4_000_000  # of the history, which has no stacks
_MOST = 1_000_000  # requests: of longer programs, the bound is the largest one
_SECONDS = 20.0  # of a replay, after which the bound is the largest one
_PAGE = 2 << 20  # the sizes of large segments are multiples of it
_ALLOCATED, _FREED = 2, 3  # of the allocator's counts: the allocations of all sizes, and their frees
_COLUMNS = 5
_SHIFT = 32


class WorkspaceLog:
    """The requests on one device. The first one begins the record of its history, if there is none yet."""

    def __init__(self, opened: OpenDevice) -> None:
        if not opened.allocator.recording:
            recording.start_whole(opened.allocator, _ENTRIES, stacks=False)
        self._opened = opened
        # Allocations and frees before each, its bytes, its stream, and whether it is for a forward pass of training.
        self._requests = array("q")
        self._largest = 0

    def requested(self, nbytes: int, *, is_forward: bool = False) -> None:
        """Add a request. Those of the forward passes of training count only if there is no other one."""
        self._largest = max(self._largest, nbytes)
        if len(self._requests) < _COLUMNS * _MOST:
            counts = self._opened.allocator.counts()
            stream = current_stream_for(self._opened).handle
            self._requests.extend((counts[_ALLOCATED], counts[_FREED], nbytes, stream, is_forward))

    def most(self, reserved: int) -> int:
        """Return the bytes that workspaces add at most to a peak of `reserved` bytes on this device."""
        opened, allocator = self._opened, self._opened.allocator
        free, total = opened.port.memory_info()
        memory = free + allocator.current(RESERVED_BYTES)  # what is outside the allocator is not free
        if opened.pluggable is not None or not process_settings.caching:
            return self._bound(min(memory, total) - reserved)
        return self.most_of(take_snapshot(opened), memory, reserved, allocator.limit)

    def most_of(self, snapshot: Snapshot, memory: int, reserved: int, limit: int | None = None) -> int:
        """Return the bytes that workspaces add at most on a device with another history and `memory` bytes."""
        left = max((memory if limit is None else min(memory, limit)) - reserved, 0)
        trace = None if snapshot.lost else self._inserted(snapshot.trace)
        if trace is None:
            return self._bound(left)
        try:
            outcome = History(replace(snapshot, trace=trace)).run(memory=memory, limit=limit, seconds=_SECONDS)
        except Unsupported:
            return self._bound(left)
        if not outcome.complete or not outcome.from_recorded_state:
            return self._bound(left)
        return left if outcome.stopped else max(outcome.peak_reserved - reserved, 0)

    def _bound(self, left: int) -> int:
        """Return the largest request in segments of its own, as far as memory is left."""
        return min(-(-self._largest // _PAGE) * _PAGE, max(left, 0))

    def _inserted(self, trace: NDArray[np.void]) -> NDArray[np.void] | None:
        """Return a history with the requests, as such that were refused and may succeed; None if it does not tell when.

        It tells if all counts of allocations and frees occur in it: neither the history nor the counts began anew.
        """
        counts = self._opened.allocator.counts()
        requests = np.array(self._requests, np.int64).reshape(-1, _COLUMNS)
        if len(requests) >= _MOST or not len(trace):
            return None
        if not (is_forward := requests[:, 4] > 0).all():
            requests = requests[~is_forward]
        is_allocated, is_freed = trace["action"] == Action.ALLOC, trace["action"] == Action.FREE_REQUESTED
        allocated, freed = np.cumsum(is_allocated), np.cumsum(is_freed)
        before = requests[:, :2] - [counts[_ALLOCATED] - allocated[-1], counts[_FREED] - freed[-1]]
        if (before < 0).any():
            return None
        reached, wanted = (allocated << _SHIFT) + freed, (before[:, 0] << _SHIFT) + before[:, 1]
        at = np.searchsorted(reached, wanted)
        if (at >= len(trace)).any() or (reached[at[wanted > 0]] != wanted[wanted > 0]).any():
            return None
        # A free is complete with the next entry, unless it waits for another stream.
        follows = np.append((trace["action"][1:] == Action.FREE_COMPLETED) & is_freed[:-1], False)
        follows &= np.append(trace["address"][1:] == trace["address"][:-1], False)
        rows = np.zeros(len(requests), ENTRY)
        rows["action"], rows["nbytes"], rows["queue"] = Action.OOM, requests[:, 2], requests[:, 3]
        return np.insert(trace, np.where(wanted > 0, at + 1 + follows[at], 0), rows)
