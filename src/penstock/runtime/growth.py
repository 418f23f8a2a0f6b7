"""Growing segments: address space reserved once for each queue and kind, whose pages come and go as they are needed.

PyTorch calls them expandable segments. A piece that `room` or `leave` has chosen belongs to nobody until the port is
done with it, so nothing is locked meanwhile: a destructor or another thread may allocate in between.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import OutOfMemory

if TYPE_CHECKING:
    from penstock._core import Block, Pool
    from penstock.spi import Growable

__all__ = ["Growth", "Request"]


class Request(NamedTuple):
    """One allocation that found no free block. Sizes in bytes."""

    nbytes: int  # as asked for
    size: int  # of its block
    segment: int  # of the segment that a device would be asked for
    small: bool
    queue: int
    home: int


class _Space(NamedTuple):
    address: int
    nbytes: int
    queue: int


class Growth:
    """Brings pages to a pool and takes them away; `came` and `went` are how often."""

    def __init__(self, pool: Pool, port: Growable, wait: Callable[[int], object]) -> None:
        self._pool = pool
        self._port = port
        self._wait = wait  # until the queue of that handle has done all that it has
        self._spaces: list[_Space] = []  # by address
        self.came = self.went = 0

    def grow(self, request: Request, space: int, page: int) -> Block | None:
        """A block where pages were added; None when the port has no more. New address space is `space` bytes."""
        pool = self._pool
        while True:
            address, nbytes = pool.room(request.nbytes, request.queue, request.home)
            if address == 0:
                if not self._reserve(request, space, page):
                    return None
                continue
            if nbytes == 0:
                block = pool.take_at(address, request.nbytes)
            elif self._space_of(address) is None:  # of before a fork: nobody's for good
                continue
            elif self._commit(address, nbytes):
                block = pool.came(address, request.nbytes)
            else:
                return None
            if block is not None:
                return block

    def shrink(self, small: bool, home: int) -> None:
        """Give back every page in which nothing is."""
        for address, nbytes in self._pool.idle_pages(small, home):
            space = self._space_of(address)
            if space is not None and self._pool.leave(address, nbytes):
                self._decommit(space, address, nbytes)

    def _space_of(self, address: int) -> _Space | None:
        """The space that it lies in; None for one of before a fork."""
        at = bisect_right(self._spaces, address, key=lambda space: space.address) - 1
        if at < 0 or address >= self._spaces[at].address + self._spaces[at].nbytes:
            return None
        return self._spaces[at]

    def _reserve(self, request: Request, space: int, page: int) -> bool:
        try:
            address = self._port.reserve_space(space, page)
        except OutOfMemory:
            return False
        try:
            self._pool.adopt_space(address, space, page, request.queue, request.small, request.home)
            insort(self._spaces, _Space(address, space, request.queue))
        except BaseException:
            if not self._pool.owns(address):
                self._port.release_space(address)
            raise
        return True

    def _commit(self, address: int, nbytes: int) -> bool:
        try:
            self._port.commit(address, nbytes)
        except OutOfMemory:
            self._pool.stayed(address)
            return False
        except BaseException:
            self._pool.stayed(address)
            raise
        self.came += 1
        return True

    def _decommit(self, space: _Space, address: int, nbytes: int) -> None:
        try:
            self._wait(space.queue)
            self._port.decommit(address, nbytes)
        except BaseException:
            self._pool.stayed(address)
            raise
        self.went += 1
        if self._pool.left(address) and self._pool.evict_space(space.address):
            self._spaces.remove(space)
            self._port.release_space(space.address)
