"""Growing segments: address space reserved once for each queue and kind, whose pages come and go as they are needed.

PyTorch calls them expandable segments. A piece that `room` or `leave` has chosen belongs to nobody until the port is
done with it, so nothing is locked meanwhile: a destructor or another thread may allocate in between.

A refusal of the port means that nothing happened. After anything else, a KeyboardInterrupt say, nobody knows: the piece
is an orphan until a `shrink` with nobody else at work has taken its memory away for certain.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from forebay.errors import DeviceError, OutOfMemory, WrongState

if TYPE_CHECKING:
    from forebay._core import Block
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.spi import Growable

__all__ = ["Growth", "Request"]


@dataclass(slots=True)
class Request:
    """One allocation that found no free block. Sizes in bytes."""

    nbytes: int  # as asked for
    size: int  # of its block
    segment: int  # of the segment that a device would be asked for
    small: bool
    queue: int
    home: int
    short: bool = False  # whether memory is, of heaps


class _Space(NamedTuple):
    address: int
    nbytes: int
    queue: int
    home: int


class Growth:
    """Brings pages to an allocator's pool and takes them away, and counts that there; `refusal` is the port's last."""

    def __init__(self, allocator: Allocator, port: Growable, wait: Callable[[int], object]) -> None:
        self._pool = allocator
        self._port = port
        self._wait = wait  # until the queue of that handle has done all that it has
        self._spaces: dict[int, _Space] = {}  # by address
        self._at_work = 0  # threads, and what came in between
        self._orphans = False  # whether there may be some
        self._unowned: deque[int] = deque()  # spaces that still have to go back to the port
        self._moving = threading.RLock()  # held while whole spaces come and go, and never while waiting for a queue
        self.refusal: OutOfMemory | None = None

    def grow(self, request: Request, space: int, page: int) -> Block | None:
        """A block where pages were added; None when the port has no more. New address space is `space` bytes."""
        self._at_work += 1
        done = False
        try:
            block = self._grow(request, space, page)
            done = True
            return block
        finally:  # calls nothing, so that nothing comes in between
            self._at_work -= 1
            self._orphans |= not done

    def shrink(self, small: bool, home: int) -> None:
        """Give back every page in which nothing is."""
        alone = self._at_work == 0
        self._at_work += 1
        done = False
        try:
            if alone and self._orphans:  # with nobody else at work, whatever is on its way is one
                self._orphans = False
                self._settle(self._pool.on_the_way())
            self._release_spaces()
            for address, nbytes in self._pool.idle_pages(small, home):
                space = self._space_of(address)
                if space is not None and self._pool.leave(address, nbytes):
                    self._decommit(space, address, nbytes)
            done = True
        finally:  # as above
            self._at_work -= 1
            self._orphans |= not done

    def forget(self, home: int) -> None:
        """Give back the spaces of a private pool that ended, in which no page ever was."""
        for space in tuple(self._spaces.values()):
            if space.home == home:
                self._give_up(space)

    def _grow(self, request: Request, space: int, page: int) -> Block | None:
        pool = self._pool
        while True:
            address, nbytes = pool.room(request.nbytes, request.queue, request.home)
            if address == 0:
                if not self._reserve(request, space, page):
                    return None
                continue
            if nbytes == 0:
                block = pool.take_at(address, request.nbytes, request.queue, request.home)
            elif self._space_of(address) is None:  # of before a fork: nobody's for good
                continue
            elif self._commit(address, nbytes):
                block = pool.came(address, request.nbytes)
            else:
                return None
            if block is not None:
                return block

    def _space_of(self, address: int) -> _Space | None:
        """The space that it lies in; None for one of before a fork."""
        for space in tuple(self._spaces.values()):  # one for each queue and kind; another thread may add one meanwhile
            if space.address <= address < space.address + space.nbytes:
                return space
        return None

    def _reserve(self, request: Request, space: int, page: int) -> bool:
        with self._moving:
            while space >= request.size:  # it cannot span two
                try:
                    address = self._port.reserve_space(space, page)
                    break
                except OutOfMemory as refusal:  # a limit on address space, perhaps: less may do
                    self.refusal = refusal.with_traceback(None)
                    space = space // 2 // page * page
            else:
                return False
            try:
                self._spaces[address] = _Space(address, space, request.queue, request.home)
                self._pool.adopt_space(address, space, page, request.queue, request.small, request.home)
            except BaseException:
                if not self._pool.owns(address):
                    self._spaces.pop(address, None)
                    self._port.release_space(address)
                raise
        return True

    def _commit(self, address: int, nbytes: int) -> bool:
        try:
            self._port.commit(address, nbytes)
        except DeviceError as refusal:
            self._pool.stayed(address)
            if not isinstance(refusal, OutOfMemory):
                raise
            self.refusal = refusal.with_traceback(None)
            return False
        self._pool.num_device_alloc += 1
        return True

    def _decommit(self, space: _Space, address: int, nbytes: int) -> None:
        try:
            self._wait(space.queue)
        except WrongState:  # this is that queue's own thread, which cannot wait for itself: another time
            self._pool.stayed(address)
            return
        try:
            self._port.decommit(address, nbytes)
        except DeviceError:
            self._pool.stayed(address)
            raise
        self._left(space, address)

    def _settle(self, orphans: list[tuple[int, int, bool]]) -> None:
        """No orphan stays as it was: its memory may be gone."""
        for address, nbytes, leaving in orphans:
            space = self._space_of(address)
            if space is None:
                continue
            try:
                self._wait(space.queue)
            except WrongState:
                self._orphans = True
                continue
            self._port.decommit(address, nbytes)
            if leaving:
                self._left(space, address)
            else:
                self._pool.stayed(address)

    def _left(self, space: _Space, address: int) -> None:
        self._pool.num_device_free += 1
        if self._pool.left(address):
            self._give_up(space)

    def _give_up(self, space: _Space) -> None:
        """The space goes, too, unless somebody grew it again meanwhile."""
        with self._moving:
            if space.address in self._spaces and self._pool.evict_space(space.address):
                del self._spaces[space.address]
                self._unowned.append(space.address)
        self._release_spaces()

    def _release_spaces(self) -> None:
        for _ in range(len(self._unowned)):
            with self._moving:
                if not self._unowned:
                    return
                address = self._unowned.popleft()
                try:
                    self._port.release_space(address)
                except DeviceError:
                    self._unowned.append(address)
                    raise
