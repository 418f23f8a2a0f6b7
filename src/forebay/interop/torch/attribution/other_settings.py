"""Settings of the allocator with which all allocations of a program fit a smaller card."""

from __future__ import annotations

from forebay.interop.torch.attribution.text import for_pytorch
from forebay.records.model import Snapshot
from forebay.snapshot.replay.engine import History

__all__ = ["settings_that_fit"]


def settings_that_fit(snapshot: Snapshot, capacity: int) -> tuple[bool, tuple[str, ...]]:
    """Return whether a replay of a history fits with its own settings, and other settings with which it does.

    The first one reserves least.
    """
    if snapshot.lost:
        return False, ()
    history = History(snapshot)
    suffices = not history.run(None, capacity).refused
    found = []
    for settings in history.recorded.alternatives(growable=True, limited=False):
        outcome = history.run(settings, capacity)
        if not outcome.refused and not outcome.stopped:
            found.append((outcome.peak_reserved, for_pytorch(history.recorded.as_environment(settings))))
    return suffices, tuple(environment for _, environment in sorted(found))
