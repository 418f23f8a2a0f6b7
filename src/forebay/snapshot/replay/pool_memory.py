"""Free memory of private pools, which other requests cannot use: its bytes, and the site that reserved it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forebay.records.model import Action, Snapshot
from forebay.records.sites import find_sites
from forebay.snapshot.formats.known_notes import pool_ids
from forebay.snapshot.replay.memory_state import MemoryState

__all__ = ["PoolMemory", "free_in_pools"]


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Free memory of one private pool, of a graph or a MemPool."""

    pool: int  #: its number, which is not 0
    name: str  #: its id in PyTorch, such as "(0, 1)", or else the number
    label: str  #: the site that reserved most of its segments with free memory; "" if unknown
    free_bytes: int  #: free bytes in its segments
    live_bytes: int  #: bytes of the blocks in them


def free_in_pools(snapshot: Snapshot, state: MemoryState) -> list[PoolMemory]:
    """Return the free memory of each private pool that has some, most first.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    state : MemoryState
        Its segments and blocks at one moment.
    """
    segments = state.segments[state.segments["pool"] != 0]
    free = segments["nbytes"] - segments["live"]
    ids, names, found = pool_ids(snapshot.notes), _reserving_labels(snapshot, state), []
    for pool in np.unique(segments["pool"][free > 0]).tolist():
        own = np.flatnonzero((segments["pool"] == pool) & (free > 0))
        by_label: dict[str, int] = {}
        for row in own.tolist():
            label = names.get(int(segments["address"][row]), "")
            by_label[label] = by_label.get(label, 0) + int(free[row])
        label = max(by_label, key=lambda each: (bool(each), by_label[each]))
        found.append(
            PoolMemory(
                pool, str(ids.get(pool, pool)), label, int(free[own].sum()),
                int(segments["live"][segments["pool"] == pool].sum()),
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: (-each.free_bytes, each.pool))


def _reserving_labels(snapshot: Snapshot, state: MemoryState) -> dict[int, str]:
    """Return the sites that reserved segments, by address, as far as the history or the file shows them."""
    sites, private = find_sites(snapshot), set(state.segments["address"][state.segments["pool"] != 0].tolist())
    rows = snapshot.trace[: state.moment]
    rows = rows[np.isin(rows["action"], (Action.RESERVE, Action.MAP)) & (rows["stack"] != 0)]
    own = snapshot.segments[snapshot.segments["stack"] != 0]
    pairs = [*zip(own["address"].tolist(), own["stack"].tolist(), strict=True)]
    pairs += zip(rows["address"].tolist(), rows["stack"].tolist(), strict=True)  # the newest entry of an address counts
    return {address: sites.labels[sites.of_stack[stack]] for address, stack in pairs if address in private}
