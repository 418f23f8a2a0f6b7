"""Metrics for Prometheus, through prometheus-client (extra `exporter`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from forebay.observe.monitor.collect import collect
from forebay.observe.monitor.metrics import METRICS, Sample, samples

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

__all__ = ["DeviceCollector"]


class DeviceCollector:
    """A collector for a registry of prometheus-client. Each scrape reads the figures anew.

    Parameters
    ----------
    read : callable, optional
        Returns the samples; by default those of this process.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> import forebay
    >>> tensor = forebay.zeros(1000, device="cpu")
    >>> registry = CollectorRegistry()
    >>> registry.register(DeviceCollector())
    >>> print(generate_latest(registry).decode())
    # HELP forebay_memory_allocated_bytes Memory in live blocks.
    # TYPE forebay_memory_allocated_bytes gauge
    forebay_memory_allocated_bytes{device="cpu",...
    """

    def __init__(self, read: Callable[[], Iterable[Sample]] = lambda: samples([collect()])) -> None:
        self._read = read

    def describe(self) -> list[Family]:
        """Return no families: a registry would collect them to find their names."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric with values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = list(self._read())
        for metric in METRICS:
            of_metric = [sample for sample in found if sample.metric is metric]
            if not of_metric:
                continue
            names = [name for name, _ in of_metric[0].labels]
            name = "_".join(filter(None, ("forebay", metric.name, metric.unit)))
            family = CounterMetricFamily if metric.counter else GaugeMetricFamily
            result = family(name, metric.text, labels=names)
            for sample in of_metric:
                result.add_metric([value for _, value in sample.labels], sample.value)
            yield result
