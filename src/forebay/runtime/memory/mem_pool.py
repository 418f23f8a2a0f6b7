"""Private memory pools that a program creates and allocates from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from forebay._base.device_spec import DeviceLike
from forebay.backends.common._disposal import Disposable
from forebay.errors import ForebayError, warn_unraisable
from forebay.runtime.devices.current import opened_for
from forebay.runtime.history import torch_schema

if TYPE_CHECKING:
    from forebay._base.device_spec import Device
    from forebay.runtime.allocator._reservations import PoolUser
    from forebay.runtime.allocator.segment_sources import MemoryResource
    from forebay.runtime.base.pool_ids import PoolId
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["MemPool", "new_id", "use_mem_pool"]

_numbers = count(1)


def new_id() -> PoolId:
    """Return an unused pool id. (`torch.cuda.graph_pool_handle`)"""
    return 0, next(_numbers)


class _Uses(Disposable):
    """The devices on which a pool has been used, with its user there, which the destructor removes.

    Not part of MemPool, as a program may derive a class with a destructor from that.
    """

    def __init__(self, pool: PoolId) -> None:
        self.devices: dict[Device, tuple[OpenDevice, PoolUser | None]] = {}
        self._pool = pool

    def opened(self, device: Device) -> OpenDevice | None:
        """Return the open device, or None if the pool has not been used there."""
        found = self.devices.get(device)
        return None if found is None else found[0]

    def _dispose(self) -> None:
        while devices := getattr(self, "devices", None):
            device, (opened, user) = next(iter(devices.items()))
            try:
                if user is None:
                    opened.allocator.empty_pool(self._pool)
                else:
                    opened.allocator.release_pool_of(user, self._pool)
            except ForebayError as error:
                warn_unraisable(f"{opened.device}: memory pool {self._pool} could not be released: {error}")
            devices.pop(device, None)  # at the end: an interrupted release is repeated


class MemPool:
    """Private memory pool, which shares no segment with other allocations.

    As `torch.cuda.MemPool`. When the pool is deleted, cached segments are released at once, and the others when their
    blocks have been freed.

    Parameters
    ----------
    use_on_oom : bool, default False
        Let other allocations use the pool's cached memory before they fail.
    no_split : bool, default False
        Do not split the pool's segments into smaller blocks.
    source : Source, optional
        Object that supplies the pool's segments; the device by default.
    home : Device, optional
        The only device where the options apply and the pool has a user of its own, as in PyTorch; by default all.

    Examples
    --------
    >>> import forebay
    >>> pool = forebay.memory.MemPool()
    >>> with forebay.memory.use_mem_pool(pool, "cpu"):
    ...     block = forebay.allocate(1000, "cpu")
    >>> pool.use_count("cpu")
    1
    """

    def __init__(
        self,
        *,
        use_on_oom: bool = False,
        no_split: bool = False,
        source: MemoryResource | None = None,
        home: Device | None = None,
    ) -> None:
        self._id = new_id()
        self._use_on_oom, self._no_split = use_on_oom, no_split
        self.source = source
        self.home = home
        self._uses = _Uses(self._id)
        self._lock = threading.Lock()

    @property
    def id(self) -> PoolId:
        """The number of the pool, a pair as of `graph_pool_handle`."""
        return self._id

    def use_count(self, device: DeviceLike | None = None) -> int:
        """Return the number of users of the pool on a device.

        As `torch.cuda.MemPool.use_count`. Opens the device.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        int
            1 for the pool itself, plus 1 for each active `use_mem_pool` and each graph that uses the pool.
        """
        return self.users(opened_for(device))

    def users(self, opened: OpenDevice) -> int:
        """Return the number of users of the pool on an open device.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        """
        return opened.allocator.private[self.id].users if self._uses.opened(opened.device) is opened else 1

    def snapshot(self, device: DeviceLike | None = None) -> list[dict[str, Any]]:
        """Return the segments of the pool on a device.

        As `torch.cuda.MemPool.snapshot`. Opens the device.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        list of dict
            Segments in the schema of `torch.cuda.memory_snapshot`.
        """
        return torch_schema.snapshot_pool(opened_for(device).allocator, self.id)

    def register(self, opened: OpenDevice) -> None:
        """Register the pool with the allocator of an open device. Used by the runtime.

        Parameters
        ----------
        opened : OpenDevice
            The device.
        """
        with self._lock:
            if self._uses.opened(opened.device) is opened:
                return
            # First use on this device, or on the device of another emulation.
            user = None
            if self.home in (None, opened.device):
                user = opened.allocator.private.add_user(
                    self.id, use_on_oom=self._use_on_oom, no_split=self._no_split, source=self.source
                )
            self._uses.devices[opened.device] = opened, user

    def __repr__(self) -> str:
        return f"<MemPool {self.id}>"


@contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike | None = None) -> Iterator[None]:
    """Allocate from the pool inside the `with` block, in this thread and on one device.

    As `torch.cuda.use_mem_pool`. Uses nest; the innermost pool is used. Opens the device.

    Parameters
    ----------
    pool : MemPool
        The pool.
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    TypeError
        If `pool` is not a MemPool.
    ForebayError
        If the pool is in use on the device already.
    """
    if not isinstance(pool, MemPool):
        raise TypeError(f"expected a MemPool, not {type(pool).__name__}")
    opened = opened_for(device)
    pool.register(opened)
    with opened.allocator.private.use(pool.id):
        yield
