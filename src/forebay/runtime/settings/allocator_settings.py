"""The allocator's settings: what they are, what a text changes, what a second one resets and keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from forebay import config
from forebay.runtime.settings.keys import BACKENDS, Reading, Reserve
from forebay.runtime.settings.parser import UNLIMITED, SettingsError, Tokens

__all__ = [
    "DEFAULT",
    "UNLIMITED",
    "AllocatorSettings",
    "Reserve",
    "SettingsError",
    "at_start",
    "change",
    "from_environment",
    "parse",
]

_MIB = 1 << 20
_SLOTS = 16  # of sizes from 1 MiB on, each twice the one before


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What holds after a text was read. Sizes are bytes; `text` is the last one as it was given."""

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
        """The address space of a new expandable segment: nine eighths of the memory, or less where a key says so."""
        full = total_memory + total_memory // 8
        chosen = dict(self.expandable_segments_reserve_by_class).get(stream_class, self.expandable_segments_reserve)
        return full if chosen is None else min(chosen.nbytes(total_memory), full)

    def as_snapshot(self) -> dict[str, Any]:
        """The `allocator_settings` of PyTorch's snapshot; it knows only some keys, and no unsigned numbers."""
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
    """The settings after the text, in a process that had those `before`.

    Four keys start anew with each text: max_split_size_mb, roundup_power2_divisions and garbage_collection_threshold
    from their defaults, max_non_split_rounding_mb from the size of a large segment. All others stay as they were.

    Raises SettingsError, a ValueError that knows what holds in spite of it.

    >>> parse("max_split_size_mb:64,garbage_collection_threshold:0.8").max_split_size
    67108864
    >>> parse("expandable_segments:yes")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    SettingsError: Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'yes'
    in the allocator's settings 'expandable_segments:yes'
    """
    reading = Reading(text, _anew(text, before))
    return reading.run(reading.common, reading.cuda)


def at_start(text: str) -> AllocatorSettings:
    """The settings of a process that begins with this text: here, and only here, `backend` is free to choose."""
    reading = Reading(text, replace(DEFAULT, text=text, backend=_first_backend(text)))
    return reading.run(reading.cuda, reading.common)


def change(text: str, before: AllocatorSettings, apply: Callable[[AllocatorSettings], object]) -> None:
    """Apply what `parse` gives. What stands before a mistake holds in spite of it, as in PyTorch."""
    try:
        apply(parse(text, before))
    except SettingsError as error:
        apply(error.applied)
        raise


def from_environment(environ: Mapping[str, str] | None = None) -> AllocatorSettings:
    """What the environment says now (os.environ, unless another is given); an error tells in a note which variable."""
    name, text = config.allocator_settings(environ)
    try:
        return at_start(text)
    except SettingsError as error:
        error.add_note(f"in the environment variable {name}")
        raise


def _anew(text: str, before: AllocatorSettings) -> AllocatorSettings:
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
    """What is wrong with the text, the reading proper will say."""
    tokens, at = Tokens(text), 0
    try:
        while at < len(tokens):
            if tokens[at] == "backend":
                named = tokens[tokens.value_of(at)]
                return named if named in BACKENDS else DEFAULT.backend
            at = tokens.end_of(at) + 2
    except SettingsError:
        pass
    return DEFAULT.backend
