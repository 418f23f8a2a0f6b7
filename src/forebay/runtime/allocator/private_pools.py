"""Private pools: homes of their own for what a graph or a user's MemPool allocates, and who is sent there now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay._core import Pool
    from forebay.runtime.allocator.pending_frees import Order
    from forebay.runtime.allocator.segment_sources import Source

__all__ = ["COMMON", "Covers", "PoolId", "PrivatePool", "PrivatePools"]

PoolId = tuple[int, int]  # (0, n) of a user's MemPool, (n, 0) of a graph
Covers = Callable[[int], bool]  # whether an allocation for this queue, made now, goes there
COMMON: PoolId = (0, 0)


@dataclass(slots=True)
class PrivatePool:
    """One pool: its home in the native pool, and how many use it. Used by nobody, its memory may go."""

    id: PoolId
    home: int
    users: int = 1
    source: Source | None = None  # of its segments, if that is not the port


class PrivatePools:
    """All private pools of one device. `home_of(queue)` is where an allocation of this thread goes now."""

    def __init__(self, pool: Pool, order: Callable[[], Order[PoolId]] = set[PoolId]) -> None:
        self._pool = pool
        self._of: dict[PoolId, PrivatePool] = {}
        self._lenders = order()  # whose idle memory others may have when there is no other
        self._idle = order()  # used by nobody
        self._ids: dict[int, PoolId] = {0: COMMON}  # of every home there ever was
        self._homes = count(1)
        self._routes: tuple[tuple[PrivatePool, Covers], ...] = ()
        self._changing = threading.RLock()  # held for changes of these tables alone; a destructor may come in between
        self.grown: set[int] = set()  # homes that ever had memory

    def __iter__(self) -> Iterator[PrivatePool]:
        return iter(tuple(self._of.values()))

    def lenders(self) -> Iterator[PrivatePool]:
        return self._members(self._lenders)

    def idle(self) -> Iterator[PrivatePool]:
        return self._members(self._idle)

    def __getitem__(self, pool: PoolId) -> PrivatePool:
        try:
            return self._of[pool]
        except KeyError:
            raise ForebayError(f"there is no memory pool {pool}: it was released, or never made") from None

    def add_common(self, home: int) -> None:
        """One more home that is nobody's own."""
        self._ids[home] = COMMON

    def id_of(self, home: int) -> PoolId:
        return self._ids[home]

    def source_of(self, home: int) -> Source | None:
        """What brings the segments of that home, if it is not the port."""
        found = self._of.get(self._ids[home]) if home else None
        return None if found is None else found.source

    def make(
        self, pool: PoolId, *, use_on_oom: bool = False, no_split: bool = False, source: Source | None = None
    ) -> PrivatePool:
        """A new pool with one user, or one more user of it."""
        with self._changing:
            found = self._of.get(pool)
            if found is not None:
                found.users += 1
                self._idle.discard(found.id)
                return found
            home = next(self._homes)
            self._pool.make_home(home, not no_split)
            self._ids[home] = pool
            made = self._of[pool] = PrivatePool(pool, home, source=source)
            if use_on_oom:
                self._lenders.add(made.id)
            return made

    def begin(self, pool: PoolId, covers: Covers) -> None:
        """Send what `covers` says there, until `end`. Routes nest: the newest that covers an allocation has it."""
        with self._changing:
            if any(found.id == pool for found, _ in self._routes):
                raise ForebayError("beginAllocateToPool: already recording to mempool_id")
            self._routes = (*self._routes, (self.make(pool), covers))
            self._pool.routed = True

    def end(self, pool: PoolId) -> None:
        """The route goes. Its user stays until `leave`, as in PyTorch."""
        with self._changing:
            routes = tuple((found, covers) for found, covers in self._routes if found.id != pool)
            if len(routes) == len(self._routes):
                raise ForebayError("endAllocatePool: not currently recording to mempool_id")
            self._routes = routes
            self._pool.routed = bool(routes)

    @contextmanager
    def use(self, pool: PoolId) -> Iterator[None]:
        """This thread's allocations go there meanwhile."""
        me = threading.get_ident()
        self.begin(pool, lambda _: threading.get_ident() == me)
        try:
            yield
        finally:
            self.end(pool)
            self.leave(pool)

    def stop_lending(self, pool: PoolId) -> None:
        """Its idle memory is its users' alone from now on."""
        with self._changing:
            self._lenders.discard(self[pool].id)

    def leave(self, pool: PoolId) -> bool:
        """One user less. True: that was the last."""
        with self._changing:
            found = self[pool]
            if found.users == 0:
                raise ForebayError(f"memory pool {pool} has no user left: it was released twice")
            found.users -= 1
            if found.users == 0:
                self._idle.add(found.id)
                self._lenders.discard(found.id)
            return found.users == 0

    def home_of(self, queue: int) -> int:
        for pool, covers in reversed(self._routes):
            if covers(queue):
                return pool.home
        return 0

    def forget_empty(self) -> None:
        """Pools without users and without memory are no more."""
        with self._changing:
            for pool in self.idle():
                if self._pool.drop_home(pool.home):
                    self._of.pop(pool.id, None)
                    self._idle.discard(pool.id)

    def abandon(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._changing = threading.RLock()

    def _members(self, order: Order[PoolId]) -> Iterator[PrivatePool]:
        for pool in tuple(order):
            if (found := self._of.get(pool)) is not None:
                yield found
