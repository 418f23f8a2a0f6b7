"""How much memory a device of heaps may take: its two watermarks."""

from __future__ import annotations

from forebay.errors import ForebayError

__all__ = ["HIGH", "high_limit", "low_limit", "low_ratio", "size_in_words"]

HIGH = 1.7  # unless the environment or the program says otherwise
_HIGHEST = 2.0


def low_ratio(unified: bool) -> float:
    """What it is unless somebody says otherwise: a memory shared with the host may be filled beyond what is advised."""
    return 1.4 if unified else 1.0


def high_limit(ratio: float, recommended: int) -> int | None:
    """Bytes that the driver may have handed out at most; None: as many as there are."""
    if not 0.0 <= ratio <= _HIGHEST:
        raise ForebayError(f"invalid high watermark ratio {ratio:g}")
    return int(ratio * recommended) if ratio else None


def low_limit(ratio: float, high: float, recommended: int) -> int | None:
    """Bytes from which on there is pressure; None: there never is."""
    if not 0.0 <= ratio <= (high or _HIGHEST):
        raise ForebayError(f"invalid low watermark ratio {ratio:g}")
    return int(ratio * recommended) if ratio else None


def size_in_words(nbytes: int) -> str:
    """As errors of this kind write it: a size exactly at a border keeps the smaller unit."""
    for power, unit in (10, ""), (20, "KB"), (30, "MB"):
        if nbytes <= 1 << power:
            return f"{nbytes / (1 << power - 10):.2f} {unit}" if unit else f"{nbytes} bytes"
    return f"{nbytes / (1 << 30):.2f} GB"
