"""Metrics for OpenTelemetry, read through its SDK."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.observe.monitor.metrics import samples
from forebay.observe.monitor.opentelemetry import observe_devices

from .test_figures import PROCESS

metrics = pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")


def test_instruments_have_units_and_values():
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reads = []

    def read():
        reads.append(1)
        return samples([PROCESS, replace(PROCESS, pid=8)])

    reader = InMemoryMetricReader()
    provider = metrics.MeterProvider([reader])
    try:
        observe_devices(provider, read)
        (resource,) = reader.get_metrics_data().resource_metrics
        found = {each.name: each for each in resource.scope_metrics[0].metrics}
    finally:
        provider.shutdown()
    assert len(reads) == 1  # for all instruments
    allocated = found["forebay.memory_allocated"]
    assert allocated.unit == "By"
    assert [point.value for point in allocated.data.data_points] == [1 << 60, 1 << 60]
    assert {point.attributes["pid"] for point in allocated.data.data_points} == {"7", "8"}
    assert found["forebay.allocations"].data.is_monotonic
    assert "forebay.device_power" not in found or not found["forebay.device_power"].data.data_points
