"""Memory that other devices of a program did not use when one of them ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.summary import sites
from forebay.snapshot.analysis.timeline import reconstruct

__all__ = ["OtherDevice", "other_devices"]


@dataclass(frozen=True, slots=True)
class OtherDevice:
    """Use of a device when another one of the program ran out of memory. Sizes are in bytes."""

    device: str  #: the device
    live: int  #: requested bytes of live blocks
    reserved: int  #: bytes in segments
    capacity: int  #: its memory; 0 if unknown
    #: True if the file does not contain its memory, and `capacity` is what the device that failed could reserve.
    assumed: bool
    #: True if both figures are of the moment of the error. False if the file has no comparable times: then they are the
    #: highest of the history.
    at_error: bool
    ran_out: bool  #: whether it ran out of memory, too
    label: str  #: the site with the most live memory then; "" if there is none

    @property
    def unused(self) -> int | None:
        """Bytes without live blocks; None if its memory is unknown."""
        return max(self.capacity - self.live, 0) if self.capacity else None


def other_devices(
    snapshot: Snapshot, others: Iterable[Snapshot], entry: int, available: int | None = None
) -> tuple[OtherDevice, ...]:
    """Return the use of the other devices of a program at the time of one history entry.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot of the device that ran out of memory.
    others : iterable of Snapshot
        Those of the others.
    entry : int
        The entry of the failed request.
    available : int, optional
        What the device that ran out of memory could reserve: assumed for devices whose memory is unknown.
    """
    time = int(snapshot.trace["time_ns"][entry])
    return tuple(_use(each, time, available or 0) for each in others)


def _use(snapshot: Snapshot, time: int, available: int) -> OtherDevice:
    timeline = reconstruct(snapshot)
    times = snapshot.trace["time_ns"].astype(np.int64)
    known = time > 0 and bool(times.any()) and bool((np.diff(times) >= 0).all())
    moment = int(np.searchsorted(times, time, "right")) if known else timeline.peak
    live, reserved = int(timeline.allocated[moment]), int(timeline.reserved[moment])
    if not known:
        reserved = int(timeline.reserved.max())
    assumed = not snapshot.capacity and int(timeline.reserved.max()) <= available
    held = sites(split_largest(snapshot, timeline, moment), moment, timeline=timeline)
    return OtherDevice(
        device=snapshot.device,
        live=live,
        reserved=reserved,
        capacity=available if assumed else snapshot.capacity,
        assumed=assumed,
        at_error=known,
        ran_out=bool((snapshot.trace["action"] == Action.OOM).any()),
        label=held[0].label if held else "",
    )
