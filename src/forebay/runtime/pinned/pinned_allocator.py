"""Pinned host memory, cached as PyTorch's CachingHostAllocator does (torch-semantics 3.17).

A block is never split and never merged. It waits in its bucket of sizes, and the one that came last goes first. Queues
that copy from or to it are told to it; once it is given back, it is free when they have come past that point.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from forebay.errors import DeviceError, ForebayError, Forked, WrongState, complain
from forebay.runtime.base import capture_state
from forebay.runtime.pinned import transitions as steps
from forebay.runtime.pinned.history import ALL, STATE, Frames, PinnedHistory, segment
from forebay.runtime.pinned.poller import Poller
from forebay.runtime.pinned.tables import HostBlock, Loan, Step, Tables, Times, Versions
from forebay.runtime.settings import allocator_settings as rules

if TYPE_CHECKING:
    from forebay.spi import PinnedHost, Queue

__all__ = ["PinnedAllocator", "PinnedBlock"]

_MOVES = ("current", "peak", "allocated", "freed")


class PinnedBlock:
    """Pinned memory that is lent to a program; dropping the last reference gives it back."""

    __slots__ = ("__weakref__", "_allocator", "_loan")

    def __init__(self, allocator: PinnedAllocator, loan: Loan) -> None:
        self._allocator = allocator
        self._loan = loan

    def __del__(self) -> None:
        try:
            self.free()
        except Exception as error:  # noqa: BLE001 -- a destructor has nobody to raise to
            complain(f"pinned memory could not be given back: {error}")
        except BaseException:  # a signal came in between, and there will be no other destructor
            self.free()
            raise

    @property
    def address(self) -> int:
        return self._alive().address

    @property
    def size(self) -> int:
        """What was handed out, which is as much as was asked for or more."""
        return self._alive().size

    @property
    def freed(self) -> bool:
        return self._loan.freed

    def used_on(self, queue: Queue) -> None:
        """The queue copies from it or to it; it is not lent to anybody else before that is done."""
        self._alive()
        self._loan.uses[id(queue)] = queue

    def free(self) -> None:
        """Give it back now. A second time does nothing."""
        self._allocator.give_back(self._loan)

    def _alive(self) -> HostBlock:
        block = self._loan.block
        if block is None or self._loan.freed:
            raise ValueError("the pinned block was given back already")
        return block


class PinnedAllocator:
    """Pinned memory of one port. What it counts is what `torch.cuda.host_memory_stats` counts.

    `settings` tells the rules of the moment; `clock` is in nanoseconds.
    """

    def __init__(
        self,
        name: str,
        port: PinnedHost,
        settings: Callable[[], rules.AllocatorSettings] = lambda: rules.DEFAULT,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.name = name
        self.history = PinnedHistory()
        self._port: PinnedHost | None = port  # None in a forked child
        self._settings = settings
        self._clock = clock
        self._versions = Versions(Tables({}))
        self._loans: dict[int, weakref.ref[Loan]] = {}  # those that are not back, and some that are
        self._unmarked: deque[Loan] = deque()  # given back, and their queues were not asked yet
        self._line: deque[tuple[Queue, int, _Waiting]] = deque()  # in the order in which they were given back
        self._closed = False
        self._alone = False  # there should be a thread, and cannot be
        self._poller = Poller(self)

    # What a program does

    def allocate(self, nbytes: int) -> PinnedBlock:
        """A block of at least so many bytes. Raises ValueError below 1, DeviceError where the system pins no more."""
        if nbytes <= 0:
            raise ValueError(f"cannot pin {nbytes} bytes: a block has at least 1")
        if self._port is None:
            raise Forked(f"{self.name} was opened before this process was forked")
        frames = self.history.stack(STATE)
        if self._alone or not self._settings().pinned_use_background_threads:
            self.process(frames)
        loan = Loan()
        self._loans[id(loan)] = weakref.ref(loan, partial(self._loans.pop, id(loan)))
        lent = PinnedBlock(self, loan)  # made first: whatever happens from now on, its end gives the memory back
        size = self._rounded(nbytes)
        new = not self._versions.change(steps.take(size, loan))
        if new:
            if self._settings().pinned_use_background_threads:
                self._alone = not self._poll()
            self._grow(self._port, size, loan)
        self.history.lent(lent._alive(), frames, new=new)  # noqa: SLF001 -- of this module
        return lent

    def give_back(self, loan: Loan) -> None:
        """What a block's end calls. Doing it twice, or half and then again, does it once."""
        if loan.freed or self._port is None:
            return
        self._versions.now()  # lets it get its block, if whoever took it was interrupted
        if loan.block is None:
            return
        frames = self.history.stack(ALL)
        self.history.note("free_requested", loan.block, frames or loan.block.frames)
        if not loan.uses:
            try:
                self._put(loan, frames)
            finally:
                loan.freed = loan.back
        else:
            self._unmarked.append(loan)
            loan.freed = True
            if not self._closed:
                self._mark()
                self._poller.call()

    def empty(self) -> None:
        """Give back to the system all that is free, but for the reserved segment."""
        self.process()
        self._versions.change(steps.clear)
        self._release()

    def process(self, frames: Frames | None = None) -> bool:
        """Take back blocks whose queues are done, up to the first that are not. Whether any still wait."""
        if self._closed:
            return False
        with suppress(ForebayError):  # it was told when the block was given back; next time it may work
            self._mark()
        while (first := _first(self._line)) is not None:
            queue, tick, waiting = first
            if tick and queue.reached() < tick:
                break
            waiting.queues.discard(id(queue))
            if not waiting.queues:
                self._put(waiting.loan, frames)
            with suppress(ValueError):  # another thread was quicker
                self._line.remove(first)
        return bool(self._line) or bool(self._unmarked)

    # Memory comes and goes

    def _rounded(self, nbytes: int) -> int:
        now = self._settings()
        rounds = nbytes <= min(now.pinned_max_round_threshold, now.pinned_max_cached_size)
        return 1 << (nbytes - 1).bit_length() if rounds else nbytes

    def _grow(self, port: PinnedHost, size: int, loan: Loan) -> None:
        if self._versions.now().segment is None:
            self._reserve(port)
        if self._versions.change(steps.cut(size, loan)):
            return
        try:
            self._pin_block(port, size, loan)
        except DeviceError:
            if not any(bucket.free for bucket in self._versions.now().buckets.values()):
                raise
            self.empty()  # PyTorch fails here, with memory in its hands
            self._pin_block(port, size, loan)

    def _pin_block(self, port: PinnedHost, size: int, loan: Loan) -> None:
        begin, address = self._clock(), 0
        try:
            address = port.pin(size)
            self._versions.change(steps.adopt(HostBlock(address, size), loan, self._since(begin)))
        finally:
            self._versions.now()
            if address and loan.block is None:  # a signal came in between
                port.unpin(address)

    def _reserve(self, port: PinnedHost) -> None:
        size = self._settings().pinned_reserve_segment_size
        if not size:
            self._versions.change(steps.reserve(0, 0, None))
            return
        begin, address = self._clock(), 0
        try:
            address = port.pin(size)
            self._versions.change(steps.reserve(address, size, self._since(begin)))
        finally:
            if address and self._versions.now().segment != (address, size):  # or another thread was quicker
                port.unpin(address)

    def _put(self, loan: Loan, frames: Frames | None) -> None:
        back = self._versions.change(steps.give_back(loan, self._settings().pinned_max_cached_size))
        if back and loan.block is not None:
            self.history.back(loan.block, frames)
        self._release()

    def _release(self) -> None:
        """Unpin what left the cache."""
        for block in self._versions.now().leaving:
            if self._port is not None:
                self._unpin(self._port, block)

    def _unpin(self, port: PinnedHost, block: HostBlock) -> None:
        me, begin = object(), self._clock()
        end: Step | None = steps.stay(block, me)
        try:
            if self._versions.change(steps.claim(block, me)):
                end = None  # interrupted now, nobody knows whose it is: then it stays where it is, and counted
                if not block.reserved:
                    port.unpin(block.address)
                end = steps.gone(block, me, None if block.reserved else self._since(begin))
                self.history.note("segment_free", block)
        except DeviceError:
            end = steps.stay(block, me)
            raise
        finally:
            if end is not None:
                self._versions.change(end)

    def _since(self, begin: int) -> int:
        return (self._clock() - begin) // 1000

    # Blocks that queues still use

    def _mark(self) -> None:
        """Remember how far the queues must come for each block that was given back."""
        while (loan := _first(self._unmarked)) is not None:
            marks = [(queue, _signal(queue)) for queue in loan.uses.values()]
            waiting = _Waiting(loan, set(loan.uses))
            self._line.extend([(queue, tick, waiting) for queue, tick in marks])
            with suppress(ValueError):  # another thread was quicker: to stand in line twice does no harm
                self._unmarked.remove(loan)

    def _poll(self) -> bool:
        """Whether somebody looks after what waits from now on."""
        return self._poller.start()

    # What it tells

    def stats_as_nested_dict(self) -> dict[str, Any]:
        """All that is counted, in PyTorch's order. Sizes are bytes, times µs."""
        return _counted(self._versions.now())

    @staticmethod
    def nothing_counted() -> dict[str, Any]:
        """What one that was never used would tell."""
        return _counted(Tables({}))

    def stats(self) -> dict[str, int]:
        """The same with flat keys ("active_bytes.current"), in alphabetical order."""
        flat: dict[str, int] = {}
        for name, value in self.stats_as_nested_dict().items():
            flat |= (
                {f"{name}.{key}": number for key, number in value.items()} if isinstance(value, dict) else {name: value}
            )
        return dict(sorted(flat.items()))

    def reset_peaks(self) -> None:
        self._versions.change(steps.reset_peaks)

    def reset_accumulated(self) -> None:
        self._versions.change(steps.reset_sums)

    def segments(self) -> list[dict[str, Any]]:
        """Every block, as the snapshots of PyTorch have it; nothing unless the history is on."""
        if not self.history.recording:
            return []
        tables = self._versions.now()
        idle = [segment(block, allocated=False, active=False) for block in _idle(tables)]
        used = [segment(block, allocated=not loan.freed, active=True) for loan, block in self._lent()]
        return sorted([*idle, *used], key=lambda row: row["address"])

    def _lent(self) -> list[tuple[Loan, HostBlock]]:
        loans = [loan() for loan in tuple(self._loans.values())]
        return [(loan, loan.block) for loan in loans if loan is not None and loan.block is not None and not loan.back]

    def broken(self) -> str | None:
        """The first rule of the tables that does not hold; None when all do. Only while nobody else is at work."""
        tables = self._versions.now()
        used = [block for _, block in self._lent()]
        blocks = [*_idle(tables), *used]
        requests, nbytes = steps.in_use(tables)
        spans = sorted((block.address, block.address + block.size) for block in blocks)
        holding = {
            "what is in use is counted": (requests[0], nbytes[0]) == (len(used), sum(block.size for block in used)),
            "all blocks are counted": (tables.allocations[0], tables.nbytes[0])
            == (len(blocks), sum(block.size for block in blocks)),
            "no two blocks overlap": all(end <= start for (_, end), (start, _) in pairwise(spans)),
            "parts of the reserved segment are counted": tables.parts == sum(block.reserved for block in blocks),
            "a block is in its bucket": all(
                steps.bucket_of(block.size) == at for at, bucket in tables.buckets.items() for block in bucket.free
            ),
        }
        return next((rule for rule, holds in holding.items() if not holds), None)

    # At the end of a process, and in a child

    def close(self) -> None:
        """The queues are closed, perhaps before their work was done: what they used stays as it is from now on."""
        self._closed = True
        self._poller.stop()

    def abandon(self) -> None:
        """In a forked child: what there is stays as it is until the child ends, as it is not the port's to unpin."""
        self._port = None


class _Waiting:
    """A loan that was given back, and the queues it still waits for."""

    __slots__ = ("loan", "queues")

    def __init__(self, loan: Loan, queues: set[int]) -> None:
        self.loan = loan
        self.queues = queues


def _first(items: deque[Any]) -> Any:
    try:
        return items[0]
    except IndexError:
        return None


def _signal(queue: Queue) -> int:
    """The tick behind all that is queued; 0 for a queue that was closed, or that a fork left behind."""
    try:
        return capture_state.signal(queue)
    except (WrongState, Forked):
        return 0


def _idle(tables: Tables) -> tuple[HostBlock, ...]:
    free = (block for bucket in tables.buckets.values() for block in bucket.free)
    return (*free, *tables.leaving, *(block for block, _ in tables.going))


def _counted(tables: Tables) -> dict[str, Any]:
    requests, nbytes = steps.in_use(tables)
    counts = {
        "allocations": tables.allocations,
        "active_requests": requests,
        "allocated_bytes": tables.nbytes,
        "active_bytes": nbytes,
    }
    return {
        "num_host_alloc": tables.allocations[2],
        "num_host_free": tables.allocations[3],
        **{name: dict(zip(_MOVES, count, strict=True)) for name, count in counts.items()},
        "host_alloc_time": _shown(tables.pinning),
        "host_free_time": _shown(tables.unpinning),
    }


def _shown(times: Times) -> dict[str, int]:
    average = times.total // times.calls if times.calls else 0
    return {"total": times.total, "max": times.most, "min": times.least, "count": times.calls, "avg": average}
