"""Settings of the allocator with which all allocations of a program fit a smaller card."""

from __future__ import annotations

from forebay._base.device_spec import Device
from forebay.interop.torch.attribution.text import for_pytorch
from forebay.runtime.devices import open_device
from forebay.runtime.memory.device_snapshot import take_snapshot
from forebay.snapshot.replay.engine import History

__all__ = ["settings_that_fit"]


def settings_that_fit(index: int, capacity: int) -> tuple[bool, tuple[str, ...]]:
    """Return whether a replay of a device's history fits with its own settings, and other settings with which it does.

    The first one reserves least.
    """
    snapshot = take_snapshot(open_device.open_device(Device("cuda", index)))
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
