"""Allocator settings of a recording: from the notes of the snapshot, or inferred from its entries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.byte_sizes import MIB
from forebay._core import MAX_SMALL_BYTES
from forebay.records.model import Action, Snapshot
from forebay.simulate import Device
from forebay.snapshot.formats.known_notes import settings_of
from forebay.snapshot.replay.ordered import FlaggedRanges, NewestInRange

__all__ = ["RecordedSettings", "is_from_windows"]

_CANDIDATES = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "max_split_size_mb:32",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:8",
)
_SWITCHED_OFF = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*False\s*(?=,|$)")
_CAPACITY = 1 << 40  # of a device that is only used to query settings
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
# Settings that PyTorch's snapshots contain only in the text.
_IN_TEXT = re.compile(r"\b(?:large_segment_size_mb|max_non_split_rounding_mb):\d{1,6}\b", re.ASCII)


class RecordedSettings:
    """Settings of a recording made with segments. `text` is in the format of FOREBAY_ALLOC_CONF."""

    heaps = False
    _small_segment = 2 << 20

    def __init__(self, snapshot: Snapshot) -> None:
        notes = snapshot.notes
        noted = settings_of(notes)
        self.known: bool = noted is not None
        expandable = bool((snapshot.segments["growing"] != 0).any() or (snapshot.trace["action"] == Action.MAP).any())
        self.text: str = _text(noted or {}, expandable)
        try:
            self._pool = Device(_CAPACITY, self.text).allocator
        except ValueError:  # a number out of range
            self.known, self.text = False, _text({}, expandable)
            self._pool = Device(_CAPACITY, self.text).allocator
        if noted is not None:
            self.text = self._as_written(noted.get("PYTORCH_CUDA_ALLOC_CONF", ""))
        self.expandable: bool = self._pool.settings.expandable_segments
        self.max_split: int = self._pool.settings.max_split_size
        self.large_segment: int = self._pool.settings.large_segment_size
        self.collects_garbage: bool = self._pool.settings.garbage_collection_threshold > 0
        self.fine_segments: bool = notes.get("fine_segments") is True
        self.by_arrival: Any = notes.get("from") != "PyTorch" or notes.get("order") == "arrival"
        self._variable = _variable(notes)
        self._trace = snapshot.trace

    def _as_written(self, text: str) -> str:
        """Return the text that the program had set, if it results in the same settings, else `self.text`."""
        with suppress(ValueError, IndexError, RuntimeError):
            settings = Device(_CAPACITY, text).allocator.settings
            if replace(settings, text="") == replace(self._pool.settings, text=""):
                return text.strip()
        return self.text

    def device(self, total: int, settings: str, other_used: int) -> Device:
        """Return a simulated device like the recorded one. Raises ValueError if the settings are invalid."""
        return Device(total, settings, other_used, fine_segments=self.fine_segments)

    def alternatives(self, *, growable: bool, limited: bool) -> Iterator[str]:
        """Yield settings that may avoid an OOM; `growable` allows expandable segments, `limited` garbage collection."""
        kept = _SWITCHED_OFF.sub("", self.text).strip(",")
        for candidate in _CANDIDATES:
            if "expandable" in candidate and not growable:
                continue
            if "garbage" in candidate and not limited:  # garbage collection needs a limit
                continue
            if not any(key.partition(":")[0] in kept for key in candidate.split(",")):
                yield ",".join(filter(None, [kept, candidate]))

    def as_environment(self, settings: str) -> str:
        """Return the environment variable assignments that select these settings."""
        return f"{self._variable}={settings}"

    def rounded(self, sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the block sizes for requests of these sizes."""
        distinct, inverse = np.unique(sizes, return_inverse=True)
        return np.array([self._pool.block_size(nbytes) for nbytes in distinct.tolist()], np.uint64)[inverse]

    def segment_size(self, nbytes: int) -> int:
        """Return the size of a new segment for a request of this size."""
        size: int = self._pool.segment_size(nbytes)[0]
        return size

    def are_small(self, rows: NDArray[np.intp]) -> list[bool]:
        """Return for each segment entry in `rows` (ascending) whether the segment belongs to the small pool."""
        trace = self._trace
        used = np.flatnonzero(np.isin(trace["action"], (Action.ALLOC, Action.FREE_COMPLETED)))
        allocs = used[trace["action"][used] == Action.ALLOC]
        by_address = used[np.argsort(trace["address"][used], kind="stable")]
        addresses = trace["address"][by_address]
        small = (self.rounded(trace["nbytes"][by_address]) <= MAX_SMALL_BYTES).tolist()
        newest = NewestInRange(by_address)
        flags: list[bool] = []
        reserved = FlaggedRanges()
        growing = (Action.RESERVE, Action.MAP)
        following = np.searchsorted(allocs, rows)
        columns = (trace["address"], trace["nbytes"])
        for row, after in zip(rows.tolist(), following.tolist(), strict=True):
            action, address, nbytes = (int(trace[name][row]) for name in ("action", "address", "nbytes"))
            if action in growing and after < len(allocs):  # allocated for the next request
                at, requested = (int(column[allocs[after]]) for column in columns)
                if at < address + nbytes and at + max(requested, 1) > address:
                    flags.append(self._pool.block_size(requested) <= MAX_SMALL_BYTES)
                    reserved.set(address, address + (nbytes if action == Action.MAP else 1), flags[-1])
                    continue
            if action not in growing and (flag := reserved.get(address)) is not None:
                flags.append(flag)
                continue
            low, high = np.searchsorted(addresses, (address, address + nbytes))
            if (last := newest.before(row, int(low), int(high))) is not None:  # an earlier block inside the segment
                flags.append(small[last])
            elif action in (Action.MAP, Action.UNMAP):
                flags.append(nbytes % self.large_segment != 0)
            else:
                flags.append(nbytes == self._small_segment)
        return flags


def is_from_windows(snapshot: Snapshot) -> bool:
    """Return True if the program ran on Windows, where PyTorch has no expandable segments."""
    files = np.unique(snapshot.frames["file"]).tolist()
    return any(_WINDOWS_PATH.match(snapshot.strings[number]) for number in files)


def _variable(notes: Mapping[str, Any]) -> str:
    """Return the environment variable of the program's settings. PyTorch renamed its own in 2.9."""
    if notes.get("from") != "PyTorch":
        return "FOREBAY_ALLOC_CONF"
    return "PYTORCH_ALLOC_CONF" if notes.get("order") == "arrival" else "PYTORCH_CUDA_ALLOC_CONF"


def _text(noted: Mapping[str, Any], expandable: bool) -> str:
    words = _IN_TEXT.findall(noted.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    words.sort()  # large_segment_size_mb is the limit of the others and must be parsed first
    split = noted.get("max_split_size", -1)
    if 0 < split < 1 << 62:
        words.append(f"max_split_size_mb:{split // MIB}")
    threshold = noted.get("garbage_collection_threshold", 0)
    if 0 < threshold < 1:
        words.append(f"garbage_collection_threshold:{threshold:.12f}")
    divisions = noted.get("roundup_power2_divisions", {})
    if any(number > 1 for number in divisions.values()):
        words.append(f"roundup_power2_divisions:[{','.join(f'{size}:{max(n, 1)}' for size, n in divisions.items())}]")
    if noted.get("expandable_segments", expandable):
        words.append("expandable_segments:True")
    return ",".join(words)
