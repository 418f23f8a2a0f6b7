"""Metrics for Prometheus: valid names, every figure, hostile labels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from forebay.observe.monitor.figures import ProcessFigures, Readings
from forebay.observe.monitor.metrics import METRICS, samples
from forebay.observe.monitor.prometheus import DeviceCollector
from forebay.observe.monitor.sensors import MachineGpu

from .test_figures import DEVICE, PROCESS

prometheus_client = pytest.importorskip("prometheus_client", reason="the extra exporter is not installed")
FULL = Readings(memory_used=1, memory_total=2, busy=0.5, temperature=30, power=100_500, clock=1500)
GPU = MachineGpu(1, "GPU-1", FULL, {5: None})
ALL = replace(
    PROCESS, devices=(replace(DEVICE, capacity=5, readings=FULL), replace(DEVICE, device="cpu", emulated=False))
)


def text_of(*processes, gpus=()) -> str:
    registry = prometheus_client.CollectorRegistry()
    registry.register(DeviceCollector(lambda: samples(processes, gpus)))
    return prometheus_client.generate_latest(registry).decode()


def values_of(text: str) -> dict[tuple[str, str], float]:
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, sample.labels.get("device", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_metric_has_its_value():
    values = values_of(text_of(ALL, gpus=[GPU]))
    assert values["forebay_memory_allocated_bytes", "cuda:0"] == 1 << 60
    assert values["forebay_memory_capacity_bytes", "cuda:0"] == 5
    assert ("forebay_memory_capacity_bytes", "cpu") not in values
    assert values["forebay_allocations_total", "cpu"] == 4
    assert values["forebay_out_of_memory_total", "cpu"] == 7
    assert values["forebay_device_power_watts", "gpu:1"] == 100.5
    assert values["forebay_device_clock_hertz", "gpu:1"] == 1.5e9
    assert values["forebay_device_busy_ratio", "gpu:1"] == 0.5
    assert values["forebay_processes", ""] == 1
    assert len({name for name, _ in values}) == len(METRICS)


def test_labels_are_printable_and_quoted():
    text = text_of(ProcessFigures.from_json(replace(PROCESS, program='a"b\\c\nd\x1b[31m').to_json()))
    assert "\x1b" not in text
    assert r'program="a\"b\\c\\x0ad\\x1b[31m"' in text
    assert values_of(text)


def test_nothing_running_is_valid():
    assert values_of(text_of()) == {("forebay_processes", ""): 0}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_promtool_finds_no_problem():
    text = text_of(ALL, replace(ALL, pid=8), gpus=[GPU])
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def dashboard_queries(root) -> list[str]:
    dashboard = json.loads((root / "examples/grafana-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_uses_metrics_that_exist(root):
    known = {name for name, _ in values_of(text_of(ALL, gpus=[GPU]))}
    used = {name for query in dashboard_queries(root) for name in re.findall(r"forebay_\w+", query)}
    assert len(used) > 8
    assert used <= known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_dashboard_queries_are_valid(root, tmp_path):
    rules = [{"record": f"panel:{at}", "expr": query} for at, query in enumerate(dashboard_queries(root))]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(tmp_path / "rules.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules)} rules found" in done.stdout
