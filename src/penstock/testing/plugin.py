"""Pytest fixtures that open every device this machine has, of every installed backend, and a fake one.

A test file that says `from penstock.testing.conformance import *` and `pytest_plugins = ["penstock.testing.plugin"]`
runs the whole suite; `pytest -k acme:` runs it for one kind. A backend that has no device here is skipped, and the skip
tells why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from penstock.backends import drivers
from penstock.spi import Driver, Port
from penstock.testing.fake import FakeDriver

__all__ = ["FoundDevice", "driver", "port", "pytest_generate_tests"]


@dataclass(frozen=True)
class FoundDevice:
    """A device that a test is run for."""

    driver: Callable[[], Driver]
    index: int


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Not `port` itself: a project may have a fixture of that name.
    if "penstock_device" in metafunc.fixturenames:
        metafunc.parametrize("penstock_device", list(_found()))


@pytest.fixture
def driver(penstock_device: FoundDevice) -> Driver:
    """The driver of `port`."""
    return penstock_device.driver()


@pytest.fixture
def port(driver: Driver, penstock_device: FoundDevice) -> Iterator[Port]:
    """A device, opened for this test and closed after it; the test runs once for every device there is."""
    opened = driver.open(penstock_device.index)
    yield opened
    opened.close()


def _found() -> Iterator[object]:
    sources: dict[str, Callable[[], Driver]] = {kind: _getter(kind) for kind in drivers()}
    for kind, source in {**sources, "fake": FakeDriver}.items():
        driver = source()
        for index in range(driver.count()):
            yield pytest.param(FoundDevice(source, index), id=f"{kind}:{index}")
        if not driver.count():
            yield pytest.param(FoundDevice(source, 0), id=f"{kind}:none", marks=pytest.mark.skip(driver.why_not()))


def _getter(kind: str) -> Callable[[], Driver]:
    return lambda: drivers()[kind]
