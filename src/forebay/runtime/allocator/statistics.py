"""Allocator statistics under PyTorch's names. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from forebay._core import METRICS

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.settings.allocator_settings import AllocatorSettings

__all__ = ["COUNTERS", "FIELDS", "KINDS", "flat_stats", "nested_stats", "zero_stats"]

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

_ROWS = (
    *(f"{metric}.{kind}.{field}" for metric in METRICS for kind in KINDS for field in FIELDS),
    *(f"oversize_{counted}.{field}" for counted in ("allocations", "segments") for field in FIELDS),
    *COUNTERS,
    "max_split_size",
)
_KEYS = tuple(sorted(_ROWS))
_in_order = itemgetter(*map(_ROWS.index, _KEYS))
_counters = attrgetter(*COUNTERS)


def nested_stats(numbers: Mapping[str, int]) -> dict[str, Any]:
    """Convert flat keys to nested dicts, split at the dots; a private pool's "0_1" becomes (0, 1)."""
    result: dict[Any, Any] = {"reserved_bytes_by_private_pools": {}} if numbers else {}
    for key, value in numbers.items():
        *path, last = key.split(".")
        node = result
        for part in path:
            a, _, b = part.partition("_")
            node = node.setdefault((int(a), int(b)) if a.isdecimal() and b.isdecimal() else part, {})
        node[last] = value
    return result


def flat_stats(allocator: Allocator) -> dict[str, int]:
    """Return all statistics under the keys of `torch.cuda.memory_stats`, in alphabetical order."""
    max_split = _max_split_shown(allocator.shown_max_split)
    rows = [*allocator.counts(), *allocator.oversize(), *_counters(allocator), max_split]
    numbers = dict(zip(_KEYS, _in_order(rows), strict=True))
    pool_numbers = tuple(allocator.private.ever_used)
    for pool_number in pool_numbers:
        a, b = allocator.private.id_of(pool_number)
        fields = [f"reserved_bytes_by_private_pools.{a}_{b}.{kind}.{field}" for kind in KINDS for field in FIELDS]
        for key, value in zip(fields, allocator.reserved_by(pool_number), strict=True):  # of all pools of this id
            before = numbers.get(key, 0)
            numbers[key] = max(before, value) if key.endswith(".peak") else before + value
    return dict(sorted(numbers.items())) if pool_numbers else numbers


def zero_stats(settings: AllocatorSettings, num_sync_all_streams: int = 0) -> dict[str, int]:
    """Return the statistics of a device that was never used."""
    return dict.fromkeys(_KEYS, 0) | {
        "max_split_size": _max_split_shown(settings.max_split_size),
        "num_sync_all_streams": num_sync_all_streams,
    }


def _max_split_shown(nbytes: int) -> int:
    return -1 if nbytes >= 1 << 63 else nbytes
