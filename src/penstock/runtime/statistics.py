"""What the allocator counts, under PyTorch's names. Sizes are bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._core import METRICS

if TYPE_CHECKING:
    from penstock.runtime.allocator import Allocator

__all__ = ["ALLOCATED_BYTES", "COUNTERS", "FIELDS", "KINDS", "RESERVED_BYTES", "flat"]

KINDS = ("all", "small_pool", "large_pool")
FIELDS = ("current", "peak", "allocated", "freed")
COUNTERS = ("num_alloc_retries", "num_device_alloc", "num_device_free", "num_ooms", "num_sync_all_streams")

ALLOCATED_BYTES = METRICS.index("allocated_bytes")
RESERVED_BYTES = METRICS.index("reserved_bytes")

_KEYS = tuple(f"{metric}.{kind}.{field}" for metric in METRICS for kind in KINDS for field in FIELDS)


def flat(allocator: Allocator) -> dict[str, int]:
    """Every number, as "metric.kind.field" and the plain counters, in alphabetical order."""
    numbers = dict(zip(_KEYS, allocator.counts(), strict=True))
    numbers |= {name: getattr(allocator, name) for name in COUNTERS}
    return dict(sorted(numbers.items()))
