"""Allocator settings: the values of all keys of a configuration string (PYTORCH_CUDA_ALLOC_CONF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay._base.byte_sizes import MIB

__all__ = ["DEFAULT", "UNLIMITED", "AllocatorSettings", "Reserve"]

UNLIMITED = (1 << 64) - 1
_SLOTS = 16  # size classes from 1 MiB on, each twice the one before


@dataclass(frozen=True, slots=True)
class Reserve:
    """Address space reserved by an expandable segment: a share of the device's memory, or a number of GiB."""

    value: float
    is_share: bool

    def nbytes(self, total_memory: int) -> int:
        nbytes = self.value * float(total_memory if self.is_share else 1 << 30)
        return int(nbytes) if nbytes < float(1 << 64) else UNLIMITED


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Parsed settings. Sizes are bytes; `text` is the last configuration string, unchanged."""

    text: str = ""
    backend: str = "native"
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = 20 * MIB
    large_segment_size: int = 20 * MIB
    garbage_collection_threshold: float = 0.0  # 0: off
    roundup_power2_divisions: tuple[int, ...] = (0,) * _SLOTS
    expandable_segments: bool = False
    expandable_segments_reserve: Reserve | None = None
    expandable_segments_reserve_by_class: tuple[tuple[str, Reserve], ...] = ()
    release_lock_on_cudamalloc: bool = False
    graph_capture_record_stream_reuse: bool = False
    throw_on_cudamalloc_oom: bool = False
    per_process_memory_fraction: float = 1.0
    pinned_use_cuda_host_register: bool = False
    pinned_num_register_threads: int = 1
    pinned_use_background_threads: bool = False
    pinned_reserve_segment_size: int = 0
    pinned_max_round_threshold: int = UNLIMITED
    pinned_max_cached_size: int = UNLIMITED
    pinned_free_catch_all: bool = False

    def expandable_reserve(self, total_memory: int, stream_class: str = "") -> int:
        """Return the address space of a new expandable segment: 9/8 of the memory, or less if a key sets it."""
        full = total_memory + total_memory // 8
        configured = dict(self.expandable_segments_reserve_by_class).get(stream_class, self.expandable_segments_reserve)
        return full if configured is None else min(configured.nbytes(total_memory), full)

    def as_snapshot(self) -> dict[str, Any]:
        """Return the `allocator_settings` of PyTorch's snapshot, which has only some keys, and signed numbers."""
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": _signed(self.max_split_size),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": self.pinned_num_register_threads,
            "release_lock_on_cudamalloc": self.release_lock_on_cudamalloc,
            "pinned_use_cuda_host_register": self.pinned_use_cuda_host_register,
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
            "max_round_threshold": _signed(self.pinned_max_round_threshold),
            "max_cached_size": _signed(self.pinned_max_cached_size),
            "roundup_power2_divisions": {
                str(1 << slot): _signed(value) for slot, value in enumerate(self.roundup_power2_divisions)
            },
        }


DEFAULT = AllocatorSettings()


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
