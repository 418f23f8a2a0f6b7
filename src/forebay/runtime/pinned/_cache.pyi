"""Cache of pinned host blocks: free blocks by size bucket, the reserved segment and the statistics.

# Note [Pinned tables change in one step]
An array of pinned memory may be dropped anywhere: in another thread, by the garbage collector during an allocation, in
a signal handler. A lock could then be waited for by its own holder. So every method is one compiled step, `unpin` apart
from the port's function: the GIL keeps other threads out, and signal handlers run between Python instructions only. The
garbage collector could run inside, so a method that changes the tables creates tracked objects only before. Rejected: a
lock and a list of deferred changes, which an exception between two statements leaves half applied; and immutable tables
with atomic updates, which are safe as well, but 350 lines and four times as slow.
Test: tests/runtime/pinned/test_pinned_allocator.py::test_interruption_at_any_line_leaks_at_most_one_block
"""

from collections.abc import Callable
from typing import Any, Self

from typing_extensions import disjoint_base

@disjoint_base
class HostBlock:
    """A piece of pinned memory, from `pin` to `unpin`. Never split or merged."""

    frames: Any  # the allocating stack, while a history is recorded
    def __new__(cls, address: int, size: int) -> Self: ...  # a block in use keeps its size: no `__init__`
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def reserved(self) -> bool: ...  # part of the reserved segment

@disjoint_base
class PinnedLease:
    """One use of a block, from `allocate` until the free completes."""

    freed: bool  # freed by its owner; queues may still use the block
    def __init__(self) -> None: ...
    @property
    def block(self) -> HostBlock | None: ...
    @property
    def returned(self) -> bool: ...  # the free is complete
    @property
    def uses(self) -> dict[int, Any]: ...  # queues that copy from or to the block, by identity

@disjoint_base
class PinnedCache:
    def __init__(self) -> None: ...

    # Each allocates for the lease. `allocate` reuses the most recently freed block of the bucket that is large enough;
    # `add` takes a newly pinned block, which took the driver `duration` µs; `allocate_from_segment` takes the next part
    # of the reserved segment, which is split anew only after all of its blocks were evicted.
    def allocate(self, size: int, lease: PinnedLease) -> bool: ...
    def add(self, block: HostBlock, lease: PinnedLease, duration: int) -> None: ...
    def allocate_from_segment(self, size: int, lease: PinnedLease) -> bool: ...
    def set_segment(self, address: int, size: int, duration: int = -1) -> bool: ...  # once; size 0 disables it
    @property
    def segment(self) -> tuple[int, int] | None: ...  # address and size; None before `set_segment`
    @property
    def segment_blocks(self) -> int: ...

    # Frees the lease's block once: evicts it if it has more than `max_cached_size` bytes, else caches it.
    def free(self, lease: PinnedLease, max_cached_size: int) -> bool: ...
    def evict_all(self) -> None: ...  # free blocks of the smallest bucket first
    def evicted(self) -> list[HostBlock]: ...

    # Unpins an evicted block with the port's function, unless another thread does. After DeviceError, the block returns
    # to the cache as the last candidate for reuse. The clock is in nanoseconds.
    def unpin(self, block: HostBlock, unpin: Callable[[int], object], clock: Callable[[], int]) -> bool: ...
    def free_blocks(self) -> dict[int, list[HostBlock]]: ...  # by bucket: 2^n is the largest size in bucket n
    def inactive(self) -> list[HostBlock]: ...  # free, evicted, and being unpinned
    def totals(self) -> dict[str, dict[str, int]]: ...  # sizes in bytes, times in µs
    def reset_peaks(self) -> None: ...
    def reset_accumulated(self) -> None: ...
