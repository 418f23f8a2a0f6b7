"""The two memory watermarks of a device with heaps."""

from __future__ import annotations

from forebay.errors import ForebayError

__all__ = ["HIGH", "format_size", "high_limit", "low_limit", "low_ratio"]

HIGH = 1.7  # the default high watermark ratio
_HIGHEST = 2.0


def low_ratio(unified: bool) -> float:
    """Return the default low watermark ratio: unified memory may be filled beyond the recommended size."""
    return 1.4 if unified else 1.0


def high_limit(ratio: float, recommended: int) -> int | None:
    """Return the limit of allocated bytes; None: unlimited."""
    if not 0.0 <= ratio <= _HIGHEST:
        raise ForebayError(f"invalid high watermark ratio {ratio:g}")
    return int(ratio * recommended) if ratio else None


def low_limit(ratio: float, high: float, recommended: int) -> int | None:
    """Return the allocated bytes from which on there is memory pressure; None: never."""
    if not 0.0 <= ratio <= (high or _HIGHEST):
        raise ForebayError(f"invalid low watermark ratio {ratio:g}")
    return int(ratio * recommended) if ratio else None


def format_size(nbytes: int) -> str:
    """Format a size as Metal's errors do: a size exactly at a unit boundary keeps the smaller unit."""
    for power, unit in (10, ""), (20, "KB"), (30, "MB"):
        if nbytes <= 1 << power:
            return f"{nbytes / (1 << power - 10):.2f} {unit}" if unit else f"{nbytes} bytes"
    return f"{nbytes / (1 << 30):.2f} GB"
