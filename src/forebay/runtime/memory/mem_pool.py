"""A user's own memory pool: what is allocated while it is used comes from segments of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError, complain
from forebay.runtime.devices.current import opened_for
from forebay.runtime.history import torch_schema

if TYPE_CHECKING:
    from forebay.device_spec import Device
    from forebay.runtime.allocator.private_pools import PoolId
    from forebay.runtime.allocator.segment_sources import Source
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["MemPool", "new_id", "use_mem_pool"]

_numbers = count(1)


def new_id() -> PoolId:
    """Of a pool that is none yet. (`torch.cuda.graph_pool_handle`)"""
    return 0, next(_numbers)


class MemPool:
    """Memory apart from all other (`torch.cuda.MemPool`): its blocks go to no one else, and it gets no one else's.

    `use_on_oom` lends its idle memory to others before they run out; with `no_split` its blocks stay whole; `source`
    brings its segments instead of the device. When it goes, its idle memory goes back, and the rest with its blocks.

    >>> import forebay
    >>> pool = forebay.memory.MemPool()
    >>> with forebay.memory.use_mem_pool(pool, "host:0"):
    ...     block = forebay.allocate(1000, "host:0")
    >>> pool.use_count("host:0")
    1
    """

    def __init__(self, *, use_on_oom: bool = False, no_split: bool = False, source: Source | None = None) -> None:
        self.id: PoolId = new_id()
        self._use_on_oom, self._no_split = use_on_oom, no_split
        self.source = source
        self._homes: dict[Device, OpenDevice] = {}  # where it was used
        self._joining = threading.Lock()

    def use_count(self, device: Device | str | int | None = None) -> int:
        """How many use it on the device: itself, and each `use_mem_pool` or graph under way."""
        return self.users(opened_for(device))

    def users(self, opened: OpenDevice) -> int:
        return opened.allocator.private[self.id].users if self._homes.get(opened.device) is opened else 1

    def snapshot(self, device: Device | str | int | None = None) -> list[dict[str, Any]]:
        """Its segments on the device, in the schema of `torch.cuda.memory_snapshot`."""
        return torch_schema.of_pool(opened_for(device).allocator, self.id)

    def join(self, opened: OpenDevice) -> None:
        """For the runtime: be a pool of that device, too."""
        with self._joining:
            if self._homes.get(opened.device) is opened:
                return
            # It was never used there, or the device was opened anew after a fork.
            opened.allocator.private.make(
                self.id, use_on_oom=self._use_on_oom, no_split=self._no_split, source=self.source
            )
            self._homes[opened.device] = opened

    def __del__(self) -> None:
        for opened in getattr(self, "_homes", {}).values():
            try:
                opened.allocator.release_pool(self.id)
            except ForebayError as error:
                complain(f"{opened.device}: memory pool {self.id} could not be given back: {error}")

    def __repr__(self) -> str:
        return f"<MemPool {self.id}>"


@contextmanager
def use_mem_pool(pool: MemPool, device: Device | str | int | None = None) -> Iterator[None]:
    """What this thread allocates on the device comes from the pool meanwhile (`torch.cuda.use_mem_pool`).

    Uses nest, and the innermost counts. Opens the device. Raises ForebayError for a pool that is in use already.
    """
    if not isinstance(pool, MemPool):
        raise TypeError(f"expected a MemPool, not {type(pool).__name__}")
    opened = opened_for(device)
    pool.join(opened)
    with opened.allocator.private.use(pool.id):
        yield
