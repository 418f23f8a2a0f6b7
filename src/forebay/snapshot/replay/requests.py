"""The requests of a recorded history, repeated on a simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forebay._core import Block
from forebay.records.model import Action
from forebay.simulate import Device
from forebay.simulate.initial_memory import InitialMemory
from forebay.snapshot.replay.initial_state import InitialState, LiveBlock
from forebay.snapshot.replay.placement import place

__all__ = ["BEFORE", "DEFERRED_FREE", "RequestRows", "Requests"]

BEFORE = -1  # the "entry" of blocks that were live before the history began
DEFERRED_FREE = 16  # in addition to Action: a completed free that had to wait for other queues


@dataclass(frozen=True, slots=True, eq=False)
class RequestRows:
    """The requests of a history, one row each, in the order of the history."""

    entry: NDArray[np.int64]  #: index of the history entry
    action: NDArray[np.uint8]  #: an `Action`, or `DEFERRED_FREE`
    slot: NDArray[np.uint32]  #: row of `addresses`
    nbytes: NDArray[np.uint64]  #: requested bytes
    queue: NDArray[np.uint64]  #: the stream
    pool: NDArray[np.uint32]  #: the private pool; 0: none
    addresses: NDArray[np.uint64]  #: the recorded addresses, ascending

    @classmethod
    def of(cls, columns: Sequence[NDArray[np.integer]]) -> RequestRows:
        """Return the rows of columns: index, action, address, size, queue and private pool."""
        entry, action, address, nbytes, queue, pool = columns
        addresses, slot = np.unique(address.astype(np.uint64, copy=False), return_inverse=True)
        as_64, as_32 = (partial(np.ascontiguousarray, dtype=kind) for kind in (np.uint64, np.uint32))
        return cls(
            entry.astype(np.int64, copy=False), np.ascontiguousarray(action, np.uint8), as_32(slot), as_64(nbytes),
            as_64(queue), as_32(pool), addresses,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.entry)


class Requests:
    """One replay: a simulated device and its live blocks by recorded address.

    Blocks are freed explicitly: a sampling profiler, such as that of Dask's workers, keeps frames that refer to them.
    """

    def __init__(self, device: Device, rows: RequestRows) -> None:
        self._device, self._rows = device, rows
        self._live: list[Block | None] = [None] * len(rows.addresses)  # by slot
        self._older: dict[int, Block] = {}  # those at addresses that no row has, by address
        self._pending: list[Block | None] = [None] * len(rows.addresses)  # freed, but still in use by other queues
        self._pools: dict[int, tuple[int, int]] = {}
        self._numbers: dict[int, int] = {}  # of the private pools in the allocator
        self.refused: list[int] = []
        self.stopped: bool = False

    def place_initial(self, initial: InitialState) -> None:
        """Place the segments and blocks of a recorded state.

        Raises OutOfMemory if the device is smaller, and ValueError if the sizes are impossible.
        """
        for address, block in place(InitialMemory(self._device), initial, self._number_of).items():
            self._keep(address, block)
        self._device.reset_accumulated_stats()

    def allocate_initial(self, blocks: list[LiveBlock]) -> None:
        """Allocate the blocks that were live before the history began, wherever they fit."""
        try:
            for block in blocks:
                self._keep(block.address, self._allocate(block.requested or block.nbytes, block.queue, block.pool))
        except MemoryError:
            self._stop(BEFORE)
        self._device.reset_accumulated_stats()

    def replay(self, begin: int, end: int) -> None:
        """Replay rows of the history."""
        rows = self._rows
        part = slice(begin, end)
        action, slot, nbytes = rows.action[part], rows.slot[part], rows.nbytes[part]
        queue, pool = rows.queue[part], rows.pool[part]
        repeat, at = self._device.allocator.repeat, 0
        while not self.stopped:
            at = repeat(self._live, self._pending, self._numbers, action, slot, nbytes, queue, pool, at)
            if at == end - begin:
                return
            request = int(slot[at]), int(nbytes[at]), int(queue[at]), int(pool[at])
            try:
                self._apply(begin + at, int(action[at]), *request)
            except MemoryError:
                self._retry(begin + at, *request)
            at += 1

    def _keep(self, address: int, block: Block) -> None:
        """Note a block that is older than the history."""
        slot = int(np.searchsorted(self._rows.addresses, np.uint64(address)))
        if slot < len(self._live) and int(self._rows.addresses[slot]) == address:
            self._live[slot] = block
        else:
            self._older[address] = block

    def _pop(self, slot: int) -> Block | None:
        block, self._live[slot] = self._live[slot], None
        return block

    def _apply(self, row: int, action: int, slot: int, nbytes: int, queue: int, pool: int) -> None:
        if action == Action.ALLOC:
            self._live[slot] = self._allocate(nbytes, queue, pool)
        elif action == Action.FREE_COMPLETED:
            _free(self._pop(slot))
        elif action == Action.FREE_REQUESTED:
            self._pending[slot] = self._pop(slot)
        elif action == DEFERRED_FREE:
            block, self._pending[slot] = self._pending[slot], None
            _free(block)
        elif action == Action.OOM:
            try:
                self._allocate(nbytes, queue, pool).free()
            except MemoryError:
                self.refused.append(int(self._rows.entry[row]))
        else:
            self._device.empty_cache()

    def _retry(self, row: int, slot: int, nbytes: int, queue: int, pool: int) -> None:
        """Complete deferred frees and allocate again, as an allocator does before it raises."""
        for block in self._pending:
            _free(block)
        self._pending = [None] * len(self._pending)
        try:
            self._live[slot] = self._allocate(nbytes, queue, pool)
        except MemoryError:
            self._stop(int(self._rows.entry[row]))

    def _stop(self, entry: int) -> None:
        self.refused.append(entry)
        self.stopped = True

    def _allocate(self, nbytes: int, queue: int, pool: int) -> Block:
        if pool == 0:
            return self._device.allocator.allocate(nbytes, queue)
        with self._device.use_pool(self._pool_of(pool)):
            return self._device.allocator.allocate(nbytes, queue)

    def _number_of(self, pool: int) -> int:
        """Return the allocator's number for a private pool of the recording."""
        if pool:
            self._pool_of(pool)
        return self._numbers[pool] if pool else 0

    def _pool_of(self, pool: int) -> tuple[int, int]:
        if pool not in self._pools:
            self._pools[pool] = made = self._device.new_pool()
            self._numbers[pool] = self._device.allocator.private[made].pool_number
        return self._pools[pool]


def _free(block: Block | None) -> None:
    """Free a block; None, whose allocation is not in the history, has no effect."""
    if block is not None:
        block.free()
