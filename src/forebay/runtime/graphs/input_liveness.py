"""Which tensors a capture used that are not of its own pools, so that a replay can tell that one is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from forebay.runtime.allocator.private_pools import COMMON
from forebay.snapshot.model import SEGMENT

if TYPE_CHECKING:
    from forebay.runtime.allocator.private_pools import PoolId
    from forebay.runtime.memory.storage import Storage

__all__ = ["Inputs"]

_SHOWN = 5


class Inputs:
    """Memory of others that a graph reads or writes. Knows it weakly."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[ref[Storage], PoolId]] = {}  # by address; and the pool it is of

    def note(self, storages: Iterable[Storage]) -> None:
        """A capture uses these."""
        for storage in storages:
            if storage.address and storage.address not in self._seen:
                self._seen[storage.address] = ref(storage), _pool_of(storage)

    def check(self, pools: list[PoolId]) -> None:
        """RuntimeError where one is gone that is not of these pools, whose memory stays."""
        gone = [address for address, (seen, pool) in self._seen.items() if seen() is None and pool not in pools]
        if gone:
            lines = [f"CUDA graph replay detected {len(gone)} dead tensor(s)."]
            lines += [f"Dead tensor #{at} (data_ptr={address:#x})" for at, address in enumerate(gone[:_SHOWN], 1)]
            lines += [f"  ... and {len(gone) - _SHOWN} more"] if len(gone) > _SHOWN else []
            raise RuntimeError("\n".join(lines))


def _pool_of(storage: Storage) -> PoolId:
    """The pool that its memory is from. Looks at all segments."""
    allocator, address = storage.opened.allocator, storage.address
    segments = np.frombuffer(allocator.tables(trace=False)[0], SEGMENT)
    here = segments[(segments["address"] <= address) & (address < segments["address"] + segments["nbytes"])]
    return allocator.private.id_of(int(here["home"][0])) if len(here) else COMMON
