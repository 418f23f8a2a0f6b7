"""Peaks and leaks of memory of single tests, by markers: the arrays of NumPy, or an emulated device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forebay._base.byte_sizes import format_bytes, parse_bytes
from forebay.interop.cell_memory import CellMemory
from forebay.runtime.devices.current import opened_for
from forebay.snapshot.report.cell import CellReport

__all__ = ["measured", "peak_lines"]

_SITES, _TESTS = 5, 10
_peaks = pytest.StashKey[dict[str, int]]()


@contextmanager
def measured(item: pytest.Item) -> Iterator[None]:
    """Context manager: fail the test if memory is above the limit of a marker, or remains.

    Parameters
    ----------
    item : pytest.Item
        The test.
    """
    __tracebackhide__ = True
    limits = [_arguments(each, "limit") for each in item.iter_markers("forebay_peak")]
    leaks = [_arguments(each) for each in item.iter_markers("forebay_leaks")]
    devices = {each["device"] for each in (*limits, *leaks)} or {"cpu"}
    cells = {name: CellMemory(opened_for(name)) for name in sorted(devices)}
    with _all(list(cells.values())):
        yield
        gc.collect()
    reports = {name: cell.report(_SITES, lambda _: None) for name, cell in cells.items()}
    if (of_arrays := reports.get("cpu")) is not None:
        item.config.stash.setdefault(_peaks, {})[item.nodeid] = of_arrays.measured.peak_above
    problems: list[str] = []
    for each in limits:
        problems += _above(each["device"], reports[each["device"]], _nbytes(each["limit"]))
    for each in leaks:
        problems += _remaining(each["device"], reports[each["device"]])
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def peak_lines(config: pytest.Config) -> list[str]:
    """Return the tests with the largest peaks, one line each.

    Parameters
    ----------
    config : pytest.Config
        The configuration of pytest.
    """
    found = sorted(config.stash.get(_peaks, {}).items(), key=lambda each: -each[1])
    return [f"{format_bytes(nbytes):>12} {name}" for name, nbytes in found[:_TESTS]]


@contextmanager
def _all(cells: list[CellMemory]) -> Iterator[None]:
    """Measure several devices at once."""
    if not cells:
        yield
        return
    with cells[0].measuring(), _all(cells[1:]):
        yield


def _arguments(marker: pytest.Mark, *names: str) -> dict[str, Any]:
    """Return the arguments of a marker by name."""
    found: dict[str, Any] = {**dict(zip((*names, "device"), marker.args, strict=False)), **marker.kwargs}
    found.setdefault("device", "cpu")
    if {*found} != {*names, "device"} or len(marker.args) > len(names) + 1:
        signature = ", ".join([*names, "device='cpu'"])
        raise pytest.UsageError(f"the marker {marker.name} takes ({signature}), not {marker.args} and {marker.kwargs}")
    return found


def _nbytes(limit: Any) -> int:
    if isinstance(limit, str):
        try:
            return parse_bytes(limit)
        except ValueError as error:
            raise pytest.UsageError(f"forebay_peak: {error}") from None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise pytest.UsageError(f"forebay_peak: the limit is bytes or a text such as '64MiB', not {limit!r}")
    return limit


def _above(device: str, report: CellReport | None, limit: int) -> list[str]:
    if report is None:
        return [f"{device}: the peak is not known, as the device was closed during the test"]
    peak = report.measured.peak_above
    if peak <= limit:
        return []
    more = f"{device}: the peak is {format_bytes(peak)}, {format_bytes(peak - limit)} more than {format_bytes(limit)}"
    return [more, *_lines(report.uses)]


def _remaining(device: str, report: CellReport | None) -> list[str]:
    if report is None:
        return [f"{device}: what remains is not known, as the device was closed during the test"]
    if not report.remained_count:
        return []
    blocks = "1 allocation" if report.remained_count == 1 else f"{report.remained_count:,} allocations"
    return [f"{device}: {format_bytes(report.remained)} in {blocks} of the test remain", *_lines(report.remaining_uses)]


def _lines(uses: list[Any]) -> list[str]:
    return [f"  {format_bytes(use.live_bytes)} {use.label}" for use in uses[:_SITES]]
