"""Addresses in PyTorch's snapshots: the pool at an address, and addresses too large for the columns."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot

__all__ = ["pools_by_address", "rebase", "with_base"]

_LARGE, _ALIGNED = 1 << 62, 1 << 40  # addresses from here on are relative, to a multiple of this


def pools_by_address(entries: NDArray[np.void], segments: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return the pool of the segment at each entry's address; 0 outside the segments."""
    if not len(segments):
        return np.zeros(len(entries), np.uint32)
    at = np.searchsorted(segments["address"], entries["address"], "right") - 1
    inside = (at >= 0) & (entries["address"] < (segments["address"] + segments["nbytes"])[at])
    found: NDArray[np.uint32] = np.where(inside, segments["pool"][at], 0)
    return found


def rebase(segments: NDArray[np.void], blocks: NDArray[np.void], entries: NDArray[np.void]) -> int:
    """Subtract what large addresses have in common, so that sums fit 64 bits, and return it; 0 for others.

    The device memory of Intel's GPUs begins at 0xff00000000000000.
    """
    placed = _has_address(entries)
    found = np.concatenate([segments["address"], blocks["address"], entries["address"][placed]])
    found = found[found > 0]
    if int(found.max(initial=0)) < _LARGE:
        return 0
    base = int(found.min()) - 1 & -_ALIGNED
    if base <= 0 or int(found.max()) - base >= _LARGE:
        return 0  # the snapshot is refused
    for table, rows in ((segments, segments["address"] > 0), (blocks, blocks["address"] > 0), (entries, placed)):
        table["address"][rows] -= np.uint64(base)
    return base


def with_base(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the addresses that PyTorch recorded."""
    text = snapshot.notes.get("address_base")
    if not isinstance(text, str) or not re.fullmatch(r"0x[0-9a-f]{16}", text):
        return snapshot
    base = int(text, 16)
    tables = {name: getattr(snapshot, name).copy() for name in ("segments", "blocks", "trace")}
    for name, table in tables.items():
        rows = _has_address(table) if name == "trace" else table["address"] > 0
        if int(table["address"][rows].max(initial=0)) + base >= 1 << 64:
            return snapshot
        table["address"][rows] += np.uint64(base)
    return replace(snapshot, **tables)


def _has_address(entries: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which entries have an address: in those of OOM events the column has the free memory."""
    known: NDArray[np.bool_] = (entries["action"] != Action.OOM) & (entries["address"] > 0)
    return known
