"""Input liveness: detection of tensors that a capture used and that no longer exist at replay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from forebay.records.model import SEGMENT
from forebay.runtime.base.pool_ids import DEFAULT_POOL

if TYPE_CHECKING:
    from forebay.runtime.base.pool_ids import PoolId
    from forebay.runtime.memory.storage import Storage

__all__ = ["InputLiveness"]

_MOST_LISTED = 5


class InputLiveness:
    """Weak references to the storages that a capture reads or writes, with the pool of each."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[ref[Storage], PoolId]] = {}  # by address

    def note(self, storages: Iterable[Storage]) -> None:
        """Add storages that the capture uses."""
        for storage in storages:
            if storage.address and storage.address not in self._seen:
                self._seen[storage.address] = ref(storage), _pool_of(storage)

    def check(self, pools: list[PoolId]) -> None:
        """Raise RuntimeError if a storage outside these pools is dead. The graph keeps its own pools' memory."""
        dead = [address for address, (storage, pool) in self._seen.items() if storage() is None and pool not in pools]
        if dead:
            lines = [f"CUDA graph replay detected {len(dead)} dead tensor(s)."]
            lines += [f"Dead tensor #{at} (data_ptr={address:#x})" for at, address in enumerate(dead[:_MOST_LISTED], 1)]
            lines += [f"  ... and {len(dead) - _MOST_LISTED} more"] if len(dead) > _MOST_LISTED else []
            raise RuntimeError("\n".join(lines))


def _pool_of(storage: Storage) -> PoolId:
    """Return the id of the pool that the storage's memory is from. Scans all segments."""
    allocator, address = storage.opened.allocator, storage.address
    segments = np.frombuffer(allocator.tables(trace=False)[0], SEGMENT)
    containing = segments[(segments["address"] <= address) & (address < segments["address"] + segments["nbytes"])]
    return allocator.private.id_of(int(containing["pool"][0])) if len(containing) else DEFAULT_POOL
