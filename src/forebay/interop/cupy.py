"""forebay's allocators under CuPy, and streams that both libraries use.

CuPy calls an allocator with a number of bytes. The result owns a block of the current GPU's allocator, which is freed
with the last array of the memory. As in CuPy's own pool, later work of the stream for which it was allocated may use
the memory again at once; `record_stream` adds other streams.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from forebay.errors import OutOfMemory, WrongState
from forebay.interop.stream_blocks import allocate_on, current_gpu, gpu, record_use_on, stream_with_handle
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES
from forebay.runtime.memory.storage import AnyBlock
from forebay.runtime.pinned.pinned_allocator import PinnedBlock
from forebay.runtime.streams.stream import Stream

__all__ = ["Installation", "from_cupy_stream", "record_stream", "to_cupy_stream", "use_allocator"]


class Installation:
    """CuPy's use of forebay's allocators, which ends with the `with` block or `restore()`.

    Parameters
    ----------
    pinned : bool
        Whether pinned memory is allocated from forebay, too.
    """

    def __init__(self, pinned: bool) -> None:
        import cupy

        self._cuda: Any = cupy.cuda
        self._previous: Any = self._cuda.get_allocator()
        self._pinned_before = _pinned_allocator(cupy)
        self._cuda.set_allocator(_allocate)
        if pinned:
            _set_pinned_allocator(cupy, _allocate_pinned)
        self._pinned = pinned
        self._active = True

    def restore(self) -> None:
        """Let CuPy allocate as before. Existing arrays keep their memory. Idempotent.

        Raises
        ------
        WrongState
            If another allocator was set in the block and is still in use.
        """
        import cupy

        if not self._active:
            return
        if self._cuda.get_allocator() != _allocate:
            raise WrongState("CuPy has another allocator now: restore forebay's first, then end its use")
        self._cuda.set_allocator(self._previous)
        if self._pinned:
            _set_pinned_allocator(cupy, self._pinned_before)
        self._active = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.restore()


def use_allocator(*, pinned: bool = True) -> Installation:
    """Let CuPy allocate the memory of all GPUs, and pinned memory, from forebay.

    Memory is allocated for CuPy's current stream. If memory runs out, `cupy.cuda.memory.OutOfMemoryError` is raised,
    whose cause is forebay's error with the reasons. A first allocation on an emulated GPU raises Unsupported. CuPy
    cannot return its current allocator of pinned memory: afterwards it has that of its default pool again.

    Parameters
    ----------
    pinned : bool, default True
        Allocate pinned memory from forebay, too.

    Returns
    -------
    Installation
        As a context manager, it restores CuPy's allocators at the end of the `with` block. Without one they remain
        until `restore()`.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    ValueError
        Inside `cupy.cuda.using_allocator`, where CuPy's allocator cannot be replaced.

    Examples
    --------
    >>> import cupy, forebay  # doctest: +SKIP
    >>> with use_allocator():  # doctest: +SKIP
    ...     array = cupy.zeros(1000)
    ...     print(forebay.cuda.memory_allocated())
    8192
    """
    return Installation(pinned)


def record_stream(array: Any, stream: Any = None) -> None:
    """Keep an array's memory from being reused before another stream has done its work.

    Call it before the last reference to the array is dropped: the memory is reused after the work that was queued on
    the stream at that moment. The stream must exist until then.

    Parameters
    ----------
    array : cupy.ndarray
        An array whose memory forebay allocated; of other memory nothing is recorded.
    stream : cupy.cuda.Stream or Stream, optional
        The stream that uses the array; CuPy's current stream by default.
    """
    block = getattr(array.data.mem, "_owner", None)
    if isinstance(block, AnyBlock):
        record_use_on(gpu(array.data.device_id), block, _handle_of(stream))


def from_cupy_stream(stream: Any = None) -> Stream:
    """Return CuPy's stream as a stream of forebay.

    Parameters
    ----------
    stream : cupy.cuda.Stream, optional
        The stream, which CuPy must keep alive; CuPy's current stream by default.

    Returns
    -------
    Stream
        The same stream of the driver, on the GPU that is current in this thread.

    Raises
    ------
    Unsupported
        For the per-thread default stream.
    """
    return stream_with_handle(current_gpu(), _handle_of(stream))


def to_cupy_stream(stream: Stream) -> Any:
    """Return a stream of forebay as a stream of CuPy.

    Parameters
    ----------
    stream : Stream
        The stream, which must be one of a GPU.

    Returns
    -------
    cupy.cuda.Stream
        The same stream of the driver, which keeps `stream` alive.
    """
    import cupy

    gpu(stream.device_index)
    if stream.handle == 0:
        return cupy.cuda.Stream.null
    return cupy.cuda.Stream.from_external(_CudaStream(stream))


class _CudaStream:
    """A stream under the protocol by which Python libraries exchange streams of CUDA."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.handle


class _PinnedMemory:
    """Pinned memory as CuPy uses it. Freed with the last pointer to it."""

    def __init__(self, block: PinnedBlock) -> None:
        self._block = block
        self.ptr: int = block.address
        self.size: int = block.size


def _handle_of(stream: Any) -> int:
    """Return the driver's handle of a stream of either library; None is CuPy's current stream."""
    if isinstance(stream, Stream):
        return stream.handle
    if stream is None:
        import cupy

        stream = cupy.cuda.get_current_stream()
    return int(stream.ptr)


def _allocate(nbytes: int) -> Any:
    """Allocate as `cupy.cuda.alloc`."""
    from cupy.cuda import memory

    opened = current_gpu()
    index = opened.device.index or 0
    if nbytes == 0:
        return memory.MemoryPointer(memory.UnownedMemory(0, 0, None, index), 0)
    try:
        block = allocate_on(opened, nbytes, _handle_of(None))
    except OutOfMemory as error:
        held = opened.allocator.current(ALLOCATED_BYTES)
        raise memory.OutOfMemoryError(nbytes, held, opened.allocator.limit or 0) from error
    return memory.MemoryPointer(memory.UnownedMemory(block.address, nbytes, block, index), 0)


def _allocate_pinned(nbytes: int) -> Any:
    """Allocate as `cupy.cuda.alloc_pinned_memory`."""
    from cupy.cuda import pinned_memory

    block = current_gpu().pinned.allocate(max(nbytes, 1))
    return pinned_memory.PinnedMemoryPointer(_PinnedMemory(block), 0)


_pinned_allocators: list[Any] = []  # those set by this module; the last one is CuPy's


def _pinned_allocator(cupy: Any) -> Any:
    return _pinned_allocators[-1] if _pinned_allocators else cupy.get_default_pinned_memory_pool().malloc


def _set_pinned_allocator(cupy: Any, allocator: Any) -> None:
    _pinned_allocators[:] = [allocator]
    cupy.cuda.set_pinned_memory_allocator(allocator)
