"""Checkpoints of private pools: the state to which Inductor returns a pool before it captures another graph.

# Note [Pool checkpoints]
A replay does not change the allocator's tables, so they do not show the tensors that the replay made. A checkpoint of
the pool, taken after the capture, does. `restore` frees what is live and makes live what was live then, in PyTorch's
sequence of frees and allocations, which statistics and the history show. It checks before its first change that it can
complete: half a restoration would leave tensors without memory. A live block knows the `Block` object that owns it, and
the restoration says where the memory of each owner went, so that no two objects free one block. Blocks that no tensor
owns afterwards are kept by address, like those of `caching_allocator_alloc`. Rejected: undoing a failed restoration,
whose traces in the history would stay.
Test: tests/runtime/memory/test_pool_checkpoint.py::test_error_has_no_effect
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay._core import SavedBlock
    from forebay.runtime.allocator.private_pools import PrivatePool
    from forebay.runtime.base.pool_ids import PoolId
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.memory.untyped_storage import StorageBase

__all__ = ["PoolCheckpoint", "has_live", "restore", "take"]


class PoolCheckpoint:
    """The blocks of one private pool at one moment."""

    def __init__(self, pool: PoolId, segments: list[list[SavedBlock]]) -> None:
        self.pool = pool
        self.segments = segments

    def live(self) -> list[int]:
        """Return the addresses of the blocks that were live."""
        return [block["address"] for segment in self.segments for block in segment if block["live"]]


def take(opened: OpenDevice, pool: PoolId) -> PoolCheckpoint:
    """Return the state of a pool. Raises ForebayError if the pool does not exist or one of its frees is pending."""
    found = _find(opened, pool, "Could not find pool of id")
    try:
        return PoolCheckpoint(pool, opened.allocator.checkpoint(found.pool_number))
    except RuntimeError as error:
        raise ForebayError(str(error)) from None


def has_live(opened: OpenDevice, pool: PoolId, addresses: set[int]) -> bool:
    """Return True if the pool's live blocks are those at the addresses. Raises ForebayError for an unknown pool."""
    found = _find(opened, pool, "Could not find pool of id")
    return set(opened.allocator.live_addresses(found.pool_number)) == addresses


def restore(
    opened: OpenDevice, state: PoolCheckpoint, stale: Sequence[StorageBase], owners: Sequence[StorageBase]
) -> None:
    """Return a pool to a checkpoint.

    `stale` are storages whose memory is live now; they stop owning it. `owners` own no memory, and receive the blocks
    at their addresses. Raises ForebayError, without any effect, if a block of the pool would be freed although its
    storage is not in `stale`, or if the memory of the checkpoint does not exist any more.
    """
    allocator = opened.allocator
    pool = _find(opened, state.pool, "Could not find private pool id")
    if pool.users == 0:
        raise ForebayError("Not expected to checkpoint freeable graph")
    before, after = allocator.live_addresses(pool.pool_number), state.live()
    stale = tuple(dict.fromkeys(stale))
    wanted = {storage.address: storage for storage in owners}
    _check(before, after, stale, wanted)
    try:
        unowned = set(allocator.restore(pool.pool_number, state.segments))
    except RuntimeError as error:
        raise ForebayError(str(error)) from None
    for storage in stale:
        block = storage.disown()
        if not block.freed:
            opened.raw_blocks[storage.address] = block
    for address in before:
        if (raw := opened.raw_blocks.get(address)) is not None and raw.freed:
            del opened.raw_blocks[address]
    for address in after:
        receiver = wanted.get(address)
        if receiver is None and address not in unowned:
            continue
        block = allocator.claim(address)
        if block is None:  # freed by another thread
            continue
        if receiver is None:
            opened.raw_blocks[address] = block
        else:
            opened.raw_blocks.pop(address, None)
            receiver.own(block)


def _find(opened: OpenDevice, pool: PoolId, missing: str) -> PrivatePool:
    found = opened.allocator.private.get(pool)
    if found is None:
        raise ForebayError(missing)
    return found


def _check(before: list[int], after: list[int], stale: Sequence[StorageBase], wanted: dict[int, StorageBase]) -> None:
    """Raise ForebayError if the owners of the blocks before and after a restoration do not match the storages."""
    live = set(before)
    if len(stale) < len(live.difference(after)):
        raise ForebayError("Any stale tensors which are being manually freed must be passed to set checkpoint")
    for storage in stale:
        if storage.address not in live:
            raise ForebayError(f"the stale storage at {storage.address:#x} has no live memory of the pool")
        if not storage.owned:
            raise ForebayError(f"the stale storage at {storage.address:#x} does not own its memory")
    for address in after:
        if (receiver := wanted.get(address)) is not None and receiver.owner is not None:
            raise ForebayError(" Not expecting deleter function")
