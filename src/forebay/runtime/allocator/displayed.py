"""Statistics and summaries as notebooks display them. Everywhere else they are the dict and the str that they contain.

Copies and pickles are plain: a file of statistics can be read without forebay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from forebay._base.byte_sizes import format_bytes

__all__ = ["OrderedStatistics", "Statistics", "SummaryText"]

_FIELDS = ("current", "peak", "allocated", "freed", "min", "max", "count", "total")


class Statistics(dict[str, int]):
    """A dict of flat statistics."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _repr_html_(self) -> str:
        return _html(self)


class OrderedStatistics(OrderedDict[str, int]):
    """An OrderedDict of flat statistics, as PyTorch's modules return."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (list(self.items()),)

    def _repr_html_(self) -> str:
        return _html(self)


OrderedStatistics.__name__ = "OrderedDict"  # printed as such


class SummaryText(str):
    """A table of statistics as text."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def _repr_html_(self) -> str:
        from forebay._base.html_repr import preformatted

        return preformatted(self)


def _html(numbers: Mapping[str, int]) -> str:
    """Return one row for each metric with the fields as columns, and the remaining counters. Zeros are left out."""
    from forebay._base.html_repr import box, facts, note, table

    metrics: dict[str, dict[str, int]] = {}
    counters: list[tuple[str, str]] = []
    for key, value in numbers.items():
        metric, _, field = str(key).rpartition(".")
        if metric and field in _FIELDS:
            metrics.setdefault(metric, {})[field] = value
        elif value:
            counters.append((str(key), f"{value:,}" if isinstance(value, int) else str(value)))
    columns = [field for field in _FIELDS if any(field in each for each in metrics.values())]
    shown = {metric: each for metric, each in metrics.items() if any(each.values())}
    rows = [
        [metric, *(_number(metric, each[field]) if field in each else "" for field in columns)]
        for metric, each in shown.items()
    ]
    hidden = len(metrics) - len(shown)
    zeros = [note(f"{hidden:,} metrics are zero.")] if hidden else []
    title = "Memory statistics" if numbers else "Memory statistics: none, as the device is not in use"
    return box(title, table(["", *columns], rows), facts(counters), *zeros)


def _number(metric: str, value: object) -> str:
    if not isinstance(value, int):  # added by the program
        return str(value)
    return format_bytes(value) if "bytes" in metric else f"{value:,}"
