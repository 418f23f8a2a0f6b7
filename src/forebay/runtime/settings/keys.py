"""Keys of the allocator settings, each with the parser of its value.

PyTorch parses a configuration string twice: one pass handles the keys common to all accelerators, the other CUDA's.
Each skips the keys of the other and stops at its first error, so the passes are separate here as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from forebay._base.byte_sizes import MIB
from forebay.errors import ForebayWarning
from forebay.runtime.settings.allocator_settings import UNLIMITED, AllocatorSettings, Reserve
from forebay.runtime.settings.parser import SettingsError, SettingsRuntimeError, Tokens, positive

__all__ = ["BACKENDS", "KEYS", "SettingsReader"]

BACKENDS = ("native", "cudaMallocAsync")


class SettingsReader:
    """Parser of one configuration string; `settings` has the values parsed so far."""

    def __init__(self, text: str, before: AllocatorSettings) -> None:
        self.text = text
        self.tokens: Tokens = Tokens(text)
        self.settings: AllocatorSettings = before
        self.seen: set[str] = set()
        self.warnings: list[str] = []

    def run(self, *passes: Callable[[], None]) -> AllocatorSettings:
        try:
            for parse in passes:
                parse()
        except SettingsError as error:
            error.applied = self.settings
            error.add_note(f"in the allocator's settings {self.text[:1000]!r}")
            raise
        finally:
            for message in self.warnings:
                warnings.warn(message, ForebayWarning, stacklevel=3)
        return self.settings

    def set(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    def parse_common(self) -> None:
        self._parse_large_segment_size()
        self.set(max_non_split_rounding=self.settings.large_segment_size)
        self._parse_keys(_COMMON, "Accelerator")
        rounded, cached = self.settings.pinned_max_round_threshold // MIB, self.settings.pinned_max_cached_size // MIB
        if {"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"} <= self.seen and rounded > cached:
            self.warnings.append(
                f"pinned_max_round_threshold_mb ({rounded}) > pinned_max_cached_size_mb ({cached}). The cache size "
                "limit takes precedence: allocations above pinned_max_cached_size_mb are never rounded up."
            )

    def parse_cuda(self) -> None:
        self.seen.clear()
        self._parse_keys(_CUDA, "CUDA")
        if "backend" in self.seen and len(self.seen) > 1 and self.settings.backend == "cudaMallocAsync":
            self.warnings.append(
                "backend:cudaMallocAsync ignores max_split_size_mb,roundup_power2_divisions, and "
                "garbage_collect_threshold."
            )

    def _parse_large_segment_size(self) -> None:
        """Parse large_segment_size_mb first, wherever it occurs: it is the lower bound of other keys."""
        at = 0
        while at < len(self.tokens):
            if self.tokens[at] == "large_segment_size_mb":
                at = self.tokens.value_index(at)
                mib = self.tokens.unsigned(at)
                if mib <= 10:
                    raise SettingsError("CachingAllocator option large_segment_size_mb must be > 10 MB")
                self.set(large_segment_size=_bytes(mib))
            at += 1

    def _parse_keys(self, readers: Mapping[str, Callable[[SettingsReader, int], int]], allocator: str) -> None:
        at = 0
        while at < len(self.tokens):
            key = self.tokens[at]
            if key in readers:
                at = readers[key](self, at)
                self.seen.add(key)
            elif key in KEYS:
                at = self.tokens.end_index(at)
            else:
                raise SettingsError(f"Unrecognized key '{key}' in {allocator} allocator config.")
            at += 2  # any token after a value is taken for the comma

    def read_reserve(self, at: int) -> Reserve | None:
        text = self.tokens[at]
        in_gib = text[-1] in "Gg"
        value = positive(text[:-1] if in_gib else text)
        if value is not None:
            return Reserve(value, is_share=not in_gib)
        self.warnings.append(
            f"Ignoring invalid expandable-segment reserve value '{text}' in PYTORCH_CUDA_ALLOC_CONF (expected a "
            "positive, finite fraction like 0.5 or an absolute size like 40G); using default."
        )
        return None


def _bytes(mib: int) -> int:
    return min(mib, UNLIMITED // MIB) * MIB


def _is_power_of_2(number: int) -> bool:
    return number.bit_count() == 1


def _flag(field: str) -> Callable[[SettingsReader, int], int]:
    def read(reader: SettingsReader, key: int) -> int:
        at = reader.tokens.value_index(key)
        reader.set(**{field: reader.tokens.boolean(at)})
        return at

    return read


def _size(field: str, *, bounded: bool = False) -> Callable[[SettingsReader, int], int]:
    def read(reader: SettingsReader, key: int) -> int:
        at = reader.tokens.value_index(key)
        mib = reader.tokens.unsigned(at)
        minimum = reader.settings.large_segment_size // MIB if bounded else 0
        if mib < minimum:
            raise SettingsError(f"CachingAllocator option {field}_mb too small, must be >= {minimum}")
        reader.set(**{field: _bytes(mib)})
        return at

    return read


def _threshold(reader: SettingsReader, key: int) -> int:
    at = reader.tokens.value_index(key)
    value = reader.tokens.double(at)
    if not 0 < value < 1:
        raise SettingsError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
    reader.set(garbage_collection_threshold=value)
    return at


def _divisions(reader: SettingsReader, key: int) -> int:
    """Parse one number for all sizes, or `[256:1,512:2,>:4]`: the first entry also covers smaller sizes, `>` larger."""
    tokens, at = reader.tokens, reader.tokens.value_index(key)
    if tokens[at] != "[":
        if not _is_power_of_2(value := tokens.unsigned(at)):
            raise SettingsError("For roundups, the divisions has to be power of 2 ")
        reader.set(roundup_power2_divisions=(value,) * len(reader.settings.roundup_power2_divisions))
        return at
    slots = list(reader.settings.roundup_power2_divisions)
    try:
        return _division_list(tokens, at, slots)
    finally:  # entries before an error take effect
        reader.set(roundup_power2_divisions=tuple(slots))


def _division_list(tokens: Tokens, at: int, slots: list[int]) -> int:
    first, last = True, 0
    at += 1
    while at < len(tokens) and tokens[at] != "]":
        bound, at = at, tokens.value_index(at)
        if (value := tokens.unsigned(at)) and not _is_power_of_2(value):
            raise SettingsError("For roundups, the divisions has to be power of 2 or 0 to disable roundup ")
        if tokens[bound] == ">":
            slots[last + 1 :] = [value] * (len(slots) - last - 1)
        else:
            if not _is_power_of_2(mib := tokens.unsigned(bound)):
                raise SettingsError("For roundups, the intervals have to be power of 2 ")
            last = min(mib.bit_length(), len(slots)) - 1
            slots[0 if first else last : last + 1] = [value] * (last + 1 if first else 1)
            first = False
        at += 1 if tokens[at + 1] == "]" else 2
    return tokens.closing_bracket(at)


def _backend(reader: SettingsReader, key: int) -> int:
    name = reader.tokens[at := reader.tokens.value_index(key)]
    if name not in BACKENDS:
        raise SettingsError("Unknown allocator backend, options are native and cudaMallocAsync")
    if name != reader.settings.backend:
        raise SettingsRuntimeError(
            "Allocator backend parsed at runtime != allocator backend parsed at load time, "
            f"{name} != {reader.settings.backend}"
        )
    return at


def _register_threads(reader: SettingsReader, key: int) -> int:
    at = reader.tokens.value_index(key)
    if not _is_power_of_2(threads := reader.tokens.unsigned(at)):
        raise SettingsError(f"Number of register threads has to be power of 2, got {threads}")
    if threads > 128:
        raise SettingsError(f"Number of register threads should be less than or equal to 128, got {threads}")
    reader.set(pinned_num_register_threads=threads)
    return at


def _pinned_segment(reader: SettingsReader, key: int) -> int:
    at = reader.tokens.value_index(key)
    if not (mib := reader.tokens.unsigned(at)):
        raise SettingsError("Pinned reserve segment size has to be greater than 0")
    reader.set(pinned_reserve_segment_size=mib * MIB & UNLIMITED)
    return at


def _fraction(reader: SettingsReader, key: int) -> int:
    at = reader.tokens.value_index(key)
    if not 0 <= (value := reader.tokens.double(at)) <= 1:
        raise SettingsError("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
    reader.set(per_process_memory_fraction=value)
    return at


def _reserve(reader: SettingsReader, key: int) -> int:
    at = reader.tokens.value_index(key)
    if (reserve := reader.read_reserve(at)) is not None:
        reader.set(expandable_segments_reserve=reserve)
    return at


def _reserve_by_class(reader: SettingsReader, key: int) -> int:
    """Parse `[name:0.5,other:40G]`, which replaces an earlier list."""
    tokens, at = reader.tokens, reader.tokens.value_index(key) + 1
    found: dict[str, Reserve] = {}
    while tokens[at] != "]":
        name, at = tokens[at], tokens.value_index(at)
        if (reserve := reader.read_reserve(at)) is not None:
            found[name] = reserve
        at += 2 if tokens[at + 1] == "," else 1
    reader.set(expandable_segments_reserve_by_class=tuple(found.items()))
    return at


_COMMON: dict[str, Callable[[SettingsReader, int], int]] = {
    "max_split_size_mb": _size("max_split_size", bounded=True),
    "max_non_split_rounding_mb": _size("max_non_split_rounding", bounded=True),
    "garbage_collection_threshold": _threshold,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _flag("expandable_segments"),
    "pinned_use_background_threads": _flag("pinned_use_background_threads"),
    "pinned_max_round_threshold_mb": _size("pinned_max_round_threshold"),
    "pinned_max_cached_size_mb": _size("pinned_max_cached_size"),
}
_CUDA: dict[str, Callable[[SettingsReader, int], int]] = {
    "backend": _backend,
    "release_lock_on_cudamalloc": _flag("release_lock_on_cudamalloc"),
    "release_lock_on_hipmalloc": _flag("release_lock_on_cudamalloc"),
    "pinned_use_cuda_host_register": _flag("pinned_use_cuda_host_register"),
    "pinned_use_hip_host_register": _flag("pinned_use_cuda_host_register"),
    "pinned_num_register_threads": _register_threads,
    "pinned_reserve_segment_size_mb": _pinned_segment,
    "pinned_free_catch_all": _flag("pinned_free_catch_all"),
    "graph_capture_record_stream_reuse": _flag("graph_capture_record_stream_reuse"),
    "throw_on_cudamalloc_oom": _flag("throw_on_cudamalloc_oom"),
    "per_process_memory_fraction": _fraction,
    "expandable_segments_reserve": _reserve,
    "expandable_segments_reserve_by_class": _reserve_by_class,
}
KEYS = frozenset({*_COMMON, *_CUDA, "large_segment_size_mb"})
