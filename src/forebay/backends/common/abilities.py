"""Abilities of the vendor contract, by owner."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from forebay import spi

__all__ = ["BY_OWNER", "OF_DRIVERS", "OF_PORTS", "OF_QUEUES", "methods"]

OF_DRIVERS: tuple[type, ...] = (spi.Describes, spi.Peers, spi.Telemetry, spi.Emulates)
OF_PORTS: tuple[type, ...] = (
    spi.PinnedHost, spi.PinsInPlace, spi.Managed, spi.Growable, spi.Resizable, spi.ProcessUsage, spi.Shares,
    spi.ExternalQueues, spi.IdentifiesMemory, spi.SurvivesFork, spi.ReportsIdle, spi.StorageModes, spi.Shaders,
    spi.ToolTraces,
)  # fmt: skip
OF_QUEUES: tuple[type, ...] = (
    spi.Timing,
    spi.ExecutionLog,
    spi.Launches,
    spi.Captures,
    spi.RandomNumbers,
    spi.StridedCopies,
    spi.LazilyBacked,
)

# In the order in which tables list them.
BY_OWNER = MappingProxyType({"Queue": OF_QUEUES, "Port": OF_PORTS, "Driver": OF_DRIVERS})


def methods(*contracts: type) -> Iterator[str]:
    """Yield the names of the protocols' methods."""
    for contract in contracts:
        for name, value in vars(contract).items():
            if not name.startswith("_") and callable(value):
                yield name
