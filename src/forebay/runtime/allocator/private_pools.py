"""Private pools for the allocations of a graph or a user's MemPool, and the routing of allocations to them.

# Note [Deleted pools]
A pool is deleted when it has neither users nor segments. An allocation is routed to a pool first and adds memory to it
later: the pool may be deleted in between, and then has memory that no table here shows. The native pool knows of it,
also if the allocation was interrupted, so deleted pools with memory are found there (`abandoned`) and emptied with the
cache; their blocks serve other requests. Numbers are never used again, so that a new pool with the id of a deleted one
has memory of its own. Rejected: PyTorch's use count, which can reach zero earlier and leaves blocks in a deleted pool,
and a count for each allocation that reserves, which would have to survive interrupts.
Test: tests/runtime/allocator/test_private_pools.py::test_memory_of_a_deleted_pool_is_released
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from forebay.errors import ForebayError
from forebay.runtime.allocator._reservations import PoolUser
from forebay.runtime.base.pool_ids import DEFAULT_POOL, PoolId

if TYPE_CHECKING:
    from forebay._core import Pool
    from forebay.runtime.allocator.segment_sources import MemoryResource
    from forebay.runtime.base.deferred_frees import OrderedSet

__all__ = ["PrivatePool", "PrivatePools", "RoutePredicate"]

RoutePredicate = Callable[[int], bool]  # True if an allocation for this queue, made now, is routed to the pool


@dataclass(slots=True)
class PrivatePool:
    """One private pool: its number in the native pool and its use count. At 0 users its memory may be released."""

    id: PoolId
    pool_number: int
    users: int = 0
    source: MemoryResource | None = None  # of its segments, if not the port


class PrivatePools:
    """All private pools of one device, by PoolId. Each has a number in the native pool; 0 is the default pool."""

    def __init__(self, pool: Pool, order: Callable[[], OrderedSet[PoolId]] = set[PoolId]) -> None:
        self._pool = pool
        self._pools: dict[PoolId, PrivatePool] = {}
        self._lenders = order()  # pools whose free memory serves other allocations as a last resort (use_on_oom)
        self._idle = order()  # pools without users
        self._ids: dict[int, PoolId] = {0: DEFAULT_POOL}  # by number, deleted pools included
        self._numbers = count(1)
        self._routes: tuple[tuple[PrivatePool, RoutePredicate], ...] = ()
        self._lock = threading.RLock()  # held only to change these tables; reentrant, as a destructor may run within
        self.ever_used: set[int] = set()  # numbers of pools that ever had memory
        self.ended: bool = False  # `end` removed all users; their later releases have no effect

    def __iter__(self) -> Iterator[PrivatePool]:
        return iter(tuple(self._pools.values()))

    def lenders(self) -> Iterator[PrivatePool]:
        return self._members(self._lenders)

    def idle(self) -> Iterator[PrivatePool]:
        """Return the pools without users, also those whose last `PoolUser` was deleted without `end_user`."""
        for pool in tuple(self._pools.values()):
            if pool.users == 0:
                self._idle.add(pool.id)
        return (pool for pool in self._members(self._idle) if pool.users == 0)

    def abandoned(self) -> list[int]:
        """Return the numbers of deleted pools that have memory: Note [Deleted pools]."""
        if len(self._ids) == 1:
            return []
        known = {pool.pool_number for pool in tuple(self._pools.values())}
        deleted = {number for number, pool in tuple(self._ids.items()) if pool != DEFAULT_POOL} - known
        return [number for number in self._pool.pools_with_segments() if number in deleted]

    def __getitem__(self, pool: PoolId) -> PrivatePool:
        try:
            return self._pools[pool]
        except KeyError:
            raise ForebayError(f"no memory pool {pool}: it was released or never created") from None

    def get(self, pool: PoolId) -> PrivatePool | None:
        """Return the pool, or None if it was deleted or never created."""
        return self._pools.get(pool)

    def add_common(self, pool_number: int) -> None:
        """Add a pool number that reports the default pool's id."""
        self._ids[pool_number] = DEFAULT_POOL

    def id_of(self, pool_number: int) -> PoolId:
        return self._ids[pool_number]

    def number_of(self, pool: PoolId) -> int:
        """Return the pool's number; for one that this device does not have, a number that only stands for the id."""
        with self._lock:
            if (found := self._pools.get(pool)) is not None:
                return found.pool_number
            known = next((number for number, each in self._ids.items() if each == pool and number), 0)
            if not known:
                self._ids[known := next(self._numbers)] = pool
            return known

    def source_of(self, pool_number: int) -> MemoryResource | None:
        """Return the source of the pool's segments, or None for the port."""
        found = self._pools.get(self._ids[pool_number]) if pool_number else None
        return None if found is None else found.source

    def create_or_incref(self, pool: PoolId, *, use_on_oom: bool = False, no_split: bool = False) -> PrivatePool:
        """Create a pool with one user, or add a user to the existing pool. Only `decref` removes it."""
        with self._lock:
            user = self.add_user(pool, use_on_oom=use_on_oom, no_split=no_split)
            found: PrivatePool = user.pool
            found.users += 1
            user.end()
            return found

    def add_user(
        self, pool: PoolId, *, use_on_oom: bool = False, no_split: bool = False, source: MemoryResource | None = None
    ) -> PoolUser:
        """Add a user to a pool, which is created if it does not exist, until `end_user` or the user's deletion.

        No interrupt can lose this user, nor remove it twice: Note [Interrupts arrive late].
        """
        with self._lock:
            while (found := self._pools.get(pool)) is not None:
                user = PoolUser(found)
                if self._pools.get(pool) is found:  # else a destructor has deleted the pool, which had no user
                    self._idle.discard(pool)
                    return user
            number = next(self._numbers)
            self._pool.create_pool(number, not no_split)
            self._ids[number] = pool
            user = PoolUser(made := PrivatePool(pool, number, source=source))
            self._pools[pool] = made
            if use_on_oom:
                self._lenders.add(pool)
            return user

    def end_user(self, user: PoolUser) -> None:
        """Remove a user. Repeatable."""
        with self._lock:
            found: PrivatePool | None = user.pool
            user.end()
            if found is not None and found.users == 0 and self._pools.get(found.id) is found:
                self._idle.add(found.id)
                self._lenders.discard(found.id)

    def push_route(self, pool: PoolId, covers: RoutePredicate, *, user: PoolUser | None = None) -> None:
        """Route allocations for which `covers(queue)` is true to this pool until `pop_route`.

        Routes nest; the most recent match wins. Adds a user to the pool, unless the caller has one.
        """
        with self._lock:
            if any(found.id == pool for found, _ in self._routes):
                raise ForebayError("beginAllocateToPool: already recording to mempool_id")
            routed = self.create_or_incref(pool) if user is None else user.pool
            self._routes = (*self._routes, (routed, covers))
            self._pool.routed = True

    def pop_route(self, pool: PoolId) -> None:
        """Remove the pool's route. The user that `push_route` added stays until `decref`, as in PyTorch."""
        with self._lock:
            routes = tuple((found, covers) for found, covers in self._routes if found.id != pool)
            if len(routes) == len(self._routes):
                raise ForebayError("endAllocatePool: not currently recording to mempool_id")
            self._routes = routes
            self._pool.routed = bool(routes)

    def remove_route(self, covers: RoutePredicate) -> None:
        """Remove the route with this predicate. Repeatable."""
        with self._lock:
            self._routes = routes = tuple(route for route in self._routes if route[1] != covers)
            self._pool.routed = bool(routes)

    @contextmanager
    def use(self, pool: PoolId) -> Iterator[None]:
        """Route this thread's allocations to the pool inside the with block."""
        me = threading.get_ident()
        self.push_route(pool, lambda _: threading.get_ident() == me)
        try:
            yield
        finally:
            self.pop_route(pool)
            self.decref(pool)

    def end(self) -> None:
        """Remove all users, as no memory will be allocated again: the pools' free memory can be released."""
        with self._lock:
            self.ended = True
            for pool in self._pools.values():
                pool.users = 0
                self._idle.add(pool.id)
                self._lenders.discard(pool.id)

    def stop_lending(self, pool: PoolId) -> None:
        """Reserve the pool's free memory for its own users from now on."""
        with self._lock:
            self._lenders.discard(self[pool].id)

    def decref(self, pool: PoolId) -> bool:
        """Remove one user and return True if it was the last."""
        with self._lock:
            if self.ended:
                return False
            found = self[pool]
            if found.users == 0:
                raise ForebayError(f"memory pool {pool} was released too often: it has no users left")
            found.users -= 1
            if found.users == 0:
                self._idle.add(found.id)
                self._lenders.discard(found.id)
            return found.users == 0

    def pool_of_allocation(self, queue: int) -> int:
        """Return the number of the pool that an allocation by this thread is routed to."""
        for pool, covers in reversed(self._routes):
            if covers(queue):
                return pool.pool_number
        return 0

    def delete_empty(self) -> None:
        """Delete the pools that have neither users nor memory."""
        with self._lock:
            for pool in self.idle():
                if self._pool.remove_pool(pool.pool_number):
                    self._pools.pop(pool.id, None)
                    self._idle.discard(pool.id)

    def after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, as a thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _members(self, order: OrderedSet[PoolId]) -> Iterator[PrivatePool]:
        for pool in tuple(order):
            if (found := self._pools.get(pool)) is not None:
                yield found
