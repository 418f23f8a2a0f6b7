"""Sensors of the Metal backend: what macOS publishes, and an error with the thermal state for the rest."""

from __future__ import annotations

import os

import pytest

import forebay
from forebay.backends.metal.driver import MetalDriver
from forebay.spi import Telemetry
from forebay.testing.conformance.helpers import drain


def test_readings_are_those_of_the_process(port, mac):
    driver = MetalDriver()
    assert isinstance(driver, Telemetry)
    opened = driver.open(0)
    sensors = driver.sensors(0)
    assert driver.machine_count() == 1
    assert sensors.uuid().startswith("GPU-")
    assert sensors.busy() == (0, 0)
    queue, address = opened.queue(), opened.reserve(8 << 20)
    used, total = sensors.memory()
    assert 8 << 20 <= used < total == mac.machine.gpus[0].working_set
    assert sensors.processes() == {os.getpid(): 8 << 20}
    queue.fill(address, 1, 8 << 20)
    drain(queue)
    percent, again = sensors.busy()
    assert 0 <= percent == again <= 100
    assert opened.busy_times.share() > 0
    opened.close()
    assert sensors.processes() == {}


@pytest.mark.parametrize(("state", "name"), [(0, "nominal"), (1, "fair"), (2, "serious"), (3, "critical"), (9, "")])
def test_thermal_state_is_named_by_missing_sensors(become, state, name):
    become("m1-8gib", thermal_state=state)
    sensors = MetalDriver().sensors(0)
    assert sensors.thermal_state() == name
    for read in (sensors.temperature, sensors.power, sensors.clock):
        with pytest.raises(forebay.Unsupported, match=f"the thermal state is {name}$"):
            read()
