"""Sensors of emulated devices, with simulated ports."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest

import forebay
from forebay import backends, profiles
from forebay.backends.emulated.telemetry import EmulatedSensors, EmulatedTelemetry, busy_share
from forebay.spi import Telemetry

SLOT = 50_000_000
H200 = profiles.load("h200").sensors


class Port:
    """A port with the utilization of each queue, and reserved bytes of 100."""

    def __init__(self, *shares: float, reserved: int = 0) -> None:
        self.shares = shares
        self.reserved = reserved

    def queues(self):
        return [SimpleNamespace(busy=lambda share=share: [round(share * SLOT)] * 20) for share in self.shares]

    def memory_info(self):
        return 100 - self.reserved, 100


@pytest.fixture
def sensors(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    return EmulatedSensors("cuda:0", "GPU-a", 100, H200)


@pytest.fixture
def psutil(monkeypatch):
    stand_in = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "psutil", stand_in)
    return stand_in


def readings(sensors):
    return sensors.busy(), sensors.power(), sensors.temperature(), sensors.clock()


def test_unopened_device_is_idle(sensors):
    idle = H200["idle_power"], H200["idle_temperature"], H200["idle_clock"]
    assert readings(sensors) == ((0, 0), *idle)
    assert (sensors.memory(), sensors.processes()) == ((0, 100), {})


def test_fully_utilized_device_has_busy_readings(sensors):
    port = Port(1.0)
    sensors.add_port(port)
    assert readings(sensors) == ((100, 100), H200["max_power"], H200["busy_temperature"], H200["max_clock"])


def test_readings_are_proportional_to_utilization(sensors):
    port = Port(0.25)
    sensors.add_port(port)
    assert sensors.busy() == (25, 25)
    assert sensors.power() == H200["idle_power"] + (H200["max_power"] - H200["idle_power"]) // 4


def test_utilization_of_queues_adds_up_to_at_most_100_percent(sensors):
    first, second = Port(0.2, 0.3), Port(0.1)
    sensors.add_port(first)
    sensors.add_port(second)
    assert sensors.busy() == (60, 60)
    first.shares = (0.9, 0.9)
    assert sensors.busy() == (100, 100)


@pytest.mark.parametrize(
    ("queues", "share"),
    [([], 0.0), ([[]], 0.0), ([[0, 0]], 0.0), ([[SLOT, 0], []], 0.5), ([[SLOT, 0], [0, SLOT]], 1.0)],
    ids=["none", "another process's", "idle", "one of them another process's", "in turn"],
)
def test_busy_share(queues, share):
    assert busy_share(queues) == share


def test_memory_is_reserved_bytes_of_open_ports(sensors):
    ports = Port(reserved=20), Port(reserved=5)
    for port in ports:
        sensors.add_port(port)
    assert sensors.memory() == (25, 100)
    assert sensors.processes() == {os.getpid(): 25}


def test_deleted_port_is_not_counted(sensors):
    sensors.add_port(Port(1.0, reserved=20))
    assert (sensors.memory(), sensors.busy(), sensors.processes()) == ((0, 100), (0, 0), {})


@pytest.mark.parametrize("error", [forebay.WrongState, forebay.Forked])
def test_unusable_port_is_not_counted(sensors, error, monkeypatch):
    port = Port(reserved=20)
    monkeypatch.setattr(port, "memory_info", lambda: (_ for _ in ()).throw(error("closed")))
    sensors.add_port(port)
    assert (sensors.memory(), sensors.processes()) == ((0, 100), {})


class TestMachineSensors:
    def test_highest_temperature_and_clock_are_reported(self, sensors, psutil):
        part = SimpleNamespace
        cpu, disk = [part(current=41.0), part(current=63.6)], [part(current=30)]
        psutil.sensors_temperatures = lambda: {"cpu": cpu, "disk": disk}
        psutil.cpu_freq = lambda: part(current=2599.7)
        assert (sensors.temperature(), sensors.clock()) == (64, 2600)

    @pytest.mark.parametrize(
        "found",
        [{}, {"sensors_temperatures": dict, "cpu_freq": lambda: None}, {"sensors_temperatures": lambda: {"cpu": []}}],
        ids=["no such functions", "no sensors", "no parts"],
    )
    def test_model_is_used_without_machine_sensors(self, sensors, psutil, found):
        vars(psutil).update(found)
        assert (sensors.temperature(), sensors.clock()) == (H200["idle_temperature"], H200["idle_clock"])


def test_profile_without_sensors_raises_unsupported(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    sensors = EmulatedSensors("mps:0", "a", 100, {})
    for read in (sensors.power, sensors.temperature, sensors.clock):
        with pytest.raises(forebay.Unsupported, match="mps:0 has no such sensor"):
            read()
    assert sensors.busy() == (0, 0)


@pytest.mark.parametrize("index", [-1, 2])
def test_sensors_rejects_invalid_index(index):
    telemetry = EmulatedTelemetry("cuda", ["GPU-a", "GPU-b"], 100, H200)
    assert telemetry.machine_count() == 2
    assert telemetry.sensors(1).uuid() == "GPU-b"
    with pytest.raises(forebay.DeviceError, match=f"there is no device {index}"):
        telemetry.sensors(index)


def test_driver_reports_opened_ports_to_sensors(clean, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        driver = backends.driver("cuda")
        assert isinstance(driver, Telemetry)
        assert driver.sensors(1).processes() == {}
        tensor = forebay.empty(1000, device="cuda:0")  # device 1 of the machine
        assert driver.sensors(1).memory() == (2 << 20, 64 << 20)
        assert driver.sensors(0).memory() == (0, 64 << 20)
        del tensor
    assert driver.sensors(1).memory() == (0, 64 << 20)


def test_running_queue_is_busy(clean):
    with forebay.emulate("cuda"):
        driver = backends.driver("cuda")
        port = driver.open(0)
        queue, gate = port.queue(), threading.Event()
        queue.call(lambda: gate.wait(60))
        deadline = threading.Timer(30, gate.set)
        deadline.start()
        try:
            while driver.sensors(0).busy()[0] < 10 and not gate.is_set():
                pass
            assert not gate.is_set()
        finally:
            deadline.cancel()
            gate.set()
            port.close()
