"""Metrics for OpenTelemetry, through its API package (opentelemetry-api)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from forebay.observe.monitor.collect import collect
from forebay.observe.monitor.metrics import METRICS, Metric, Sample, samples

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

__all__ = ["observe_devices"]

_UNITS = {"bytes": "By", "ratio": "1", "celsius": "Cel", "watts": "W", "hertz": "Hz", "": "1"}  # of UCUM
_SAME_EXPORT = 0.1  # seconds


def observe_devices(
    meter_provider: MeterProvider | None = None,
    read: Callable[[], Iterable[Sample]] = lambda: samples([collect()]),
) -> None:
    """Create an observable instrument for each metric; OpenTelemetry reads them when it exports.

    Parameters
    ----------
    meter_provider : opentelemetry.metrics.MeterProvider, optional
        The provider; the global one by default.
    read : callable, optional
        Returns the samples; by default those of this process.

    Raises
    ------
    ModuleNotFoundError
        If opentelemetry-api is not installed.
    """
    from opentelemetry.metrics import Observation, get_meter

    latest = _Latest(read)

    def observe(metric: Metric) -> Callable[[CallbackOptions], list[Observation]]:
        return lambda _: [
            Observation(sample.value, dict(sample.labels)) for sample in latest.read() if sample.metric is metric
        ]

    meter = get_meter("forebay", meter_provider=meter_provider)
    for metric in METRICS:
        create = meter.create_observable_counter if metric.counter else meter.create_observable_gauge
        create(f"forebay.{metric.name}", [observe(metric)], _UNITS[metric.unit], metric.text)


class _Latest:
    """The samples of one export: each instrument asks for them."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read
        self._samples: list[Sample] = []
        self._time = -_SAME_EXPORT

    def read(self) -> list[Sample]:
        now = time.monotonic()
        if now - self._time >= _SAME_EXPORT:
            self._samples, self._time = list(self._read()), now
        return self._samples
