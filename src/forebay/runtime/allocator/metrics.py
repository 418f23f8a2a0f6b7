"""Numbers of the native pool's metrics, for its methods `current` and `peak`."""

from __future__ import annotations

from forebay._core import METRICS

__all__ = ["ALLOCATED_BYTES", "METRIC", "RESERVED_BYTES"]

METRIC = {name: number for number, name in enumerate(METRICS)}
ALLOCATED_BYTES, RESERVED_BYTES = METRIC["allocated_bytes"], METRIC["reserved_bytes"]
