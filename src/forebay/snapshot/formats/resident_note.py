"""The note of `forebay run` about the growth of resident memory: how much of it has a site, and what the rest is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay._base.byte_sizes import LIMIT, format_bytes
from forebay._base.untrusted import shortened

__all__ = ["RESIDENT", "Part", "ResidentGrowth", "resident_growth_of"]

RESIDENT = "resident_growth"
_LEAST = 1 << 16  # bytes of a part that is named
_MOST_PARTS, _MAX_NAME = 20, 80


@dataclass(frozen=True, slots=True)
class Part:
    """Memory of one kind, beyond what the process had when the program began."""

    name: str  #: such as "Python objects"
    peak: int | None  #: its own peak in bytes; None if it is not known
    now: int | None  #: bytes at the end; None if they are not known
    has_site: bool = False  #: the report names the lines that allocated it
    freed: bool = False  #: it is free, so that it may have belonged to another part at the peak


@dataclass(frozen=True, slots=True)
class ResidentGrowth:
    """Growth of resident memory since the program began. Sizes are in bytes."""

    start: int  #: resident memory when the program began
    peak: int  #: its maximum
    now: int  #: at the end
    with_site: int  #: maximum of the memory with a site at one moment, touched or not
    parts: tuple[Part, ...]  #: what it consists of; parts may overlap in time

    @property
    def grown(self) -> int:
        """The growth to the maximum."""
        return max(self.peak - self.start, 0)

    @property
    def share(self) -> float:
        """The share of the growth that has a site, from 0 to 1."""
        return min(self.with_site / self.grown, 1.0) if self.grown else 1.0

    def sentence(self) -> str:
        """Return the share of the growth that has a site, as a sentence."""
        if not self.grown:
            return f"Resident memory did not grow: it is {format_bytes(self.now)}."
        grew = f"Resident memory grew by {format_bytes(self.grown)} to {format_bytes(self.peak)}"
        if not self.with_site:
            return f"{grew}; none of it has a site."
        if self.with_site > self.grown:
            return f"{grew}; arrays with a site had up to {format_bytes(self.with_site)}, not all of it touched."
        return f"{grew}; {format_bytes(self.with_site)} ({self.share:.1%}) of it are arrays with a site."

    def rest(self) -> str:
        """Return what the memory without a site is, as a sentence; "" if there is next to none."""
        unnamed = self.grown - self.with_site
        if unnamed < max(self.grown // 100, 1 << 20):
            return ""
        found = [(part.peak if part.now is None else max(part.now, part.peak or 0), part) for part in self.parts]
        named = [(part.freed, -(size or 0), part.name) for size, part in found if not part.has_site]
        words, rest = [], unnamed
        for _, negative, name in sorted(named):
            size = min(-negative, rest)  # parts need not be largest at the same moment
            rest -= size
            if size >= _LEAST:
                words.append(f"{name} {format_bytes(size)}")
        if rest >= max(unnamed // 20, 1 << 20):
            words.append(f"unknown {format_bytes(rest)}")
        return f"Without a site: {', '.join(words) or f'unknown {format_bytes(unnamed)}'}."

    def as_json(self) -> dict[str, Any]:
        """Return the values for a summary in JSON."""
        parts = [
            {
                "name": each.name,
                "peak_bytes": each.peak,
                "now_bytes": each.now,
                "has_site": each.has_site,
                "free": each.freed,
            }
            for each in self.parts
        ]
        return {
            "start_bytes": self.start,
            "peak_bytes": self.peak,
            "now_bytes": self.now,
            "with_site_bytes": self.with_site,
            "share_with_site": round(self.share, 4),
            "parts": parts,
        }


def resident_growth_of(notes: Mapping[str, Any]) -> ResidentGrowth | None:
    """Return the growth of resident memory that the notes contain; None if they contain none."""
    noted = notes.get(RESIDENT)
    if not isinstance(noted, Mapping):
        return None
    sizes = [noted.get(f"{name}_bytes") for name in ("start", "peak", "now", "with_site")]
    start, peak, now, with_site = (int(size) if size is not None and _is_size(size) else -1 for size in sizes)
    listed = noted.get("parts")
    if min(start, peak, now, with_site) < 0 or not isinstance(listed, list | tuple):
        return None
    parts = []
    for each in listed[:_MOST_PARTS]:
        if isinstance(each, Mapping) and isinstance(each.get("name"), str):
            own = [each.get(name) if _is_size(each.get(name)) else None for name in ("peak_bytes", "now_bytes")]
            parts.append(
                Part(
                    shortened(each["name"], _MAX_NAME),
                    own[0],
                    own[1],
                    each.get("has_site") is True,
                    each.get("free") is True,
                )
            )
    return ResidentGrowth(start, peak, now, with_site, tuple(parts))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < LIMIT
