"""Simulated devices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from forebay._base.watermarks import Watermarks
from forebay._core import Block
from forebay.backends.common.arguments import index_of
from forebay.errors import ForebayError, WrongState
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.caching_allocator import Allocator, OutOfMemoryObserver
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.runtime.allocator.metrics import METRIC
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.torch_iteration_order import pool_set, stream_set
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.history import recording, torch_schema
from forebay.runtime.settings import configuration
from forebay.simulate.clock import Streams, World
from forebay.simulate.port import SimulatedPort
from forebay.spi import Heaps

__all__ = ["Device"]


class Device(Streams):
    """A simulated device with PyTorch's caching allocator.

    Not thread-safe.

    Parameters
    ----------
    total_memory : int
        Bytes of memory, at most 4 PiB.
    settings : str, default ""
        Allocator settings, as PYTORCH_CUDA_ALLOC_CONF. With `heaps`, the watermarks:
        "high_watermark_ratio:1.7,low_watermark_ratio:1.4".
    other_used : int, default 0
        Bytes used by other processes.
    index : int, default 0
        The device index.
    world : World, optional
        The clock, shared with other devices; a new one by default.
    fine_segments : bool, default False
        Reserve memory in steps of 64 KiB, as the CPU device does, instead of 2 MiB.
    heaps : Heaps, optional
        Use PyTorch's allocator for MPS, with these parameters.

    Raises
    ------
    ValueError
        If a number is out of range, or, with PyTorch's text, if a setting is invalid.

    Examples
    --------
    >>> gpu = Device(80 << 30, "expandable_segments:True")
    >>> address = gpu.allocate(3 << 30)
    >>> gpu.stats()["reserved_bytes.all.current"] >> 20
    3080
    >>> gpu.free(address)
    """

    def __init__(
        self,
        total_memory: int,
        settings: str = "",
        other_used: int = 0,
        *,
        index: int = 0,
        world: World | None = None,
        fine_segments: bool = False,
        heaps: Heaps | None = None,
    ) -> None:
        self.index = index
        super().__init__(world or World())
        self._port = SimulatedPort(self._world, total_memory, other_used, index, fine_segments, heaps)
        self._allocator = self._create_allocator(settings, heaps)
        self._allocate = self._allocator.allocate
        self._live: dict[int, Block] = {}
        self._capture: tuple[int, PoolId, dict[int, int]] | None = None

    def _create_allocator(self, settings: str, heaps: Heaps | None) -> Allocator:
        index, orders = self.index, (lambda: stream_set(self.index), pool_set)
        if heaps is None:
            parsed = configuration.parse_initial(settings)
            return SegmentAllocator(f"cuda:{index}", self._port, self._queues, parsed, orders)
        marks = Watermarks.from_text(heaps, settings)
        return HeapAllocator(f"mps:{index}", self._port, heaps, self._queues, orders=orders, watermarks=marks)

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        """Allocate a block and return its address; 0 for 0 bytes.

        Parameters
        ----------
        nbytes : int
            Bytes.
        stream : int, default 0
            The stream.

        Raises
        ------
        OutOfMemory
            If the memory is exhausted.
        ValueError
            If `nbytes` is negative.
        """
        if nbytes == 0:
            return 0
        try:
            block = self._allocate(nbytes, stream)
        except ValueError:
            if nbytes < 0:  # PyTorch's text
                text = f"Invalid memory size: {nbytes}. caching_allocator_alloc requires a non-negative size."
                raise ValueError(text) from None
            raise
        except OverflowError:
            if nbytes < 0 or stream < 0 or stream >= 1 << 64:
                raise
            raise self.allocator.too_large_error(nbytes) from None  # out of range for the native core
        address = block.address
        self._live[address] = block
        return address

    def free(self, address: int) -> None:
        """Free a block.

        Parameters
        ----------
        address : int
            The block's address; 0 is ignored.

        Raises
        ------
        ForebayError
            If no live block begins there.
        """
        if address:
            try:
                self._live.pop(address).free()  # a sampling profiler may keep frames that refer to the block
            except KeyError:
                raise _invalid_pointer(address) from None

    def record_stream(self, address: int, stream: int) -> None:
        """Record that another stream uses a block, so that its free waits for work queued there.

        Parameters
        ----------
        address : int
            The block's address; 0 is ignored.
        stream : int
            The stream.

        Raises
        ------
        ForebayError
            If no live block begins there.
        """
        if address:
            self._queue(stream)
            self._block(address).record_stream(stream)

    def empty_cache(self) -> None:
        """Release all cached memory to the device."""
        self._allocator.empty()

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the reserved memory.

        Parameters
        ----------
        fraction : float
            Fraction of the total memory, 0 to 1 (no limit). With heaps, of the recommended memory, 0 (no limit) to 2.

        Raises
        ------
        ValueError, ForebayError
            If `fraction` is out of range.
        """
        self._allocator.set_memory_fraction(fraction)

    def apply_settings(self, settings: str) -> None:
        """Change the allocator settings.

        As `torch.cuda.memory._set_allocator_settings`.

        Parameters
        ----------
        settings : str
            The settings, as in the constructor.

        Raises
        ------
        ValueError
            With PyTorch's text, if a setting is invalid.
        """
        if self._port.props.heaps is not None and isinstance(self._allocator, HeapAllocator):
            self._allocator.set_watermarks(Watermarks.from_text(self._port.props.heaps, settings))
            return
        configuration.change(settings, self._allocator.settings, self._allocator.apply_settings)

    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values."""
        self._allocator.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        """Reset the totals of allocations and frees to 0."""
        self._allocator.reset_accumulated()

    # Simulated conditions

    def fail_next(self, n: int) -> None:
        """Make the next requests to the device fail, whatever is free.

        Parameters
        ----------
        n : int
            The number of requests.
        """
        self._world.failures = index_of(n, "n")

    def set_other_used(self, nbytes: int) -> None:
        """Set the memory used by other processes.

        Parameters
        ----------
        nbytes : int
            Bytes.
        """
        self._port.other_used = index_of(nbytes, "nbytes")

    def memory_info(self) -> tuple[int, int]:
        """Return the device's free and total bytes."""
        return self._port.memory_info()

    @property
    def device_used(self) -> int:
        """Bytes that the allocator has reserved from the device."""
        return self._port.used

    # Private pools

    def new_pool(self, *, use_on_oom: bool = False, no_split: bool = False) -> PoolId:
        """Create a private pool and return its id.

        As `torch.cuda.MemPool`.

        Parameters
        ----------
        use_on_oom : bool, default False
            Let other pools use its memory before they raise OutOfMemory.
        no_split : bool, default False
            Do not split blocks.
        """
        pool = (0, next(self._world.pools))
        self._allocator.private.create_or_incref(pool, use_on_oom=use_on_oom, no_split=no_split)
        return pool

    def use_pool(self, pool: PoolId) -> AbstractContextManager[None]:
        """Allocate from a private pool in this thread.

        As `torch.cuda.use_mem_pool`.

        Parameters
        ----------
        pool : tuple of int
            The pool id.

        Returns
        -------
        context manager
            Allocates from the pool inside the block. Nests.

        Raises
        ------
        ForebayError
            If the pool does not exist or was released.
        """
        found = self._allocator.private[pool]
        if found.users == 0:
            raise ForebayError(f"memory pool {pool} was released")
        return self._allocator.private.use(pool)

    def release_pool(self, pool: PoolId) -> None:
        """Release a private pool and its cached memory, as the deletion of a MemPool does.

        Parameters
        ----------
        pool : tuple of int
            The pool id.
        """
        self._allocator.release_pool(pool)

    def begin_capture(self, stream: int, pool: PoolId | None = None) -> PoolId:
        """Begin a graph capture and return the id of its pool.

        Parameters
        ----------
        stream : int
            The stream to capture.
        pool : tuple of int, optional
            Id of the pool that the capture allocates from; a new pool (n, 0) by default.

        Raises
        ------
        WrongState
            If a capture is active.
        """
        stream = index_of(stream, "stream")
        if self._capture is not None:
            raise WrongState(f"stream {self._capture[0]} is being captured: end that capture first")
        pool = pool or (next(self._world.graphs), 0)
        queues = {stream: 0}
        self._allocator.begin_capture(pool, queues)
        self._capture = stream, pool, queues
        return pool

    def end_capture(self) -> None:
        """End the graph capture.

        Raises
        ------
        WrongState
            If no capture is active.
        """
        if self._capture is None:
            raise WrongState("no capture is active")
        (_, _, queues), self._capture = self._capture, None
        self._allocator.end_capture(queues)

    def release_capture(self, pool: PoolId) -> None:
        """Release a capture's pool, as the deletion of a graph does. `empty_cache` releases its cached memory.

        Parameters
        ----------
        pool : tuple of int
            The pool id.
        """
        self._allocator.private.decref(pool)

    # State

    def add_out_of_memory_observer(self, observer: OutOfMemoryObserver) -> None:
        """Add a function that is called before OutOfMemory is raised.

        Parameters
        ----------
        observer : callable
            Function of the device index, the bytes requested from the device, the most bytes that it may provide
            (its memory, or the limit) and its free bytes.
        """
        self._allocator.oom_observers.append(observer)

    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = recording.UNLIMITED,
        **options: Any,
    ) -> None:
        """Start, change or stop the recording of the memory history.

        As `torch.cuda.memory._record_memory_history`.

        Parameters
        ----------
        enabled : {"all", "state"} or None, default "all"
            Record all entries, only live blocks, or stop.
        context : {"all", "alloc", "state"} or None, default "all"
            The stacks to capture: also of frees, also of entries, only of live blocks, or none.
        stacks : {"all", "python"}, default "all"
            Whether stacks include the innermost frames of forebay's own functions; they are Python stacks.
        max_entries : int, optional
            Number of entries; the newest are kept. Unlimited by default.
        **options : Any
            `clear_history`, `compile_context`, `global_record_annotations`, `skip_actions` and `depth`.
        """
        recording.start(self._allocator, enabled, context, stacks, max_entries, **options)

    def stats(self) -> dict[str, int]:
        """Return the allocator statistics, with the keys of `torch.cuda.memory_stats`."""
        return statistics.flat_stats(self._allocator)

    def current(self, metric: str) -> int:
        """Return the current value of one statistic, much faster than `stats`.

        Parameters
        ----------
        metric : str
            Its name, such as "reserved_bytes".
        """
        return self._allocator.current(METRIC[metric])

    def peak(self, metric: str) -> int:
        """Return the peak value of one statistic.

        Parameters
        ----------
        metric : str
            Its name, such as "reserved_bytes".
        """
        return self._allocator.peak(METRIC[metric])

    def snapshot(self) -> dict[str, Any]:
        """Return the segments, blocks and recorded history in the format of `torch.cuda.memory._snapshot`."""
        return torch_schema.snapshot_allocators([self._allocator], self._allocator.settings)

    @property
    def allocator(self) -> Allocator:
        """The allocator. Its blocks are objects, which is faster than addresses."""
        return self._allocator

    def broken(self) -> str | None:
        """Return the first violated invariant of the allocator; None if all hold."""
        return self._allocator.check_invariants()

    def _block(self, address: int) -> Block:
        try:
            return self._live[address]
        except KeyError:
            raise _invalid_pointer(address) from None


def _invalid_pointer(address: int) -> ForebayError:
    return ForebayError(f"invalid device pointer: {index_of(address, 'address'):#x}")
