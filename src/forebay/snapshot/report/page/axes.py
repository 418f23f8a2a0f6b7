"""Round axis ticks and labels for bytes and times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile

from forebay._base.byte_sizes import format_bytes

__all__ = ["Tick", "byte_ticks", "short_bytes", "time_ticks"]

Tick = tuple[float, str]  # value, label

_SECOND = 10**9
_UNITS = (
    ("d", 86400 * _SECOND),
    ("h", 3600 * _SECOND),
    ("min", 60 * _SECOND),
    ("s", _SECOND),
    ("ms", 10**6),
    ("µs", 1000),
)
_CLOCK = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 4 * 3600, 12 * 3600]  # round values in seconds


def short_bytes(n: int) -> str:
    """Format bytes without trailing zeros: `2 GiB`, `1.5 GiB`."""
    number, unit = format_bytes(n).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def byte_ticks(top: int) -> list[Tick]:
    """Return ticks with a power of two as step."""
    step = 1
    while top / step > 6:
        step *= 2
    return [(value, short_bytes(value)) for value in range(0, top + 1, step)]


def time_ticks(span_ns: int) -> list[Tick]:
    """Return ticks with a decimal step below 30 s and a clock step above; all labels have the same unit."""
    fine = takewhile(lambda step: step < 30 * _SECOND, _decimal())
    days = (step * 86400 * _SECOND for step in _decimal())
    step = next(step for step in chain(fine, (s * _SECOND for s in _CLOCK), days) if span_ns / step <= 8)
    # A unit is suitable if labels stay short: half minutes, tenths of a second.
    fits = (unit for unit in _UNITS if unit[1] <= span_ns / 2 and unit[1] <= step * (2 if unit[1] > _SECOND else 10))
    unit, size = next(fits, ("ns", 1))
    return [(value, f"{value / size:g} {unit}") for value in range(0, span_ns + 1, step)]


def _decimal() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
