"""forebay's allocator under PyTorch on NVIDIA GPUs, through PyTorch's pluggable allocator.

PyTorch calls C++ functions (`interop/_torch_callbacks.pyx`) that call the handlers below. A block stays in `blocks`
until PyTorch frees its address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from forebay import backends
from forebay.backends.common._disposal import Disposable
from forebay.errors import ForebayError, OutOfMemory, Unsupported, WrongState, warn_unraisable
from forebay.interop._torch_callbacks import CapturedStreams, connect, set_out_of_memory_class
from forebay.interop.stream_blocks import allocate_on, gpu, record_use_on
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.devices.open_device import OpenDevice, open_devices
from forebay.runtime.history.torch_schema import snapshot_pool
from forebay.runtime.memory.storage import AnyBlock
from forebay.spi import Describes

__all__ = ["use_allocator"]

_POOL_OFFSET = 1 << 32  # between PyTorch's numbers of pools and those of forebay's own graphs and pools

# PyTorch's functions that a pluggable allocator does not support, and those of forebay that replace them.
_REPLACED = {
    "_accelerator_getDeviceStats": "_cuda_memoryStats",
    "_accelerator_isAllocatorInitialized": "_accelerator_isAllocatorInitialized",
    "_accelerator_resetAccumulatedStats": "_cuda_resetAccumulatedMemoryStats",
    "_accelerator_resetPeakStats": "_cuda_resetPeakMemoryStats",
    "_cuda_attach_out_of_memory_observer": "_cuda_attach_out_of_memory_observer",
    "_cuda_getMemoryFraction": "_cuda_getMemoryFraction",
    "_cuda_getMemoryMetadata": "_cuda_getMemoryMetadata",
    "_cuda_isHistoryEnabled": "_cuda_isHistoryEnabled",
    "_cuda_memoryMetadataSupported": "_cuda_memoryMetadataSupported",
    "_cuda_memorySnapshot": "_cuda_memorySnapshot",
    "_cuda_memoryStats": "_cuda_memoryStats",
    "_cuda_resetAccumulatedMemoryStats": "_cuda_resetAccumulatedMemoryStats",
    "_cuda_resetPeakMemoryStats": "_cuda_resetPeakMemoryStats",
    "_cuda_setMemoryMetadata": "_cuda_setMemoryMetadata",
}
_RECORD = "_cuda_record_memory_history"  # another one, whose parameters differ

_OOM_CONSTRUCTOR = (
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
)
_OOM_TYPE = "_ZTIN3c1016OutOfMemoryErrorE"


def use_allocator() -> None:
    """Let PyTorch allocate the memory of all NVIDIA GPUs from forebay, until the end of the process.

    Raises
    ------
    Unsupported
        If this PyTorch is built without CUDA, or the GPUs are emulated.
    ForebayError
        If forebay finds no GPU.
    WrongState
        If PyTorch has allocated memory of a GPU already.

    Notes
    -----
    Call it before the first use of a GPU; a second call has no effect. Memory is allocated for PyTorch's current
    stream, `tensor.record_stream` defers frees, and graphs capture into private pools, as with PyTorch's allocator.
    Settings are those of `PYTORCH_CUDA_ALLOC_CONF`. If memory runs out, torch.OutOfMemoryError has the text of
    forebay's error (RuntimeError if this version of PyTorch does not export the class).

    Statistics, history and snapshots are forebay's: those functions of `torch.cuda` that PyTorch does not support with
    a pluggable allocator (`memory_stats`, `memory_allocated`, `reset_peak_memory_stats`, `memory._snapshot`,
    `memory._record_memory_history` and others) call forebay's from then on. `torch.cuda.MemPool` remains unsupported.

    Examples
    --------
    >>> import torch  # doctest: +SKIP
    >>> use_allocator()  # doctest: +SKIP
    >>> batch = torch.zeros(1000, device="cuda")  # doctest: +SKIP
    >>> torch.cuda.memory_allocated(), forebay.cuda.memory_allocated()  # doctest: +SKIP
    (4096, 4096)
    """
    import torch

    from forebay import _C

    if _handlers.installed:
        return
    theirs: Any = torch._C
    custom_allocator = getattr(theirs, "_cuda_customAllocator", None)
    if custom_allocator is None:
        raise Unsupported(f"PyTorch {torch.__version__} is built without CUDA: install a build with CUDA")
    driver = backends.driver("cuda")
    if not driver.count():
        raise ForebayError(f"forebay finds no NVIDIA GPU: {driver.why_not()}")
    if isinstance(driver, Describes) and driver.describe(0).emulated:
        gpu(0)  # raises the error
    _find_error_class(torch)
    functions = connect(_handlers, _handlers.blocks)
    made = custom_allocator(functions["allocate"], functions["release"])
    made.set_record_stream_fn(functions["record"])
    made.set_reset_fn(functions["reset"])
    made.set_memory_fraction_fn(functions["limit"])
    made.set_base_alloc_fn(functions["base"])
    made.set_begin_allocate_to_pool(functions["begin"])
    made.set_end_allocate_to_pool_fn(functions["end"])
    made.set_release_pool(functions["drop"])
    try:
        torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(made))
    except RuntimeError as error:
        message = "PyTorch has used a GPU already, after which its allocator cannot be replaced"
        raise WrongState(f"{message}: call use_allocator() before the first tensor on a GPU") from error
    _handlers.installed = True
    record = getattr(_C, _RECORD)
    replacements = {name: getattr(_C, ours) for name, ours in _REPLACED.items()}
    replacements[_RECORD] = partial(_record_history, record)
    for name, function in replacements.items():
        if hasattr(theirs, name):
            setattr(theirs, name, function)


def _record_history(
    record: Callable[..., None],
    enabled: str | None,
    context: str | None,
    stacks: str,
    max_entries: int,
    *options: Any,
) -> None:
    """Record the history as PyTorch asks for it. Its stacks begin with the program's functions, not with forebay's."""
    device = None
    record(enabled, context, "python" if stacks == "all" else stacks, max_entries, device, *options)


def _find_error_class(torch: ModuleType) -> None:
    """Find the class of PyTorch's out-of-memory errors in its library."""
    library = ctypes.CDLL(str(Path(torch.__file__ or "").parent / "lib" / "libc10.so"))
    try:
        addresses = [ctypes.addressof(ctypes.c_char.in_dll(library, name)) for name in (_OOM_CONSTRUCTOR, _OOM_TYPE)]
    except ValueError:  # an older version has no such constructor
        return
    set_out_of_memory_class(*addresses)


class _CaptureQueues(MutableMapping[int, int]):
    """The queues of a capture of PyTorch, each with a tick that it has reached before. PyTorch decides which these are.

    Only queries of single queues are complete.
    """

    def __init__(self, opened: OpenDevice, captured: CapturedStreams) -> None:
        self._opened = opened
        self._captured = captured

    def __contains__(self, queue: object) -> bool:
        return queue in self._captured

    def __getitem__(self, queue: int) -> int:
        found = self._opened.queue_with_handle(queue) if queue in self._captured else None
        if found is None:
            raise KeyError(queue)
        return found.reached()

    def __iter__(self) -> Iterator[int]:
        return iter([queue for queue in (*self._opened.queues, *self._opened.external_queues) if queue in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # without queries

    def __setitem__(self, queue: int, tick: int) -> None:
        raise TypeError("PyTorch decides which streams a capture has")

    def __delitem__(self, queue: int) -> None:
        raise TypeError("PyTorch decides which streams a capture has")


class _SharedBlock(Disposable, tuple[AnyBlock, OpenDevice]):
    """A block that several streams use. If it is freed while a graph is captured, its free waits for the capture's end.

    Until then a captured stream has no event that tells when it has done its work.
    """

    __slots__ = ()

    capturing: ClassVar[dict[tuple[int, PoolId], _CaptureQueues]] = {}  # by device and PyTorch's number of the pool
    held: ClassVar[list[AnyBlock]] = []  # freed during captures

    def _dispose(self) -> None:
        if self.capturing:
            self.held.append(self[0])


class _Handlers:
    """The functions that PyTorch's allocator calls."""

    def __init__(self) -> None:
        self.installed = False
        self.blocks: dict[int, tuple[AnyBlock, OpenDevice]] = {}  # by address

    def allocate(self, nbytes: int, device: int, stream: int) -> int:
        if nbytes == 0:
            return 0
        opened = gpu(device)
        block = allocate_on(opened, nbytes, stream)
        address = block.address
        self.blocks[address] = block, opened
        return address

    def record_stream(self, address: int, stream: int) -> None:
        found = self.blocks.get(address)
        if found is None:  # memory of another allocator
            return
        block, opened = found
        record_use_on(opened, block, stream)
        if not isinstance(found, _SharedBlock):
            self.blocks[address] = _SharedBlock(found)

    def empty_cache(self) -> None:
        for opened in open_devices("cuda").devices:
            opened.allocator.empty()

    def set_memory_fraction(self, fraction: float, device: int) -> None:
        gpu(device).allocator.set_memory_fraction(fraction)

    def segment_of(self, address: int) -> tuple[int, int]:
        _, opened = self.blocks[address]
        rows = snapshot_pool(opened.allocator)
        starts = {row["address"]: row["total_size"] for row in rows}
        start = max(start for start in starts if start <= address)
        return start, starts[start]

    def begin_pool(self, device: int, pool: PoolId, captured: CapturedStreams) -> None:
        opened = gpu(device)
        queues = _CaptureQueues(opened, captured)
        opened.allocator.begin_capture(_own_pool(pool), queues)
        _SharedBlock.capturing[device, pool] = queues

    def end_pool(self, device: int, pool: PoolId) -> None:
        queues = _SharedBlock.capturing.pop((device, pool))
        gpu(device).allocator.end_capture(queues)
        if not _SharedBlock.capturing:
            _SharedBlock.held.clear()

    def release_pool(self, device: int, pool: PoolId) -> None:
        gpu(device).allocator.release_pool(_own_pool(pool))

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, OutOfMemory)

    def text_of(self, error: BaseException) -> str:
        return str(error) if isinstance(error, ForebayError) else f"{type(error).__name__}: {error}"

    def unknown(self, address: int) -> None:
        warn_unraisable(f"PyTorch freed memory at {address:#x}, which forebay did not allocate for it")

    def warn(self, error: BaseException) -> None:
        warn_unraisable(f"a call of PyTorch's allocator failed: {self.text_of(error)}")


def _own_pool(pool: PoolId) -> PoolId:
    """Return the number of a pool of PyTorch among forebay's."""
    first, second = (number + _POOL_OFFSET if number else 0 for number in pool)
    return first, second


_handlers = _Handlers()
