"""Settings of a recording from a device that allocates in heaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from forebay._base.config import HIGH_WATERMARK, LOW_WATERMARK
from forebay._base.watermarks import MAX_RATIO, Watermarks
from forebay.errors import ForebayError, Unsupported
from forebay.records.model import Snapshot
from forebay.simulate import Device
from forebay.snapshot.replay.recorded_settings import RecordedSettings
from forebay.spi import Heaps

__all__ = ["RecordedHeapSettings", "recorded_settings_of"]

_MAX_POOLS = 2_000  # each simulated pool takes several kilobytes
_LOW_WATERMARKS = (1.0, 0.7, 0.4, 0.1)


def recorded_settings_of(snapshot: Snapshot) -> RecordedSettings:
    """Return the settings of a recording: those of heaps if the snapshot notes heaps, else those of segments.

    Raises Unsupported if it has too many private pools.
    """
    pools = len(np.union1d(snapshot.segments["pool"], snapshot.trace["pool"]))
    if pools > _MAX_POOLS:
        raise Unsupported(f"cannot replay {snapshot.device}: it has {pools:,} private pools, more than {_MAX_POOLS:,}")
    noted = snapshot.notes.get("heaps")
    if isinstance(noted, Mapping):
        with suppress(TypeError, ValueError):  # notes that another program wrote
            return RecordedHeapSettings(snapshot, Heaps(**noted))
    return RecordedSettings(snapshot)


class RecordedHeapSettings(RecordedSettings):
    """Settings of a heap allocator. `text` is in the format of `Watermarks.from_text`: "high_watermark_ratio:1.7"."""

    large_segment: int
    max_split: int
    text: str

    heaps = True
    _small_segment = 8 << 20

    def __init__(self, snapshot: Snapshot, heaps: Heaps) -> None:
        self._heaps = heaps
        noted = snapshot.notes.get("watermarks")
        self.known: bool = isinstance(noted, str)
        try:
            marks = Watermarks.from_text(heaps, noted if isinstance(noted, str) else "")
        except (ValueError, ForebayError):
            self.known, marks = False, Watermarks.from_text(heaps, "")
        self._marks, self.text = marks, str(marks)
        self._pool = self.device(2 * heaps.recommended, self.text, 0).allocator
        self.expandable = self.collects_garbage = self.fine_segments = False
        self.max_split, self.large_segment = self._pool.settings.max_split_size, 0
        self.by_arrival = True
        self._trace = snapshot.trace

    def device(self, total: int, settings: str, other_used: int) -> Device:
        return Device(total, settings, other_used, heaps=self._heaps)

    def alternatives(self, *, growable: bool, limited: bool) -> Iterator[str]:  # noqa: ARG002 -- fixed for heaps
        """Yield lower low watermarks (smaller heaps, earlier garbage collection), then higher limits."""
        for low in _LOW_WATERMARKS:
            if low < self._marks.low:
                yield str(replace(self._marks, low=low))
        for high in (MAX_RATIO, 0.0):
            if 0 < self._marks.high < (high or MAX_RATIO + 1):
                yield str(replace(self._marks, high=high))

    def as_environment(self, settings: str) -> str:
        new, current = Watermarks.from_text(self._heaps, settings), self._marks
        high = [f"{HIGH_WATERMARK.name}={new.high}"] if new.high != current.high else []
        low = [f"{LOW_WATERMARK.name}={new.low}"] if new.low != current.low else []
        return " ".join([*high, *low])
