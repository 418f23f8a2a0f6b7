"""Memory of devices that a program used without PyTorch, as with `import forebay as torch`."""

from __future__ import annotations

import sys
from typing import Any

from forebay.interop.torch.processes.live_record import LiveRecord

__all__ = ["MODULE", "note_own_devices"]

MODULE = "forebay.runtime.devices.open_device"


def note_own_devices(live: LiveRecord) -> None:
    """Note the peaks of the open CUDA devices, and that requests ran out of memory; their sizes are not known."""
    open_device: Any = sys.modules.get(MODULE)
    if open_device is None:
        return
    from forebay.runtime.allocator.statistics import flat_stats

    for opened in open_device.open_devices().devices:
        if opened.device.kind == "cuda" and not opened.unusable:  # by a fork: it is the parent's
            stats = flat_stats(opened.allocator)
            index, capacity = opened.device.index or 0, opened.port.memory_info()[1]
            for _ in range(stats["num_ooms"]):
                live.refused(index, capacity, 0)
            live.used(index, capacity, stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"])
