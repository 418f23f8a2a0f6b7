"""Pytest plugin for vendors: the fixtures of the conformance suite, and those of `forebay_pytest`.

pytest loads `forebay_pytest`, with the fixtures `emulated_cuda` and `emulated_torch`, the markers and the options, by
itself where forebay is installed. Load this one with `pytest_plugins = ["forebay.testing.plugin"]` in the topmost
conftest.py, or with `-p forebay.testing.plugin`.

A test that uses `port`, `device` or `driver` runs once for each device of each backend, for a fake device, and for an
emulated device of each of the kinds cuda, mps and mtia that has no device. A backend without devices is skipped with
its own reason. `pytest -k acme:` selects the devices of kind acme. See `forebay.testing.conformance` for the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

import forebay
from forebay._base.device_spec import Device, canonical
from forebay.backends import EMULATED, drivers, emulated_driver, override_driver
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import open_device_indices
from forebay.runtime.lifecycle.emulation import reset_kind
from forebay.spi import Driver, Port
from forebay.testing.emulated import EmulatedDevices, emulated_cuda
from forebay.testing.emulated_torch import EmulatedTorch, emulated_torch
from forebay.testing.fake import FakeDriver

__all__ = [
    "EmulatedDevices",
    "EmulatedTorch",
    "FoundDevice",
    "device",
    "driver",
    "emulated_cuda",
    "emulated_torch",
    "port",
    "pytest_generate_tests",
    "pytest_plugins",
]

pytest_plugins: list[str] = ["forebay_pytest"]  # in a source tree that is not installed


@dataclass(frozen=True)
class FoundDevice:
    """A device that the conformance suite runs on."""

    driver: Callable[[], Driver]  #: function that returns the driver
    index: int  #: index of the device among the driver's devices


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test that uses `port`, `device` or `driver` with all devices.

    Parameters
    ----------
    metafunc : pytest.Metafunc
        The test to parametrize.
    """
    # Parametrize `forebay_device`, not `port`: a project may define a fixture of that name.
    if "forebay_device" in metafunc.fixturenames:
        metafunc.parametrize("forebay_device", list(_parameters()))


@pytest.fixture
def driver(forebay_device: FoundDevice) -> Driver:
    """Return the driver of the device under test.

    Parameters
    ----------
    forebay_device : FoundDevice
        The device under test.
    """
    return forebay_device.driver()


@pytest.fixture
def port(driver: Driver, forebay_device: FoundDevice) -> Iterator[Port]:
    """Open the device under test, and close it after the test.

    Parameters
    ----------
    driver : Driver
        The driver of the device.
    forebay_device : FoundDevice
        The device under test.
    """
    opened = driver.open(forebay_device.index)
    yield opened
    opened.close()


@pytest.fixture
def device(forebay_device: FoundDevice) -> Iterator[Device]:
    """Make the device under test the current device of the calling thread during the test.

    Parameters
    ----------
    forebay_device : FoundDevice
        The device under test.

    Yields
    ------
    device
        The device as the runtime names it. Its random state is restored after the test.

    Notes
    -----
    Unless the kind was in use before the test, the runtime closes its devices after the test.
    """
    driver = forebay_device.driver()
    in_use = open_device_indices(driver.kind)
    thread_state = current.thread_state()
    before = thread_state.save()
    with override_driver(driver):
        try:
            found = canonical(Device(driver.kind, forebay_device.index))
            forebay.set_device(found)
            rng_state = forebay.random.get_rng_state(found)
            yield found
            forebay.random.set_rng_state(rng_state, found)
        finally:
            thread_state.device, thread_state.indices, thread_state.streams = before
            thread_state.explicit = thread_state.device is not None
            thread_state.clear_cache()
            if not in_use:
                reset_kind(driver.kind)


def _parameters() -> Iterator[object]:
    for kind in drivers():
        get_driver = partial(drivers().__getitem__, kind)
        driver = get_driver()
        for index in range(driver.count()):
            yield pytest.param(FoundDevice(get_driver, index), id=f"{kind}:{index}")
        if not driver.count():
            yield pytest.param(FoundDevice(get_driver, 0), id=f"{kind}:none", marks=pytest.mark.skip(driver.why_not()))
    for test_id, make_driver in _fake_and_emulated_drivers().items():
        yield pytest.param(FoundDevice(make_driver, 0), id=test_id)


def _fake_and_emulated_drivers() -> dict[str, Callable[[], Driver]]:
    """Return drivers of fake and emulated devices by test id. Each has two devices, as some tests need a second one.

    Ids of emulated devices contain no `kind:`: `-k mtia:` must not select them if the vendor's own device is missing.
    """
    made: dict[str, Callable[[], Driver]] = {"fake:0": partial(FakeDriver, 2)}
    for kind in EMULATED:
        if not forebay.device_count(kind):
            made[f"emulated-{kind}-0"] = partial(emulated_driver, kind, 2, memory=1 << 30)
    if not forebay.device_count("cuda"):
        made["guarded-cuda-0"] = partial(emulated_driver, "cuda", 2, memory=1 << 30, guard=True)
    return made
