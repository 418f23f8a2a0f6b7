"""forebay's allocators under Numba for CUDA: a plug-in for its external memory management.

Numba names no streams when it allocates and frees. So a block is for no stream, and its free is pending until the work
that was queued before on Numba's streams and on forebay's has completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from forebay.errors import OutOfMemory, WrongState, warn_unraisable
from forebay.interop.stream_blocks import gpu
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock, allocate_raw_block
from forebay.runtime.pinned import registered_memory
from forebay.spi import PinsInPlace

__all__ = ["memory_manager", "use_allocator"]

_NO_STREAM = 1 << 62  # the number under which blocks of Numba are cached: no stream has it
_DEFAULT_STREAM = 0  # an event on it follows the earlier work of all streams that Numba creates
_OUT_OF_MEMORY = 2  # of the driver


def use_allocator() -> None:
    """Let Numba allocate the memory of all GPUs, and pinned memory, from forebay, until the end of the process.

    Raises
    ------
    ImportError
        If numba-cuda is not installed.
    WrongState
        If Numba uses a GPU already.

    Notes
    -----
    The environment variable `NUMBA_CUDA_MEMORY_MANAGER=forebay.interop.numba` does the same without a change of the
    program. The first allocation on an emulated GPU raises Unsupported. If memory runs out, Numba's CudaAPIError has
    forebay's error as its cause.

    Kernels on streams of other libraries than Numba and forebay are not waited for before memory is used again: keep
    their arrays until they are done.

    Examples
    --------
    >>> import numpy as np, forebay  # doctest: +SKIP
    >>> from numba import cuda  # doctest: +SKIP
    >>> use_allocator()  # doctest: +SKIP
    >>> array = cuda.to_device(np.zeros(1000))  # doctest: +SKIP
    >>> forebay.cuda.memory_allocated()  # doctest: +SKIP
    8192
    """
    from numba import cuda
    from numba.cuda.cudadrv import devices, driver

    if driver._memory_manager is memory_manager():  # noqa: SLF001 -- Numba has no function that returns it
        return
    if any(getattr(device, "primary_context", None) for device in devices.gpus.lst):
        raise WrongState(
            "Numba uses a GPU already: call use_allocator() before, or set NUMBA_CUDA_MEMORY_MANAGER to "
            "forebay.interop.numba"
        )
    cuda.set_memory_manager(memory_manager())


@cache
def memory_manager() -> type[Any]:
    """Return the class derived from `numba.cuda.HostOnlyCUDAMemoryManager`, for `numba.cuda.set_memory_manager`.

    Raises
    ------
    ImportError
        If numba-cuda is not installed.
    """
    from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer, PinnedMemory
    from numba.cuda.cudadrv.driver import CudaAPIError, GetIpcHandleMixin

    class ForebayMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc]  # untyped
        """Memory of one context of Numba, from forebay."""

        interface_version = 1

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._live: dict[int, list[AnyBlock]] = {}  # by its own id: one block each, or none after `reset`
            self._deferred: list[AnyBlock] | None = None  # freed inside `defer_cleanup`

        @property
        def _opened(self) -> OpenDevice:
            return gpu(self.context.device.id)

        def initialize(self) -> None:
            """Do nothing: the device is opened by the first allocation."""

        def memalloc(self, size: int) -> Any:
            opened = self._opened
            try:
                block = allocate_raw_block(opened, max(size, 1), _NO_STREAM)
            except OutOfMemory as error:
                raise CudaAPIError(_OUT_OF_MEMORY, str(error)) from error
            live = [block]
            self._live[id(live)] = live
            return MemoryPointer(self.context, block.address, size, finalizer=partial(self._free, opened, live))

        def _free(self, opened: OpenDevice, live: list[AnyBlock]) -> None:
            self._live.pop(id(live), None)
            while live:
                if self._deferred is not None:
                    self._deferred.append(live.pop())
                else:
                    _free_after_all_work(opened, live.pop())

        def reset(self) -> None:
            super().reset()
            for live in tuple(self._live.values()):
                self._free(self._opened, live)

        def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
            if mapped or wc:
                return super().memhostalloc(size, mapped, portable, wc)
            blocks = [self._opened.pinned.allocate(max(size, 1))]
            return PinnedMemory(self.context, blocks[0].address, size, finalizer=blocks.clear)

        def mempin(self, owner: object, pointer: Any, size: int, mapped: bool = False) -> Any:
            port, address = self._opened.port, int(getattr(pointer, "value", pointer))
            if (
                mapped
                or not isinstance(port, PinsInPlace)
                or not registered_memory.register("cuda", port, address, size)
            ):
                return super().mempin(owner, pointer, size, mapped)
            finalizer = partial(registered_memory.unregister, "cuda", address)
            return PinnedMemory(self.context, pointer, size, owner=owner, finalizer=finalizer)

        def get_memory_info(self) -> Any:
            free, total = self._opened.port.memory_info()
            return MemoryInfo(free=free, total=total)

        @contextmanager
        def defer_cleanup(self) -> Iterator[None]:
            if self._deferred is not None:
                yield
                return
            self._deferred = []
            try:
                with super().defer_cleanup():
                    yield
            finally:
                blocks, self._deferred = self._deferred, None
                while blocks:
                    _free_after_all_work(self._opened, blocks.pop())

    return ForebayMemoryManager


def _free_after_all_work(opened: OpenDevice, block: AnyBlock) -> None:
    """Free a block once the work that is queued now on Numba's and forebay's streams has completed.

    Numba calls this in destructors, so errors only warn.
    """
    try:
        block.record_stream(_DEFAULT_STREAM)
        for handle, queue in tuple(opened.queues.items()):
            if handle and not queue.idle():
                block.record_stream(handle)
    except Exception as error:  # noqa: BLE001 -- see above
        warn_unraisable(f"memory of Numba is freed although its streams are not known: {error}")


def __getattr__(name: str) -> Any:
    if name == "_numba_memory_manager":  # which Numba imports by NUMBA_CUDA_MEMORY_MANAGER
        return memory_manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
