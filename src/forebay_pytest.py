"""Pytest plugin of an installed forebay: options and markers that do nothing until a test uses them.

It imports forebay only in a test that uses it, as every run of pytest in the environment loads this module. Switch it
off with `-p no:forebay_pytest`. Its names begin with `forebay`, and those of pytest-memray do not.

The markers `forebay_peak(limit, device="cpu")` and `forebay_leaks(device="cpu")` measure NumPy's arrays on the CPU
device, or an emulated device; see docs/how-to/test-memory.md.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forebay.testing.emulated import EmulatedDevices
    from forebay.testing.emulated_torch import EmulatedTorch

__all__ = ["emulated_cuda", "emulated_torch"]

_MARKERS = (
    "forebay_peak(limit, device='cpu'): fail the test if NumPy's arrays, or an emulated device, take more than this",
    "forebay_leaks(device='cpu'): fail the test if NumPy's arrays, or an emulated device's memory, remain after it",
    "emulated_torch(profile=None, memory=None, reserve=None, count=1, mode='compute', peak=None): the fixture's device",
)
_PEAKS = "--forebay-peaks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--forebay-leaks`, `--forebay-guard` and `--forebay-peaks`."""
    group = parser.getgroup("forebay")
    group.addoption(
        "--forebay-leaks", action="store_true",
        help="fail tests that leave memory of an emulated device allocated, and list the allocating lines",
    )  # fmt: skip
    group.addoption(
        "--forebay-guard", action="store_true",
        help="end the run if the host accesses emulated device memory outside queued work",
    )  # fmt: skip
    group.addoption(_PEAKS, action="store_true", help="list the tests whose NumPy arrays took most memory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the fixtures know of failed tests, which are exempt from the leak check: their tracebacks keep variables."""
    report = yield
    loaded: Any = sys.modules.get("forebay.testing.emulated")
    if report.failed and loaded is not None:
        loaded.note_failure(item)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test that has one of the markers, or every test with `--forebay-peaks`."""
    marked = any(item.get_closest_marker(name) for name in ("forebay_peak", "forebay_leaks"))
    if not marked and not item.config.getoption(_PEAKS, default=False):
        return (yield)
    from forebay.testing.measured_tests import measured

    with measured(item):
        return (yield)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List the tests with the largest peaks, with `--forebay-peaks`."""
    if config.getoption(_PEAKS, default=False):
        from forebay.testing.measured_tests import peak_lines

        terminalreporter.section("peaks of NumPy's arrays (forebay)")
        for line in peak_lines(config):
            terminalreporter.line(line)


@pytest.fixture
def emulated_cuda(request: pytest.FixtureRequest) -> Iterator[EmulatedDevices]:
    """Emulate one H200 as `cuda:0` during the test. Call it to emulate others: `emulated_cuda(count=2)`."""
    from forebay.testing.emulated import cuda_devices

    yield from cuda_devices(request)


@pytest.fixture
def emulated_torch(request: pytest.FixtureRequest) -> Iterator[EmulatedTorch]:
    """Let PyTorch use an emulated GPU during the test, which the marker `emulated_torch` describes."""
    from forebay.testing.emulated_torch import torch_devices

    yield from torch_devices(request)
