"""Metrics under DCGM's names: those of the machine's GPUs that mean the same."""

from __future__ import annotations

import pytest

from forebay.observe.monitor.dcgm import DcgmCollector
from forebay.observe.monitor.figures import Readings
from forebay.observe.monitor.sensors import MachineGpu

prometheus_client = pytest.importorskip("prometheus_client", reason="the extra exporter is not installed")


def text_of(*gpus: MachineGpu) -> str:
    registry = prometheus_client.CollectorRegistry()
    registry.register(DcgmCollector(lambda: gpus))
    return prometheus_client.generate_latest(registry).decode()


def test_values_have_the_units_and_labels_of_dcgm():
    readings = Readings(memory_used=1, memory_total=80 << 30, busy=0.5, temperature=30, power=100_500, clock=1500)
    lines = [line for line in text_of(MachineGpu(1, "GPU-1", readings, {})).splitlines() if line[0] != "#"]
    labels = '{UUID="GPU-1",device="nvidia1",gpu="1"}'
    assert sorted(line.replace('{gpu="1",UUID="GPU-1",device="nvidia1"}', labels) for line in lines) == [
        f"DCGM_FI_DEV_FB_TOTAL{labels} 81920.0",
        f"DCGM_FI_DEV_GPU_TEMP{labels} 30.0",
        f"DCGM_FI_DEV_GPU_UTIL{labels} 50.0",
        f"DCGM_FI_DEV_POWER_USAGE{labels} 100.5",
        f"DCGM_FI_DEV_SM_CLOCK{labels} 1500.0",
    ]


def test_sensors_that_are_missing_have_no_metric():
    assert text_of(MachineGpu(0, "GPU-0", Readings(), {})) == ""
    assert text_of() == ""


def test_gpus_of_others_are_not_dcgms():
    assert text_of(MachineGpu(0, "0xff-7551", Readings(temperature=30), {})) == ""
