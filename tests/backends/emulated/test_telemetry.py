"""What the sensors of an emulated device say, of ports whose readings the test makes up."""

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
    """At work for so much of each slot, and holding so many bytes of 100."""

    def __init__(self, *shares: float, held: int = 0) -> None:
        self.shares = shares
        self.held = held

    def queues(self):
        return [SimpleNamespace(busy=lambda share=share: [round(share * SLOT)] * 20) for share in self.shares]

    def memory_info(self):
        return 100 - self.held, 100


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


def test_a_device_that_nobody_opened_is_idle(sensors):
    idle = H200["idle_power"], H200["idle_temperature"], H200["idle_clock"]
    assert readings(sensors) == ((0, 0), *idle)
    assert (sensors.memory(), sensors.processes()) == ((0, 100), {})


def test_one_that_was_at_work_for_the_whole_second_is_at_its_busiest(sensors):
    port = Port(1.0)
    sensors.watch(port)
    assert readings(sensors) == ((100, 100), H200["max_power"], H200["busy_temperature"], H200["max_clock"])


def test_between_them_the_readings_go_with_the_share(sensors):
    port = Port(0.25)
    sensors.watch(port)
    assert sensors.busy() == (25, 25)
    assert sensors.power() == H200["idle_power"] + (H200["max_power"] - H200["idle_power"]) // 4


def test_queues_count_together_and_never_for_more_than_the_time_there_was(sensors):
    first, second = Port(0.2, 0.3), Port(0.1)
    sensors.watch(first)
    sensors.watch(second)
    assert sensors.busy() == (60, 60)
    first.shares = (0.9, 0.9)
    assert sensors.busy() == (100, 100)


@pytest.mark.parametrize(
    ("queues", "share"),
    [([], 0.0), ([[]], 0.0), ([[0, 0]], 0.0), ([[SLOT, 0], []], 0.5), ([[SLOT, 0], [0, SLOT]], 1.0)],
    ids=["none", "another process's", "idle", "one of them another process's", "in turn"],
)
def test_the_share(queues, share):
    assert busy_share(queues) == share


def test_memory_is_what_the_open_ports_hold(sensors):
    ports = Port(held=20), Port(held=5)
    for port in ports:
        sensors.watch(port)
    assert sensors.memory() == (25, 100)
    assert sensors.processes() == {os.getpid(): 25}


def test_a_port_that_went_is_no_more_counted(sensors):
    sensors.watch(Port(1.0, held=20))
    assert (sensors.memory(), sensors.busy(), sensors.processes()) == ((0, 100), (0, 0), {})


@pytest.mark.parametrize("error", [forebay.WrongState, forebay.Forked])
def test_a_port_that_is_closed_or_another_process_s_holds_nothing(sensors, error, monkeypatch):
    port = Port(held=20)
    monkeypatch.setattr(port, "memory_info", lambda: (_ for _ in ()).throw(error("gone")))
    sensors.watch(port)
    assert (sensors.memory(), sensors.processes()) == ((0, 100), {})


class TestOfTheMachine:
    def test_the_hottest_part_and_the_clock(self, sensors, psutil):
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
    def test_where_there_are_none_the_model_answers(self, sensors, psutil, found):
        vars(psutil).update(found)
        assert (sensors.temperature(), sensors.clock()) == (H200["idle_temperature"], H200["idle_clock"])


def test_a_profile_without_sensors_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    sensors = EmulatedSensors("mps:0", "a", 100, {})
    for read in (sensors.power, sensors.temperature, sensors.clock):
        with pytest.raises(forebay.Unsupported, match="mps:0 has no such sensor"):
            read()
    assert sensors.busy() == (0, 0)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_device_that_is_not_there_is_refused(index):
    telemetry = EmulatedTelemetry("cuda", ["GPU-a", "GPU-b"], 100, H200)
    assert telemetry.machine_count() == 2
    assert telemetry.sensors(1).uuid() == "GPU-b"
    with pytest.raises(forebay.DeviceError, match=f"there is no device {index}"):
        telemetry.sensors(index)


def test_the_driver_tells_it_of_what_it_opens(clean, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        driver = backends.driver("cuda")
        assert isinstance(driver, Telemetry)
        assert driver.sensors(1).processes() == {}
        tensor = forebay.empty(1000, device="cuda:0")  # the machine's second
        assert driver.sensors(1).memory() == (2 << 20, 64 << 20)
        assert driver.sensors(0).memory() == (0, 64 << 20)
        del tensor
    assert driver.sensors(1).memory() == (0, 64 << 20)


def test_a_real_queue_that_works_is_seen(clean):
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
