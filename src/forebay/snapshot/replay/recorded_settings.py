"""Under which settings a history was recorded: what the file says of them, and what its entries give away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.simulate import Device
from forebay.snapshot.model import Action, Snapshot

__all__ = ["Recorded"]

_CANDIDATES = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "max_split_size_mb:32",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:8",
)
_SMALL = 1 << 20  # the largest block of the small kind
_PAGE = 2 << 20  # the smallest of growing segments
_MIB = 1 << 20
_ANY = 1 << 40  # memory of a device that only answers questions
# What PyTorch's snapshot does not say in a field of its own.
_IN_TEXT = re.compile(r"\b(?:large_segment_size_mb|max_non_split_rounding_mb):\d{1,6}\b", re.ASCII)


class Recorded:
    """The settings of a recording. `text` is how FOREBAY_ALLOC_CONF would say them."""

    heaps = False
    _small_segment = 2 << 20

    def __init__(self, snapshot: Snapshot) -> None:
        notes = snapshot.notes
        known = notes.get("allocator_settings")
        self.known = isinstance(known, Mapping)
        grows = bool((snapshot.segments["growing"] != 0).any() or (snapshot.trace["action"] == Action.MAP).any())
        self.text = _text(known if isinstance(known, Mapping) else {}, grows)
        try:
            self._pool = Device(_ANY, self.text).allocator
        except ValueError:  # a number that no allocator takes
            self.known, self.text = False, _text({}, grows)
            self._pool = Device(_ANY, self.text).allocator
        if isinstance(known, Mapping):
            self.text = self._shortest(str(known.get("PYTORCH_CUDA_ALLOC_CONF", "")))
        self.grows = self._pool.settings.expandable_segments
        self.max_split = self._pool.settings.max_split_size
        self.large_segment = self._pool.settings.large_segment_size
        self.collects = self._pool.settings.garbage_collection_threshold > 0
        self.fine = notes.get("fine_segments") is True
        self.by_arrival = notes.get("from") != "PyTorch" or notes.get("order") == "arrival"
        self._trace = snapshot.trace

    def _shortest(self, given: str) -> str:
        """What the program had written, if that was all."""
        with suppress(ValueError, IndexError, RuntimeError):
            settings = Device(_ANY, given).allocator.settings
            if replace(settings, text="") == replace(self._pool.settings, text=""):
                return given.strip()
        return self.text

    def device(self, total: int, settings: str, other_used: int) -> Device:
        """One that is as the recording's was, under these settings. ValueError for bad ones."""
        return Device(total, settings, other_used, fine_segments=self.fine)

    def others(self, *, growable: bool, limited: bool) -> Iterator[str]:
        """Settings that may have helped, on a device whose segments can grow, or whose memory has a limit."""
        for candidate in _CANDIDATES:
            if "expandable" in candidate and not growable:
                continue
            if "garbage" in candidate and not limited:  # nothing is collected without a limit
                continue
            if not any(key.partition(":")[0] in self.text for key in candidate.split(",")):
                yield ",".join(filter(None, [self.text, candidate]))

    def told(self, settings: str) -> str:
        """As who starts the program would say it."""
        return f"FOREBAY_ALLOC_CONF={settings}"

    def rounded(self, sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The blocks that requests of these sizes get."""
        known, of = np.unique(sizes, return_inverse=True)
        return np.array([self._pool.rounded(nbytes) for nbytes in known.tolist()], np.uint64)[of]

    def kinds(self, rows: NDArray[np.intp]) -> list[bool]:
        """Of entries about segments, in their order: whether these are of the small kind."""
        trace = self._trace
        used = np.flatnonzero(np.isin(trace["action"], (Action.TAKE, Action.GIVEN)))
        takes = used[trace["action"][used] == Action.TAKE]
        by_address = used[np.argsort(trace["address"][used], kind="stable")]
        addresses = trace["address"][by_address]
        small = (self.rounded(trace["nbytes"][by_address]) <= _SMALL).tolist()
        kinds: list[bool] = []
        came: dict[int, bool] = {}  # by address, in steps of the smallest page
        coming = (Action.RESERVE, Action.MAP)
        following = np.searchsorted(takes, rows)
        whole = (trace["address"], trace["nbytes"])
        for row, after in zip(rows.tolist(), following.tolist(), strict=True):
            action, address, nbytes = (int(trace[name][row]) for name in ("action", "address", "nbytes"))
            if action in coming and after < len(takes):  # it came for the request that is served next
                at, asked = (int(column[takes[after]]) for column in whole)
                if at < address + nbytes and at + max(asked, 1) > address:
                    kinds.append(self._pool.rounded(asked) <= _SMALL)
                    pages = range(address, address + nbytes, _PAGE) if action == Action.MAP else (address,)
                    came.update(dict.fromkeys(pages, kinds[-1]))
                    continue
            if action not in coming and address in came:
                kinds.append(came[address])
                continue
            low, high = np.searchsorted(addresses, (address, address + nbytes))
            before = np.flatnonzero(by_address[low:high] < row)  # what was in it
            if len(before):
                kinds.append(small[low + int(before[np.argmax(by_address[low:high][before])])])
            elif action in (Action.MAP, Action.UNMAP):
                kinds.append(nbytes % self.large_segment != 0)
            else:
                kinds.append(nbytes == self._small_segment)
        return kinds


def _text(known: Mapping[str, Any], grows: bool) -> str:
    words = _IN_TEXT.findall(str(known.get("PYTORCH_CUDA_ALLOC_CONF", "")))
    words.sort()  # large_segment_size_mb bounds the others
    split = known.get("max_split_size", -1)
    if 0 < split < 1 << 62:
        words.append(f"max_split_size_mb:{split // _MIB}")
    threshold = known.get("garbage_collection_threshold", 0)
    if 0 < threshold < 1:
        words.append(f"garbage_collection_threshold:{threshold:.12f}")
    divisions = known.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and any(number > 1 for number in divisions.values()):
        words.append(f"roundup_power2_divisions:[{','.join(f'{size}:{max(n, 1)}' for size, n in divisions.items())}]")
    if known.get("expandable_segments", grows):
        words.append("expandable_segments:True")
    return ",".join(words)
