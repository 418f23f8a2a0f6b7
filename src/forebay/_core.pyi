"""Native core: a memory pool with statistics and history, and in-order queues on native threads."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, Self, TypedDict, final, type_check_only

from typing_extensions import disjoint_base

MIN_BLOCK_SIZE: Final[int]  # bytes; every block is a multiple of it
MAX_SMALL_BYTES: Final[int]  # of the largest block of the small size class, 1 MiB
MAX_REQUEST_BYTES: Final[int]  # requests of this size or more are refused without asking the device, 1 EiB
METRICS: Final[tuple[str, ...]]  # PyTorch's names of the statistics, in the order of `Pool.counts`

# Return a copy of the template for each row of the columns, whose values are stored under the keys. With `leaves`, the
# dicts contain no reference cycles and are untracked by the garbage collector.
def make_dicts(
    template: dict[str, Any], keys: list[str], columns: list[list[Any]], leaves: bool
) -> list[dict[str, Any]]: ...

@final
class Block:
    """Memory allocated from a pool; freed when the last reference is dropped."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...  # requested
    @property
    def size(self) -> int: ...  # allocated, a multiple of MIN_BLOCK_SIZE
    @property
    def queue(self) -> int: ...
    @property
    def pool(self) -> Pool: ...
    @property
    def freed(self) -> bool: ...
    def record_stream(self, queue: int) -> None: ...
    def free(self) -> None: ...

@type_check_only
class SavedBlock(TypedDict):
    """A block of a private pool at a checkpoint."""

    address: int
    size: int
    live: bool
    committed: bool

@disjoint_base
class Pool:
    """Best-fit pool of memory blocks, ordered by size, segment age and address. It makes no driver calls.

    `allocate` returns `try_allocate`, or if no free block fits, the result of the subclass's `_refill`. A block
    freed after `record_stream` is pending until `complete_free` is called with its token; `deferred` lists such
    blocks until `acknowledge_deferred`, and `_defer` is called for each. `pool_number` is that of a private pool,
    whose blocks other pools do not use; 0 is the default.
    """

    def __init__(self) -> None: ...
    # `borrowed`: for a request of another pool, which gets no block of an expandable segment.
    def try_allocate(
        self, nbytes: int, queue: int = 0, pool_number: int = 0, borrowed: bool = False
    ) -> Block | None: ...
    def allocate(self, nbytes: int, queue: int = 0) -> Block: ...
    # Repeat rows of a history from row `at`. `live` has a block or None for each slot: an allocation (1) stores one,
    # a free (3) frees it; a requested free (2) moves it to `pending`, where 16 frees it. `pools` has the numbers of
    # private pools. Return the first row that is another action, has another pool, or for which no free block fits.
    def repeat(
        self,
        live: list[Block | None],
        pending: list[Block | None],
        pools: dict[int, int],
        action: Any,  # array of uint8
        slot: Any,  # of uint32
        nbytes: Any,  # of uint64, as queue
        queue: Any,
        pool: Any,  # of uint32
        at: int,
    ) -> int: ...
    def _route(self, queue: int) -> int: ...  # the private pool for an allocation by this thread
    def _refill(self, nbytes: int, queue: int, pool_number: int) -> Block: ...
    def _defer(self) -> None: ...
    def _process_pending_frees(self, queue: int) -> None: ...
    has_pending_frees: bool  # `allocate` calls `_process_pending_frees` first
    routed: bool  # `allocate` calls `_route`
    def deferred(self) -> list[tuple[int, list[int], int, int]]: ...  # token, queues that use the block, pool id, queue
    def acknowledge_deferred(self, token: int) -> None: ...  # acknowledge this and all earlier entries of `deferred`
    # Complete the free; False if none is pending under the token. `stack`, here and below: see `caller_stack`.
    def complete_free(self, token: int, stack: int = 0) -> bool: ...

    # Sizes in bytes; the parameters are explained in native/pool/policy.hpp.
    def set_policy(
        self,
        divisions: Sequence[int],  # 16 of them
        max_split: int,
        max_non_split_rounding: int,
        large_segment: int,
        expandable: bool,
        track_age: bool,
        exact_segments: bool,
        buffer_alignment: int = 0,  # nonzero: segments are heaps
        heap_limit: int = 0,  # bytes in heaps; 0: unlimited
    ) -> None: ...
    def block_size(self, nbytes: int) -> int: ...  # for a request of `nbytes`
    def segment_size(self, nbytes: int) -> tuple[int, bool]: ...  # for a request, and whether it is of the small class

    # Segments
    def adopt(
        self, address: int, nbytes: int, queue: int, small: bool, rank: int | None = None, pool_number: int = 0
    ) -> None: ...
    def adopt_and_allocate(
        self, need: int, address: int, size: int, queue: int, pool_number: int = 0
    ) -> Block | None: ...
    # Address, size, queue, age, whether it is expandable, and the request clock when it became free, of each wholly
    # free segment. `expandable` adds expandable segments and heaps; `parts` also lists free parts of segments in use.
    def evictable(
        self, small: bool, pool_number: int = 0, expandable: bool = False, parts: bool = False
    ) -> list[tuple[int, int, int, int, bool, int]]: ...
    def evict(self, address: int, stack: int = 0) -> bool: ...  # False unless a wholly free segment starts there
    def owns(self, address: int) -> bool: ...

    # Expandable segments. `choose_pages` chooses an (address, size) range to commit. Size 0: the block there
    # suffices, and `allocate_at` allocates it; address 0: more address space is needed. A transition begins with
    # `choose_pages`, `begin_commit` (commit exactly this range) or `begin_decommit` (decommit), and ends with
    # `commit_done`, `decommit_done` or `rollback`.
    def adopt_expandable(
        self, address: int, nbytes: int, page: int, queue: int, small: bool, pool_number: int = 0
    ) -> None: ...
    def choose_pages(self, nbytes: int, queue: int, pool_number: int = 0) -> tuple[int, int]: ...
    def begin_commit(self, address: int, size: int) -> bool: ...  # False unless all of the range is uncommitted
    def allocate_at(
        self, address: int, nbytes: int, queue: int = ..., pool_number: int = 0
    ) -> Block | None: ...  # any queue
    def commit_done(self, address: int, nbytes: int) -> Block | None: ...
    def idle_pages(self, small: bool, pool_number: int = 0) -> list[tuple[int, int]]: ...
    def begin_decommit(self, address: int, size: int) -> bool: ...  # False unless all of the range is free
    def decommit_done(self, address: int, stack: int = 0) -> bool: ...  # True if the segment is now wholly uncommitted
    def rollback(self, address: int) -> None: ...
    def page_transitions(self) -> list[tuple[int, int, bool]]: ...  # address, size, True if decommitting
    def evict_expandable(self, address: int) -> bool: ...

    # Heaps: `best_fit_buffer` returns the best-fitting free buffer (size 0: none) and whether a heap has a gap for a
    # new one.
    def best_fit_buffer(self, nbytes: int, queue: int, pool_number: int = 0) -> tuple[int, int, bool]: ...
    def new_buffer(
        self, nbytes: int, queue: int, pool_number: int = 0
    ) -> Block | None: ...  # a new buffer; None if no gap fits
    def release_buffer(
        self, address: int, nbytes: int
    ) -> int: ...  # a free buffer; returns its heap if now empty, else 0

    # Checkpoints of private pools. RuntimeError, without any effect, if a block's free is pending or its memory was
    # released.
    def checkpoint(self, pool_number: int) -> list[list[SavedBlock]]: ...  # by segment
    # Free all blocks of the pool and make those live that were live at the checkpoint. A `Block` whose memory is live
    # again keeps it, others are freed. Returns the addresses of live blocks that no `Block` owns: `claim` them.
    def restore(self, pool_number: int, saved: list[list[SavedBlock]]) -> list[int]: ...
    def live_addresses(self, pool_number: int) -> list[int]: ...
    def claim(self, address: int) -> Block | None: ...  # the live block there, which another `Block` of it loses

    # Private pools
    # `waits`: a free is pending until the block's own queue has reached it, too.
    def create_pool(self, pool_number: int, splits: bool = True, waits: bool = False) -> None: ...
    def remove_pool(self, pool_number: int) -> bool: ...  # False if the pool is unknown or has segments
    def pools_with_segments(self) -> list[int]: ...  # in ascending order; may include 0
    def free_bytes(self, pool_number: int) -> int: ...  # bytes in free blocks
    def reserved_by(self, pool_number: int) -> list[int]: ...  # laid out as one metric of `counts`

    # Statistics
    def current(self, metric: int, kind: int = 0) -> int: ...  # kind: 0 all sizes, 1 small, 2 large
    def peak(self, metric: int, kind: int = 0) -> int: ...
    def counts(self) -> list[int]: ...  # by metric, then size class: current, peak, allocated, freed
    def oversize(self) -> list[int]: ...  # the same four numbers of blocks, then of segments
    def begin_meter(self) -> int: ...  # returns the number of the meter
    # Peak allocated and reserved bytes since the meter began, and both values at that time; IndexError if it has ended.
    def meter(self, number: int, end: bool = False) -> list[int]: ...
    def reset_peaks(self) -> None: ...
    def reset_accumulated(self) -> None: ...
    def check_invariants(self) -> str | None: ...  # the first violated invariant

    # Memory history
    def record_history(
        self,
        max_entries: int,  # 0: stop recording and clear the history
        depth: int = 64,
        stacks: bool = True,
        frees: bool = False,  # frees record their own stack instead of the allocation's
        skip: int = 0,  # a bit for each Action that is not recorded
        keep: bool = False,  # the entries of the previous recording
        outside: str | None = None,  # a stack begins with the innermost frame whose file is not in this folder
    ) -> None: ...
    @property
    def recording(self) -> bool: ...
    # A number for the caller's stack, for the entries of memory that it releases; 0 if none is recorded. `frees`: the
    # caller frees memory, so the stack is recorded only if frees record theirs. No longer valid after a new recording.
    def caller_stack(self, frees: bool) -> int: ...
    annotating: bool  # entries carry the number that `_annotation_id` returns
    def _annotation_id(self) -> int: ...
    def record_snapshot_event(self, pool_number: int = 0, nbytes: int = 0) -> None: ...  # of a pool with so much in use
    def record_annotation(self, block: Block) -> None: ...  # records an annotation
    def record_oom(self, nbytes: int, queue: int, free: int, pool_number: int = 0) -> None: ...
    # Segments, blocks, history, lost entries, and (parent, file, name, line) of each stack node, all of one moment.
    def tables(self, trace: bool = True) -> tuple[bytes, bytes, bytes, int, list[tuple[int, str, str, int]]]: ...

class Exporter:
    """Buffer exporter: exports the NumPy array that `_export` returns. Python classes cannot do so before 3.12."""

    def _export(self) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class NumpyHook:
    """NumPy allocation hook: allocates at least `smallest` bytes from a pool and forwards smaller requests.

    `everywhere` installs the hook permanently (`serving` turns it off); `in_context` returns the previous handler.
    `queue` selects the free memory; it must be a queue without work. `pages`: the memory is anonymous and private to
    the process, so new and discarded pages are zero.
    """

    serving: bool  # False in a child forked later, until it is set there
    smallest: int
    def __new__(cls, pool: Pool, queue: int, smallest: int, pages: bool = False) -> Self: ...
    @property
    def pool(self) -> Pool: ...
    def forwarded(self) -> tuple[int, int, int, int]:
        """Requests forwarded to the previous allocator: number, bytes, live bytes (approximately), and their peak."""

    def reset_forwarded(self) -> None: ...
    # Record a sample of the forwarded arrays, one byte in `mean`, in a pool without memory; 0 stops. The previous
    # sample ends.
    def sample(self, samples: Pool, mean: int, seed: int) -> None: ...
    def everywhere(self) -> None: ...
    def in_context(self) -> object: ...

def meter_arenas() -> None: ...  # count the memory of Python's object allocator anew, from 0
def arena_bytes() -> tuple[int, int]: ...  # since then: now, which may be negative, and the peak

numpy_failures: Final[threading.local]  # .last: bytes of this thread's last failed NumPy request, and the error

def restore_numpy_handler(handler: object) -> None: ...

@final
class Mark:
    """A tick and the time at which its queue reached it."""

    @property
    def tick(self) -> int: ...
    @property
    def nanoseconds(self) -> int: ...  # of a steady clock; 0 until reached
    def elapsed_ms(self, end: Mark) -> float | None: ...  # None unless both are reached

class _Log(Protocol):
    @property
    def count(self) -> int: ...  # without Python code: see backends.common._releases

@disjoint_base
class Queue:
    """In-order queue on a native thread, which starts with the first work.

    Work submitted after closing, or that could never end, raises ValueError. `watch` is a sum of flags: 1, copies and
    fills raise MemoryError for memory that is not counted yet (see `backends.emulated.memory_budget`); 2, work runs
    inside the access guard.
    """

    def __new__(cls, handle: int = 0, priority: int = 0, watch: int = 0) -> Self: ...
    @property
    def handle(self) -> int: ...
    def copy(self, dst: int, src: int, nbytes: int) -> None: ...
    def fill(self, dst: int, byte: int, nbytes: int) -> None: ...
    def draw_packed(self, packed: bytes) -> None: ...
    def copy_packed(self, packed: bytes) -> None: ...  # a strided copy
    def run_program(self, program: bytes) -> None: ...
    # As one step: as run_program, if the sum of the logs' counts is still `count`; else return False.
    def run_program_at(self, program: bytes, logs: tuple[_Log, ...], count: int) -> bool: ...
    def call(self, function: Callable[[], object]) -> None: ...
    def call_native(self, function: int, argument: int) -> None: ...
    def signal(self) -> int: ...
    def mark(self) -> Mark: ...
    def reached(self) -> int: ...
    def last_work_number(
        self,
    ) -> int: ...  # number of work items submitted, signals excluded: the number of the last one
    def idle(self) -> bool: ...
    def busy(self) -> list[int]: ...  # busy nanoseconds in each of the last twenty full slots of 50 ms; [] if forked
    def wait_within(self, tick: int, nanoseconds: int) -> bool: ...  # False on timeout
    def wait_for(self, other: Queue, tick: int) -> None: ...
    def settled(self, tick: int) -> bool: ...  # the tick is reached, and no failure is to be taken
    def take_failure(self) -> BaseException | int | None: ...  # 0: it waited for ticks that another queue discarded
    # Finish the submitted work and accept no more. False on timeout; None if it can never finish.
    def finish_within(self, nanoseconds: int) -> bool | None: ...
    def close_within(self, nanoseconds: int) -> bool: ...  # as finish_within, but discards the work left at the timeout
    def continue_in_child(self) -> None: ...
    def native(self) -> int: ...  # address of the native queue, for ctypes functions
    @property
    def closed(self) -> bool: ...

def all_settled(queues: Iterable[Queue]) -> bool: ...  # all are idle, and no failure is to be taken
