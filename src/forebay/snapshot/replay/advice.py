"""Which setting would have saved a request that found no memory: shown by a replay, or not claimed."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from forebay.snapshot.model import Action, Snapshot
from forebay.snapshot.replay.engine import History

__all__ = ["ENTRIES", "SECONDS", "lines"]

ENTRIES = 200_000  # of the history are replayed, the newest
SECONDS = 0.3  # for everything


def lines(snapshot: Snapshot, *, capacity: int, other_used: int, limit: int | None, growable: bool) -> list[str]:
    """For the error's text: a setting under which the last request that ran out of memory fits. Empty if none is shown.

    The replay under the settings of now must run out at that very request, or it is not the same story and proves
    nothing. `limit` is the most that may be reserved, `growable` whether segments can grow here.
    """
    until = time.monotonic() + SECONDS
    full = np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    if not len(full):
        return []
    # What came behind it, another thread's doing, is not part of the story.
    first, end = max(0, int(full[-1]) + 1 - ENTRIES), len(snapshot.trace)
    history = History(replace(snapshot, trace=snapshot.trace[first:end]))
    request = int(full[-1]) - first

    def fits(settings: str) -> bool | None:
        left = until - time.monotonic()
        if left <= 0:
            return None
        outcome = history.run(settings, capacity, other_used=other_used, limit=limit, seconds=left)
        if not outcome.complete or outcome.stopped:
            return None
        return request not in outcome.refused

    now = history.recorded.text
    if fits(now) is not False:
        return []
    for settings in history.recorded.others(growable=growable, limited=limit is not None):
        if fits(settings):
            told = f"the {history.events:,} recorded events, replayed, leave room for it"
            return [f"  Under {history.recorded.told(settings)} {told}."]
    return []
