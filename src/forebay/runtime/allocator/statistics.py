"""What the allocator counts, under PyTorch's names. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from forebay._core import METRICS

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.settings.allocator_settings import AllocatorSettings

__all__ = ["ALLOCATED_BYTES", "COUNTERS", "FIELDS", "KINDS", "METRIC", "RESERVED_BYTES", "flat", "nested", "nothing"]

KINDS = ("all", "small_pool", "large_pool")
FIELDS = ("current", "peak", "allocated", "freed")
COUNTERS = (
    "num_alloc_retries",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "num_ooms",
    "num_sync_all_streams",
)

ALLOCATED_BYTES = METRICS.index("allocated_bytes")
RESERVED_BYTES = METRICS.index("reserved_bytes")
METRIC = {name: number for number, name in enumerate(METRICS)}

_ROWS = (
    *(f"{metric}.{kind}.{field}" for metric in METRICS for kind in KINDS for field in FIELDS),
    *(f"oversize_{what}.{field}" for what in ("allocations", "segments") for field in FIELDS),
    *COUNTERS,
    "max_split_size",
)
_KEYS = tuple(sorted(_ROWS))
_in_order = itemgetter(*map(_ROWS.index, _KEYS))
_counters = attrgetter(*COUNTERS)


def nested(numbers: Mapping[str, int]) -> dict[str, Any]:
    """Flat keys taken apart at their dots; a private pool's "0_1" becomes (0, 1)."""
    result: dict[Any, Any] = {"reserved_bytes_by_private_pools": {}} if numbers else {}
    for key, value in numbers.items():
        *path, last = key.split(".")
        place = result
        for part in path:
            a, _, b = part.partition("_")
            place = place.setdefault((int(a), int(b)) if a.isdecimal() and b.isdecimal() else part, {})
        place[last] = value
    return result


def flat(allocator: Allocator) -> dict[str, int]:
    """Every number under its key of `torch.cuda.memory_stats`, in alphabetical order."""
    shown = _shown_split(allocator.shown_max_split)
    rows = [*allocator.counts(), *allocator.oversize(), *_counters(allocator), shown]
    numbers = dict(zip(_KEYS, _in_order(rows), strict=True))
    homes = tuple(allocator.private.grown)
    for home in homes:
        a, b = allocator.private.id_of(home)
        keys = [f"reserved_bytes_by_private_pools.{a}_{b}.{kind}.{field}" for kind in KINDS for field in FIELDS]
        numbers |= zip(keys, allocator.reserved_by(home), strict=True)
    return dict(sorted(numbers.items())) if homes else numbers


def nothing(settings: AllocatorSettings) -> dict[str, int]:
    """What `flat` tells of a device that was never used."""
    return dict.fromkeys(_KEYS, 0) | {"max_split_size": _shown_split(settings.max_split_size)}


def _shown_split(nbytes: int) -> int:
    return -1 if nbytes >= 1 << 63 else nbytes
