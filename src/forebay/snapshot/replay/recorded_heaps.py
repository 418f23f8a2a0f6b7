"""How a recording's memory came: as segments, whose settings `recorded_settings` works out, or as heaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from forebay.config import HIGH_WATERMARK, LOW_WATERMARK
from forebay.errors import ForebayError
from forebay.simulate import Device
from forebay.snapshot.model import Snapshot
from forebay.snapshot.replay.recorded_settings import Recorded
from forebay.spi import Heaps
from forebay.watermarks import HIGHEST, Watermarks

__all__ = ["RecordedHeaps", "recorded_of"]

_LOWER = (1.0, 0.7, 0.4, 0.1)  # low watermarks


def recorded_of(snapshot: Snapshot) -> Recorded:
    """What the snapshot notes, or what its entries give away."""
    noted = snapshot.notes.get("heaps")
    if isinstance(noted, Mapping):
        with suppress(TypeError, ValueError):  # then it was written by something else
            return RecordedHeaps(snapshot, Heaps(**noted))
    return Recorded(snapshot)


class RecordedHeaps(Recorded):
    """Of a device whose memory came as heaps. `text` is what `Watermarks.of_text` reads: "high_watermark_ratio:1.7"."""

    heaps = True
    _small_segment = 8 << 20

    def __init__(self, snapshot: Snapshot, heaps: Heaps) -> None:
        self._heaps = heaps
        noted = snapshot.notes.get("watermarks")
        self.known = isinstance(noted, str)
        try:
            marks = Watermarks.of_text(heaps, noted if isinstance(noted, str) else "")
        except (ValueError, ForebayError):
            self.known, marks = False, Watermarks.of_text(heaps, "")
        self._marks, self.text = marks, str(marks)
        self._pool = self.device(2 * heaps.recommended, self.text, 0).allocator
        self.grows = self.collects = self.fine = False
        self.max_split, self.large_segment = self._pool.settings.max_split_size, 0
        self.by_arrival = True
        self._trace = snapshot.trace

    def device(self, total: int, settings: str, other_used: int) -> Device:
        return Device(total, settings, other_used, heaps=self._heaps)

    def others(self, *, growable: bool, limited: bool) -> Iterator[str]:  # noqa: ARG002 -- heaps do not, and always are
        """Memory counts as short earlier, so that heaps are smaller and garbage goes; then more of it may be had."""
        for low in _LOWER:
            if low < self._marks.low:
                yield str(replace(self._marks, low=low))
        for high in (HIGHEST, 0.0):
            if 0 < self._marks.high < (high or HIGHEST + 1):
                yield str(replace(self._marks, high=high))

    def told(self, settings: str) -> str:
        new, now = Watermarks.of_text(self._heaps, settings), self._marks
        high = [f"{HIGH_WATERMARK.name}={new.high}"] if new.high != now.high else []
        low = [f"{LOW_WATERMARK.name}={new.low}"] if new.low != now.low else []
        return " ".join([*high, *low])
