"""Allocator settings (PYTORCH_CUDA_ALLOC_CONF): the parsed values, and how a later string changes earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from forebay._base import config
from forebay.runtime.settings.keys import BACKENDS, Reserve, SettingsReader
from forebay.runtime.settings.parser import UNLIMITED, SettingsError, Tokens

__all__ = [
    "DEFAULT",
    "UNLIMITED",
    "AllocatorSettings",
    "Reserve",
    "SettingsError",
    "change",
    "from_environment",
    "parse",
    "parse_initial",
]

_MIB = 1 << 20
_SLOTS = 16  # size classes from 1 MiB on, each twice the one before


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Parsed settings. Sizes are bytes; `text` is the last configuration string, unchanged."""

    text: str = ""
    backend: str = "native"
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = 20 * _MIB
    large_segment_size: int = 20 * _MIB
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


def parse(text: str, before: AllocatorSettings = DEFAULT) -> AllocatorSettings:
    """Return the settings after parsing `text` in a process whose settings were `before`.

    Each string resets four keys: max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold to their
    defaults, max_non_split_rounding_mb to the size of a large segment. All others keep their values.

    Raises SettingsError, a ValueError whose `applied` has the settings after the keys before the error.

    >>> parse("max_split_size_mb:64,garbage_collection_threshold:0.8").max_split_size
    67108864
    >>> parse("expandable_segments:yes")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    SettingsError: Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'yes'
    in the allocator's settings 'expandable_segments:yes'
    """
    reader = SettingsReader(text, _with_resets(text, before))
    return reader.run(reader.parse_common, reader.parse_cuda)


def parse_initial(text: str, *, common_first: bool = False) -> AllocatorSettings:
    """Return the settings of a process that starts with this string. Only here may `backend` be any backend.

    PyTorch parses CUDA's keys first if a CUDA function is the first to need them, else (`common_first`) the common
    ones. The order decides which error is raised.
    """
    reader = SettingsReader(text, replace(DEFAULT, text=text, backend=_first_backend(text)))
    passes = (reader.parse_cuda, reader.parse_common)
    return reader.run(*(passes[::-1] if common_first else passes))


def change(text: str, before: AllocatorSettings, apply: Callable[[AllocatorSettings], object]) -> None:
    """Pass the result of `parse` to `apply`. Keys before an error take effect, as in PyTorch."""
    try:
        apply(parse(text, before))
    except SettingsError as error:
        apply(error.applied)
        raise


def from_environment(environ: Mapping[str, str] | None = None, *, common_first: bool = False) -> AllocatorSettings:
    """Return the settings of the environment (os.environ by default). An error has a note that names the variable."""
    name, text = config.allocator_settings(environ)
    try:
        return parse_initial(text, common_first=common_first)
    except SettingsError as error:
        error.add_note(f"in the environment variable {name}")
        raise


def _with_resets(text: str, before: AllocatorSettings) -> AllocatorSettings:
    return replace(
        before,
        text=text,
        max_split_size=DEFAULT.max_split_size,
        roundup_power2_divisions=DEFAULT.roundup_power2_divisions,
        garbage_collection_threshold=DEFAULT.garbage_collection_threshold,
    )


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _first_backend(text: str) -> str:
    """Return the first valid backend in the string; errors are left to the actual parse."""
    tokens, at = Tokens(text), 0
    try:
        while at < len(tokens):
            if tokens[at] == "backend":
                name = tokens[tokens.value_index(at)]
                return name if name in BACKENDS else DEFAULT.backend
            at = tokens.end_index(at) + 2
    except SettingsError:
        pass
    return DEFAULT.backend
