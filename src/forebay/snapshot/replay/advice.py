"""Suggests settings that avoid an out-of-memory error. Each suggestion is verified by a replay of the history."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from forebay.records.model import Action, Snapshot
from forebay.snapshot.replay.engine import History

__all__ = ["ENTRIES", "SECONDS", "suggest_settings"]

ENTRIES = 200_000  # newest entries of the history that are replayed
SECONDS = 0.3  # time limit for all replays


def suggest_settings(
    snapshot: Snapshot, *, capacity: int, other_used: int, limit: int | None, growable: bool
) -> list[str]:
    """Return a line for the error text with settings under which the last failed request succeeds; empty if none.

    The replay with the current settings must fail at the same request; otherwise it does not reproduce the error and
    proves nothing. `limit` is the maximum of reserved bytes, `growable` enables expandable segments.
    """
    deadline = time.monotonic() + SECONDS
    oom_rows = np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    if not len(oom_rows):
        return []
    # Entries after the error, made by other threads, are part of the final state and must be undone, too.
    first = max(0, int(oom_rows[-1]) + 1 - ENTRIES)
    history = History(replace(snapshot, trace=snapshot.trace[first:]))
    request = int(oom_rows[-1]) - first

    def fits(settings: str) -> bool | None:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        outcome = history.run(settings, capacity, other_used=other_used, limit=limit, seconds=left)
        if not outcome.complete or outcome.stopped:
            return None
        return request not in outcome.refused

    if fits(history.recorded.text) is not False:
        return []
    for settings in history.recorded.alternatives(growable=growable, limited=limit is not None):
        if fits(settings):
            events, variables = f"{history.events:,} recorded events", history.recorded.as_environment(settings)
            return [f"  With {variables} the request succeeds when the {events} are replayed."]
    return []
