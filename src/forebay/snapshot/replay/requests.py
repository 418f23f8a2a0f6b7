"""The requests of a recorded history, repeated on a simulated device."""

from __future__ import annotations

from typing import Protocol

from forebay.records.model import Action
from forebay.simulate import Device
from forebay.simulate.initial_memory import InitialMemory
from forebay.snapshot.replay.initial_state import InitialState, LiveBlock
from forebay.snapshot.replay.placement import place

__all__ = ["BEFORE", "DEFERRED_FREE", "Requests"]

BEFORE = -1  # the "entry" of blocks that were live before the history began
DEFERRED_FREE = 16  # in addition to Action: a completed free that had to wait for other queues


class _Block(Protocol):
    """A block that can be freed."""

    def free(self) -> None:
        """Free the block."""


class _UnknownBlock:
    """A block whose allocation is not in the history."""

    def free(self) -> None:
        """Do nothing."""


_UNKNOWN = _UnknownBlock()


class Requests:
    """One replay: a simulated device and its live blocks by recorded address.

    Blocks are freed explicitly: a sampling profiler, such as that of Dask's workers, keeps frames that refer to them.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._live: dict[int, _Block] = {}
        self._pending_frees: dict[int, _Block] = {}  # freed, but still in use by other queues
        self._pools: dict[int, tuple[int, int]] = {}
        self.refused: list[int] = []
        self.stopped: bool = False

    def place_initial(self, initial: InitialState) -> None:
        """Place the segments and blocks of a recorded state.

        Raises OutOfMemory if the device is smaller, and ValueError if the sizes are impossible.
        """
        self._live |= place(InitialMemory(self._device), initial, self._number_of)
        self._device.reset_accumulated_stats()

    def allocate_initial(self, blocks: list[LiveBlock]) -> None:
        """Allocate the blocks that were live before the history began, wherever they fit."""
        try:
            for block in blocks:
                self._live[block.address] = self._allocate(block.requested or block.nbytes, block.queue, block.pool)
        except MemoryError:
            self._stop(BEFORE)
        self._device.reset_accumulated_stats()

    def replay(self, *columns: list[int]) -> None:
        """Replay a chunk of the history."""
        live, pop, allocate = self._live, self._live.pop, self._device.allocator.allocate
        rows = zip(*columns, strict=True)
        while not self.stopped:
            try:
                for entry, action, address, nbytes, queue, pool in rows:
                    if action == 3:  # free_completed; looking up the enum member would double the cost
                        pop(address, _UNKNOWN).free()
                    elif action == 1 and pool == 0:  # alloc
                        live[address] = allocate(nbytes, queue)
                    else:
                        self._apply(entry, action, address, nbytes, queue, pool)
            except MemoryError:
                self._retry(entry, address, nbytes, queue, pool)
            else:
                return

    def _apply(self, entry: int, action: int, address: int, nbytes: int, queue: int, pool: int) -> None:
        if action == Action.ALLOC:
            self._live[address] = self._allocate(nbytes, queue, pool)
        elif action == Action.FREE_REQUESTED:
            self._pending_frees[address] = self._live.pop(address, _UNKNOWN)
        elif action == DEFERRED_FREE:
            self._pending_frees.pop(address, _UNKNOWN).free()
        elif action == Action.OOM:
            try:
                self._allocate(nbytes, queue, pool).free()
            except MemoryError:
                self.refused.append(entry)
        else:
            self._device.empty_cache()

    def _retry(self, entry: int, address: int, nbytes: int, queue: int, pool: int) -> None:
        """Complete deferred frees and allocate again, as an allocator does before it raises."""
        for block in self._pending_frees.values():
            block.free()
        self._pending_frees.clear()
        try:
            self._live[address] = self._allocate(nbytes, queue, pool)
        except MemoryError:
            self._stop(entry)

    def _stop(self, entry: int) -> None:
        self.refused.append(entry)
        self.stopped = True

    def _allocate(self, nbytes: int, queue: int, pool: int) -> _Block:
        if pool == 0:
            return self._device.allocator.allocate(nbytes, queue)
        with self._device.use_pool(self._pool_of(pool)):
            return self._device.allocator.allocate(nbytes, queue)

    def _number_of(self, pool: int) -> int:
        """Return the allocator's number for a private pool of the recording."""
        return self._device.allocator.private[self._pool_of(pool)].pool_number if pool else 0

    def _pool_of(self, pool: int) -> tuple[int, int]:
        if pool not in self._pools:
            self._pools[pool] = self._device.new_pool()
        return self._pools[pool]
