"""Expandable segments: address space reserved once per queue and block size class, whose pages are committed on demand.

A page range chosen by `choose_pages` (to commit) or `begin_decommit` (to decommit) belongs to this thread until the
port call has returned. No lock is held during the call: a destructor or another thread may allocate in between.

A DeviceError means that the port did nothing. After any other exception (KeyboardInterrupt) the state of the range is
unknown: it is an orphan until a `shrink` without concurrent calls has decommitted it.
"""

# Note [Decommit protocol]
# Scenario. One thread decommits free pages. Another thread queues work that uses them: it launches a graph that was
# captured before, while these pages belonged to a tensor. (A thread that queues work on a tensor keeps its block, so
# that its pages are not free.) If the work is executed after the decommit, a device reports an illegal address at
# best, and on this machine SIGSEGV ends the process. The same holds for segments and their release.
#
# Invariant. A decommit takes its place in the order of all queues: behind the work that was submitted before it on
# these pages, and before all later work, which is refused. Its steps, each finished before the next:
#   1. the pool lists the range as Decommitting (`begin_decommit`, `evict`): no allocation gets it;
#   2. the allocator waits for its queues, outside all locks;
#   3. the port notes the release (`ReleaseLog.note`), removes the range from `memory()`, and notes it again. A thread
#      that submits a graph later sees the changed count, finds the range missing and raises error 700. The first note
#      is for a capture that ends in between: it would take memory that is neither listed nor released for the host's;
#   4. the port waits for what was submitted until then (`BaseHostPort.drain`), also on queues that are being
#      captured, whose earlier work is not behind any tick of the allocator, and on queues of other devices;
#   5. the system unmaps the pages.
# A launch checks the count and submits in one step (`Queue.run_program_at`): it comes before 3, and 4 waits for it, or
# after 3. A commit is the reverse: no work on the pages is queued, as of 4; the system maps them, then `memory()` has
# them, and then the pool lists them, so that all work on them is submitted later. An old graph may use them as soon as
# `memory()` has them, whose count includes them before: `PageLedger.begin_commit` and `admit` are two steps. What a
# capture uses may be released before the capture ends: a `ReleaseWatch` reports that, otherwise it would count as
# memory of the host, which is never checked.
#
# All callers pass here: empty_cache, garbage collection, recovery from out-of-memory, idle memory, and deleted pools.
# At the end of an emulation and of the process, queues are closed before anything is unmapped.
#
# Rejected. A second search for used pages before step 5, or a retry: work may be submitted after any search. Steps 3
# and 4 before 2, in one wait: ports of other packages have no step 3. A check of each address by the queue's thread:
# it costs every command, and a released segment may be memory of others, to which no check applies. Addresses that a
# program keeps of memory that it has freed, as numbers, are not protected: they may end the process, as on the host.
#
# A driver of real devices has no step 4: it checks addresses itself, and reports 700 for a launch that comes between.
#
# Test: tests/process/test_stress.py, tests/backends/host/test_decommit_order.py

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from forebay.errors import DeviceError, OutOfMemory, WrongState, without_frames

if TYPE_CHECKING:
    from forebay._core import Block
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.allocator.request import AllocRequest
    from forebay.spi import Growable

__all__ = ["ExpandableSegments"]


class _Space(NamedTuple):
    address: int
    nbytes: int
    pool_number: int


class ExpandableSegments:
    """The address spaces of one allocator. Commits and decommits pages."""

    def __init__(self, allocator: Allocator, port: Growable) -> None:
        self._pool = allocator
        self._port = port
        self._spaces: dict[int, _Space] = {}  # by address
        self._active_calls = 0  # of all threads, reentrant calls included
        self._has_orphans = False  # True: there may be some
        self._spaces_to_release: deque[int] = deque()  # no longer in `_spaces`, still reserved from the port
        self._space_lock = threading.RLock()  # held to reserve and release spaces, never while waiting for a queue
        self.last_error: OutOfMemory | None = None  # the port's
        self.num_committed: int = 0  # calls that committed pages
        self.num_decommitted: int = 0

    def grow(self, request: AllocRequest, space: int, page: int) -> Block | None:
        """Return a block in newly committed pages, or None if the port has no memory.

        If new address space is needed, `space` bytes are reserved.
        """
        self._active_calls += 1
        done = False
        try:
            block = self._grow(request, space, page)
            done = True
            return block
        finally:  # makes no calls, so that no signal handler can run in here
            self._active_calls -= 1
            self._has_orphans |= not done

    def after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, and take the calls of the parent's other threads as interrupted."""
        self._space_lock = threading.RLock()
        self._has_orphans |= self._active_calls > 0
        self._active_calls = 0

    def shrink(self, small: bool, pool_number: int, stack: int = 0) -> None:
        """Decommit every free page. `stack` is that of the caller, for the history."""
        alone = self._active_calls == 0
        self._active_calls += 1
        done = False
        try:
            if alone and self._has_orphans:  # without concurrent calls every range in transition is an orphan
                self._has_orphans = False
                self._reclaim_orphans(self._pool.page_transitions())
                for each in tuple(self._spaces.values()):  # also of a decommit that was complete but for this
                    self._release_if_empty(each)
            self._release_spaces()
            idle = self._pool.idle_pages(small, pool_number)
            self._decommit([each for each in idle if self._pool.begin_decommit(*each)], stack)
            done = True
        finally:  # as above
            self._active_calls -= 1
            self._has_orphans |= not done

    def release_unused_spaces(self, pool_number: int) -> None:
        """Release the spaces of a deleted private pool in which no page was ever committed."""
        for space in tuple(self._spaces.values()):
            if space.pool_number == pool_number:
                self._release_if_empty(space)

    def _grow(self, request: AllocRequest, space: int, page: int) -> Block | None:
        pool = self._pool
        while True:
            address, nbytes = pool.choose_pages(request.nbytes, request.queue, request.pool_number)
            if address == 0:
                if not self._reserve(request, space, page):
                    return None
                continue
            if nbytes == 0:
                block = pool.allocate_at(address, request.nbytes, request.queue, request.pool_number)
            elif self._commit(address, nbytes):
                block = pool.commit_done(address, request.nbytes)
            else:
                return None
            if block is not None:
                return block

    def _space_of(self, address: int) -> _Space | None:
        """Return the space of an address, or None if a signal handler or another thread has released it."""
        spaces = tuple(self._spaces.values())  # one per queue and size class; copied, as other threads add some
        return next((space for space in spaces if space.address <= address < space.address + space.nbytes), None)

    def reserve(self, nbytes: int, page: int, queue: int, small: bool, pool_number: int) -> int:
        """Reserve address space and return its address. Raises OutOfMemory if the port has not as much."""
        with self._space_lock:
            address = self._port.reserve_space(nbytes, page)
            try:
                self._spaces[address] = _Space(address, nbytes, pool_number)
                self._pool.adopt_expandable(address, nbytes, page, queue, small, pool_number)
            except BaseException:
                if not self._pool.owns(address):
                    self._spaces.pop(address, None)
                    self._port.release_space(address)
                raise
            return address

    def _reserve(self, request: AllocRequest, space: int, page: int) -> bool:
        with self._space_lock:
            while space >= request.size:  # a block cannot span two spaces
                try:
                    self.reserve(space, page, request.queue, request.small, request.pool_number)
                except OutOfMemory as error:  # possibly a limit on address space: retry with half
                    self.last_error = without_frames(error)
                    space = space // 2 // page * page
                else:
                    return True
        return False

    def _commit(self, address: int, nbytes: int) -> bool:
        try:
            self._port.commit(address, nbytes)
        except DeviceError as error:
            self._pool.rollback(address)
            if not isinstance(error, OutOfMemory):
                raise
            self.last_error = without_frames(error)
            return False
        self.num_committed += 1
        return True

    def _decommit(self, ranges: list[tuple[int, int]], stack: int) -> None:
        """Decommit ranges once all queues are done.

        Pages are free in the order of their own queue only, so work of other queues that uses them may still be queued.
        """
        remaining = deque(ranges)
        try:
            if ranges:
                self._pool.synchronize()
            while remaining:
                address, nbytes = remaining[0]
                try:
                    self._port.decommit(address, nbytes)
                except DeviceError:
                    self._pool.rollback(address)
                    raise
                remaining.popleft()
                self._finish_decommit(address, stack)
        except WrongState:  # this is a queue's own thread, which cannot wait for itself
            for address, _ in remaining:
                self._pool.rollback(address)

    def _reclaim_orphans(self, orphans: list[tuple[int, int, bool]]) -> None:
        """Decommit all orphans. None is restored, as its memory may be gone."""
        try:
            self._pool.synchronize()
            for address, nbytes, decommitting in orphans:
                self._port.decommit(address, nbytes)
                if decommitting:
                    self._finish_decommit(address, 0)
                else:
                    self._pool.rollback(address)
        except WrongState:  # as above
            self._has_orphans = True

    def _finish_decommit(self, address: int, stack: int) -> None:
        self.num_decommitted += 1
        if self._pool.decommit_done(address, stack) and (space := self._space_of(address)) is not None:
            self._release_if_empty(space)

    def _release_if_empty(self, space: _Space) -> None:
        """Release the space unless another thread has committed pages in it."""
        with self._space_lock:
            if space.address in self._spaces and self._pool.evict_expandable(space.address):
                del self._spaces[space.address]
                self._spaces_to_release.append(space.address)
        self._release_spaces()

    def _release_spaces(self) -> None:
        for _ in range(len(self._spaces_to_release)):
            with self._space_lock:
                if not self._spaces_to_release:
                    return
                address = self._spaces_to_release.popleft()
                try:
                    self._port.release_space(address)
                except DeviceError:
                    self._spaces_to_release.append(address)
                    raise
