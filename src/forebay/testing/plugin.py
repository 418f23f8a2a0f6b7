"""Pytest fixtures: `emulated_cuda` stands in for a GPU; `port` opens every device there is, and a fake one.

`pytest_plugins = ["forebay.testing.plugin"]` in the topmost conftest.py, or `-p forebay.testing.plugin`, brings them,
and the options `--forebay-leaks` and `--forebay-guard`.

A test file that says `from forebay.testing.conformance import *` and `pytest_plugins = ["forebay.testing.plugin"]`
runs the whole suite; `pytest -k acme:` runs it for one kind. A backend that has no device here is skipped, and the skip
tells why. Where no device of kind cuda, mps or mtia is, emulated ones stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

import forebay
from forebay.backends import EMULATED, drivers, emulator, registered
from forebay.device_spec import Device
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import opened_indices
from forebay.runtime.lifecycle.emulation import forget_kind
from forebay.spi import Driver, Port
from forebay.testing.emulated import EmulatedDevices, emulated_cuda, pytest_addoption, pytest_runtest_makereport
from forebay.testing.fake import FakeDriver

__all__ = [
    "EmulatedDevices",
    "FoundDevice",
    "device",
    "driver",
    "emulated_cuda",
    "port",
    "pytest_addoption",
    "pytest_generate_tests",
    "pytest_runtest_makereport",
]


@dataclass(frozen=True)
class FoundDevice:
    """A device that a test is run for."""

    driver: Callable[[], Driver]
    index: int


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Not `port` itself: a project may have a fixture of that name.
    if "forebay_device" in metafunc.fixturenames:
        metafunc.parametrize("forebay_device", list(_found()))


@pytest.fixture
def driver(forebay_device: FoundDevice) -> Driver:
    """The driver of `port`."""
    return forebay_device.driver()


@pytest.fixture
def port(driver: Driver, forebay_device: FoundDevice) -> Iterator[Port]:
    """A device, opened for this test and closed after it; the test runs once for every device there is."""
    opened = driver.open(forebay_device.index)
    yield opened
    opened.close()


@pytest.fixture
def device(forebay_device: FoundDevice) -> Iterator[Device]:
    """The same as a program sees it, in the runtime: the current device of this thread, during the test.

    Afterwards nothing of its kind is in use, unless something was before.
    """
    driver = forebay_device.driver()
    in_use = opened_indices(driver.kind)
    here = current.here()
    before = here.state()
    with registered(driver):
        try:
            found = Device(driver.kind, forebay_device.index)
            forebay.set_device(found)
            state = forebay.random.get_rng_state(found)
            yield found
            forebay.random.set_rng_state(state, found)
        finally:
            here.device, here.indices, here.streams = before
            here.chosen = here.device is not None
            here.forget()
            if not in_use:
                forget_kind(driver.kind)


def _found() -> Iterator[object]:
    for kind in drivers():
        source = partial(drivers().__getitem__, kind)
        driver = source()
        for index in range(driver.count()):
            yield pytest.param(FoundDevice(source, index), id=f"{kind}:{index}")
        if not driver.count():
            yield pytest.param(FoundDevice(source, 0), id=f"{kind}:none", marks=pytest.mark.skip(driver.why_not()))
    for name, stand_in in _stand_ins().items():
        yield pytest.param(FoundDevice(stand_in, 0), id=name)


def _stand_ins() -> dict[str, Callable[[], Driver]]:
    """Each has two devices, so that the one that is tested has a neighbour.

    No name has a kind before a colon: `-k mtia:` is a vendor's own device, and must not pass where that is not there.
    """
    found: dict[str, Callable[[], Driver]] = {"fake:0": partial(FakeDriver, 2)}
    for kind in EMULATED:
        if not forebay.device_count(kind):
            found[f"emulated-{kind}-0"] = partial(emulator, kind, 2, memory=1 << 30)
    if not forebay.device_count("cuda"):
        found["guarded-cuda-0"] = partial(emulator, "cuda", 2, memory=1 << 30, guard=True)
    return found
