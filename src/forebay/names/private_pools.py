"""PyTorch's private functions for memory pools, which Inductor and other libraries call (`torch._C._cuda_…`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from forebay.errors import ForebayError
from forebay.names.kind import DeviceKind
from forebay.names.memory_statistics import find_open_device
from forebay.runtime.allocator.private_pools import RoutePredicate
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory import pool_checkpoint
from forebay.runtime.memory.pool_checkpoint import PoolCheckpoint
from forebay.runtime.memory.untyped_storage import storage_at
from forebay.runtime.streams.stream import current_stream_for, default_stream_for

__all__ = ["PrivatePoolFunctions"]


class PrivatePoolFunctions:
    """Functions for the private pools of one kind. A pool id is two ints, such as `graph_pool_handle()` returns.

    All raise TypeError for arguments of a wrong type, and ForebayError if the kind is not initialised or has no such
    device.
    """

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind

    def begin_allocate_to_pool(self, device: int, mempool_id: Sequence[int]) -> None:
        """Route all allocations on the device to a pool until `end_allocate_to_pool`; creates it or adds a user."""
        self._begin(device, mempool_id, lambda _: True)

    def begin_allocate_current_thread_to_pool(self, device: int, mempool_id: Sequence[int]) -> None:
        """As `begin_allocate_to_pool`, for the allocations of this thread."""
        me = threading.get_ident()
        self._begin(device, mempool_id, lambda _: threading.get_ident() == me)

    def begin_allocate_current_stream_to_pool(self, device: int, mempool_id: Sequence[int]) -> None:
        """As `begin_allocate_to_pool`, for allocations on the current stream, which must not be the default stream."""
        index, pool = _device_index(device), _pool_id(mempool_id)
        opened = self._kind.open_device_for_stream(index, "getCurrentStream")
        stream = current_stream_for(opened)
        if stream == default_stream_for(opened):
            raise ForebayError("Expected stream capture to be under way")
        handle = stream.handle
        opened.allocator.private.push_route(pool, lambda queue: queue == handle)

    def end_allocate_to_pool(self, device: int, mempool_id: Sequence[int]) -> None:
        """Stop routing allocations to the pool. Its user remains until `release_pool`."""
        opened, pool = self._arguments(device, mempool_id)
        opened.allocator.private.pop_route(pool)

    def release_pool(self, device: int, mempool_id: Sequence[int]) -> None:
        """Remove a user of the pool. The memory of a pool without users is released by `empty_cache`."""
        opened, pool = self._arguments(device, mempool_id)
        opened.allocator.private.decref(pool)

    def get_checkpoint_state(self, device: int, mempool_id: Sequence[int]) -> PoolCheckpoint:
        """Return the state of the pool for `set_checkpoint_pool_state`."""
        opened, pool = self._arguments(device, mempool_id)
        return pool_checkpoint.take(opened, pool)

    def set_checkpoint_pool_state(
        self,
        device: int,
        state: PoolCheckpoint | None,
        stale_storages: Sequence[int],
        storages_to_add_deleters_to: Sequence[int],
    ) -> None:
        """Return a pool to an earlier state.

        `stale_storages` own memory that is freed, and stop owning it; `storages_to_add_deleters_to` own none, and
        receive the live memory at their addresses. Both are lists of `UntypedStorage._cdata`.
        """
        index = _device_index(device)
        lists = [_storage_numbers(numbers) for numbers in (stale_storages, storages_to_add_deleters_to)]
        if state is None:
            raise ForebayError("Expected PrivatePoolState")
        if not isinstance(state, PoolCheckpoint):
            raise TypeError(f"expected the state of a pool, not {type(state).__name__}")
        stale, owners = ([storage_at(number) for number in numbers] for numbers in lists)
        pool_checkpoint.restore(self._open(index), state, stale, owners)

    def check_pool_live_allocations(
        self, device: int, mempool_id: Sequence[int], expected_live_allocations: set[int]
    ) -> bool:
        """Return True if the pool's live blocks are those at the addresses."""
        opened, pool = self._arguments(device, mempool_id)
        if not isinstance(expected_live_allocations, set):
            raise TypeError(f"expected a set of addresses, not {type(expected_live_allocations).__name__}")
        for address in expected_live_allocations:
            if not isinstance(address, int) or address < 0:
                raise ForebayError(f"not an address: {address!r}")
        return pool_checkpoint.has_live(opened, pool, expected_live_allocations)

    def _begin(self, device: int, mempool_id: Sequence[int], covers: RoutePredicate) -> None:
        opened, pool = self._arguments(device, mempool_id)
        opened.allocator.private.push_route(pool, covers)

    def _arguments(self, device: int, mempool_id: Sequence[int]) -> tuple[OpenDevice, PoolId]:
        index, pool = _device_index(device), _pool_id(mempool_id)
        return self._open(index), pool

    def _open(self, index: int) -> OpenDevice:
        opened = find_open_device(self._kind, index, "Invalid device argument")
        return self._kind.open_device(index) if opened is None else opened


_SMALLEST_INDEX, _LARGEST_INDEX = -128, 127  # of a device in PyTorch: one byte


def _device_index(device: Any) -> int:
    if not isinstance(device, int) or not _SMALLEST_INDEX <= device <= _LARGEST_INDEX:
        raise TypeError(f"expected the index of a device, not {device!r}")
    return int(device)


def _pool_id(mempool_id: Any) -> PoolId:
    match mempool_id:
        case [int(first), int(second)] if first >= 0 and second >= 0:
            return first, second
    raise TypeError(f"expected the id of a memory pool, two non-negative ints, not {mempool_id!r}")


def _storage_numbers(numbers: Any) -> list[int]:
    if isinstance(numbers, Sequence) and all(isinstance(number, int) for number in numbers):
        return [*numbers]
    raise TypeError(f"expected a list of storages by their _cdata, not {numbers!r}")
