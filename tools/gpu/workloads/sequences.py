"""The compact form of a sequence of sizes: what repeats is written once.

An item is a size, or [times, size, size, ...]: these sizes so many times, one after the other. A step that allocates
the same as an earlier one refers to it. This module is the only one that knows the form. It needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["decoded", "encoded"]

_LONGEST = 256  # sizes in a repeated group: the parameters of a small model, through which an optimizer goes
_LEAST_SAVED = 2  # sizes that a group must save
_MOST_DECODED = 20_000_000  # sizes; a file that means more is hostile


def encoded(sizes: Sequence[int]) -> list[int | list[int]]:
    """Return the compact form of a sequence."""
    items: list[int | list[int]] = []
    at = 0
    while at < len(sizes):
        period, times = _best_group(sizes, at)
        if times > 1:
            items.append([times, *sizes[at : at + period]])
            at += period * times
        else:
            items.append(sizes[at])
            at += 1
    return items


def _best_group(sizes: Sequence[int], at: int) -> tuple[int, int]:
    """Return the length of the group at a position that saves most, and how often it is repeated."""
    best, most = (1, 1), _LEAST_SAVED - 1
    for period in range(1, min(_LONGEST, (len(sizes) - at) // 2) + 1):
        if sizes[at + period] != sizes[at]:
            continue
        end = at + period
        while end < len(sizes) and sizes[end] == sizes[end - period]:
            end += 1
        times = (end - at) // period
        if period * (times - 1) > most:
            best, most = (period, times), period * (times - 1)
    return best


def decoded(items: Iterable[Any]) -> list[int]:
    """Return the sequence of a compact form. Raises ValueError if it is none."""
    sizes: list[int] = []
    for item in items:
        times, group = (item[0], item[1:]) if isinstance(item, list) and len(item) > 1 else (1, [item])
        if not all(type(each) is int and each >= 0 for each in (times, *group)):
            raise ValueError(f"{str(item)[:80]} is neither a size nor [times, size, ...]")
        if len(sizes) + times * len(group) > _MOST_DECODED:
            raise ValueError(f"the sequence has more than {_MOST_DECODED:,} sizes")
        sizes += group * times
    return sizes
