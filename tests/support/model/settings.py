"""Allocator settings of the model. The parser accepts well-formed text only and does not validate."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from support.model.pool import MIB

__all__ = ["UNLIMITED", "Settings", "format_size"]


UNLIMITED = (1 << 64) - 1


@dataclass
class Settings:
    """Allocator settings; sizes in bytes."""

    max_split_size: int = UNLIMITED
    garbage_collection_threshold: float = 0.0
    divisions: tuple[int, ...] = (0,) * 16  # of sizes from 1 MiB (and below), 2 MiB, …, 32 GiB (and above)
    max_non_split_rounding: int = 20 * MIB
    large_segment_size: int = 20 * MIB
    expandable_segments: bool = False
    reserve: str = ""  # "0.5" of the device's memory, or "40G"
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False

    def read(self, text: str) -> None:
        """Apply a settings text. Four keys are reset by each text; the others keep their values."""
        pairs = dict(re.findall(r"(\w+):(\[[^]]*\]|[^,]*)", re.sub(r"\s", "", text)))
        for field in fields(self)[:3]:
            setattr(self, field.name, field.default)
        if "large_segment_size_mb" in pairs:
            self.large_segment_size = int(pairs["large_segment_size_mb"]) * MIB
        self.max_non_split_rounding = self.large_segment_size
        for key, value in pairs.items():
            match key:
                case "max_split_size_mb" | "max_non_split_rounding_mb":
                    setattr(self, key.removesuffix("_mb"), int(value) * MIB)
                case "garbage_collection_threshold" | "per_process_memory_fraction":
                    setattr(self, key, float(value))
                case "expandable_segments" | "throw_on_cudamalloc_oom":
                    setattr(self, key, value == "True")
                case "expandable_segments_reserve":
                    self.reserve = value
                case "roundup_power2_divisions":
                    self.divisions = _divisions(value)

    def rounded(self, nbytes: int) -> int:
        """Return the block size of a request."""
        parts = self.divisions[min(max(nbytes.bit_length() - 1 - 20, 0), 15)]
        if parts > 1 and nbytes > 512 * parts:
            step = (1 << nbytes.bit_length() - 1) // parts
            return nbytes if nbytes.bit_count() == 1 else -(-nbytes // step) * step
        return max(-(-nbytes // 512) * 512, 512)

    def segment_size(self, size: int) -> int:
        """Return the segment size to reserve for a block size."""
        if size <= MIB:
            return 2 * MIB
        if size < 10 * MIB:
            return self.large_segment_size
        return -(-size // (2 * MIB)) * 2 * MIB

    def reserved(self, total: int) -> int:
        """Return the address space of an expandable segment, before rounding up to whole pages."""
        whole = total + total // 8
        if not self.reserve:
            return whole
        number = float(self.reserve.rstrip("G"))
        return min(int(number * (1 << 30 if self.reserve.endswith("G") else total)), whole)


def _divisions(value: str) -> tuple[int, ...]:
    """Parse divisions. The first entry of a list also applies to smaller sizes, `>` to sizes above the last entry."""
    if not value.startswith("["):
        return (int(value),) * 16
    slots = [0] * 16
    last = -1
    for entry in value.strip("[]").split(","):
        size, number = entry.split(":")
        first = last + 1 if size == ">" else int(size).bit_length() - 1
        after = 16 if size == ">" else first + 1
        slots[0 if last < 0 else first : after] = [int(number)] * (after - (0 if last < 0 else first))
        last = after - 1
    return tuple(slots)


def format_size(nbytes: int) -> str:
    """Format a size as PyTorch's errors do: a size exactly at a unit boundary keeps the smaller unit."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    for power, unit in (10, "KiB"), (20, "MiB"):
        if nbytes <= 1024 << power:
            return f"{nbytes / (1 << power):.2f} {unit}"
    return f"{nbytes / (1 << 30):.2f} GiB"
