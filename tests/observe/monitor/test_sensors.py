"""Sensors that fail leave out their own reading only; GPUs of the machine come from the stand-in libraries."""

from __future__ import annotations

import pytest

from forebay.observe.monitor import sensors
from forebay.observe.monitor.figures import Readings


class Partial:
    def memory(self):
        return 1, 2

    def busy(self):
        raise RuntimeError("no such sensor")

    def temperature(self):
        return 40

    power = clock = busy


def test_failing_sensors_are_none():
    assert sensors.read(Partial()) == Readings(memory_used=1, memory_total=2, temperature=40)


def test_machine_without_a_library_has_no_gpus(monkeypatch):
    def missing():
        raise ModuleNotFoundError("no library")

    monkeypatch.setattr(sensors.nvml, "binding", missing)
    monkeypatch.setattr(sensors.amdsmi, "binding", missing)
    assert sensors.machine_gpus() == []


@pytest.mark.usefixtures("pynvml")
def test_gpus_of_the_sensor_library_are_listed():
    found = sensors.machine_gpus()
    assert [gpu.index for gpu in found] == list(range(len(found)))
    assert found
    assert found[0].uuid
    assert found[0].readings.memory_total
