"""Sensors of the machine's GPUs under the names of NVIDIA's DCGM exporter, for dashboards that are made for it.

Only metrics that mean the same have its names: DCGM_FI_DEV_FB_USED is not among them, as NVML's used memory includes
what the driver reserves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from forebay.observe.monitor.figures import Readings
from forebay.observe.monitor.sensors import MachineGpu, machine_gpus

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

__all__ = ["DcgmCollector"]

_MIB = 1 << 20
_METRICS: dict[str, tuple[str, Callable[[Readings], float | None]]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("SM clock frequency (in MHz).", lambda each: each.clock),
    "DCGM_FI_DEV_GPU_TEMP": ("GPU temperature (in C).", lambda each: each.temperature),
    "DCGM_FI_DEV_POWER_USAGE": (
        "Power draw (in W).",
        lambda each: None if each.power is None else each.power / 1000,
    ),
    "DCGM_FI_DEV_GPU_UTIL": (
        "GPU utilization (in %).",
        lambda each: None if each.busy is None else round(100 * each.busy),
    ),
    "DCGM_FI_DEV_FB_TOTAL": (
        "Total framebuffer memory (in MiB).",
        lambda each: None if each.memory_total is None else each.memory_total // _MIB,
    ),
}


class DcgmCollector:
    """A collector for a registry of prometheus-client. Each scrape reads the sensors anew.

    Parameters
    ----------
    read : callable, optional
        Returns the GPUs; by default those of the machine.
    """

    def __init__(self, read: Callable[[], Iterable[MachineGpu]] = machine_gpus) -> None:
        self._read = read

    def describe(self) -> list[Family]:
        """Return no families: a registry would collect them to find their names."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric with values."""
        from prometheus_client.core import GaugeMetricFamily

        gpus = [each for each in self._read() if each.uuid.startswith("GPU-")]  # NVIDIA's
        for name, (text, value_of) in _METRICS.items():
            known = [(gpu, value) for gpu in gpus if (value := value_of(gpu.readings)) is not None]
            if known:
                family = GaugeMetricFamily(name, text, labels=["gpu", "UUID", "device"])
                for gpu, value in known:
                    family.add_metric([str(gpu.index), gpu.uuid, f"nvidia{gpu.index}"], value)
                yield family
