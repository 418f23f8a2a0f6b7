"""forebay's allocator as a memory resource of RMM, which cuDF, cuML and other RAPIDS libraries allocate from."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from forebay._base.device_spec import Device, DeviceLike
from forebay.errors import warn_unraisable
from forebay.interop.stream_blocks import allocate_on, current_gpu, gpu, record_use_on
from forebay.runtime.devices.current import device_argument
from forebay.runtime.devices.open_device import OpenDevice, device_count
from forebay.runtime.memory.storage import AnyBlock

__all__ = ["Installation", "memory_resource", "use_allocator"]


def memory_resource(device: DeviceLike | None = None) -> Any:
    """Return a memory resource of RMM that allocates from forebay.

    Opens the device. If memory runs out, RMM raises MemoryError with the text of forebay's error. Memory that is freed
    on another stream than it was allocated for is reused after the work of both. A pool of RMM over this resource
    would hide single allocations from forebay's statistics, and is not needed.

    Parameters
    ----------
    device : device or str or int, optional
        The GPU; that of the current CUDA context by default.

    Returns
    -------
    rmm.mr.CallbackMemoryResource
        The resource. Others can be built over it, such as `rmm.mr.StatisticsResourceAdaptor`.

    Raises
    ------
    ImportError
        If RMM is not installed.
    Unsupported
        If the GPU is emulated.

    Examples
    --------
    >>> import rmm, forebay  # doctest: +SKIP
    >>> rmm.mr.set_current_device_resource(memory_resource())  # doctest: +SKIP
    >>> buffer = rmm.DeviceBuffer(size=1000)  # doctest: +SKIP
    >>> forebay.cuda.memory_allocated()  # doctest: +SKIP
    1024
    """
    import rmm

    blocks = _Blocks(current_gpu() if device is None else gpu(_index_of(device)))
    return rmm.mr.CallbackMemoryResource(blocks.allocate, blocks.deallocate)


class Installation:
    """RMM's use of forebay's allocator, which ends with the `with` block or `restore()`.

    Parameters
    ----------
    indices : sequence of int
        The GPUs.
    """

    def __init__(self, indices: list[int]) -> None:
        import rmm

        self._previous: dict[int, Any] = {}
        for index in indices:
            made = memory_resource(Device("cuda", index))
            self._previous[index] = rmm.mr.get_per_device_resource(index)
            rmm.mr.set_per_device_resource(index, made)

    def restore(self) -> None:
        """Let RMM allocate from its previous resources. Existing buffers keep their memory. Idempotent."""
        import rmm

        while self._previous:
            rmm.mr.set_per_device_resource(*self._previous.popitem())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.restore()


def use_allocator() -> Installation:
    """Let RMM allocate the memory of all GPUs from forebay.

    Opens all GPUs. See `memory_resource`.

    Returns
    -------
    Installation
        As a context manager, it restores RMM's resources at the end of the `with` block. Without one they remain until
        `restore()`.

    Raises
    ------
    ImportError
        If RMM is not installed.
    Unsupported
        If the GPUs are emulated.
    """
    return Installation([*range(device_count("cuda"))])


def _index_of(device: DeviceLike) -> int:
    return Device("cuda", device).index or 0 if isinstance(device, int) else device_argument(device).index or 0


class _Blocks:
    """The live blocks of one resource, by address."""

    def __init__(self, opened: OpenDevice) -> None:
        self._opened = opened
        self._blocks: dict[int, AnyBlock] = {}

    def allocate(self, nbytes: int, stream: Any) -> int:
        if nbytes == 0:
            return 0
        block = allocate_on(self._opened, nbytes, stream.__cuda_stream__()[1])
        self._blocks[block.address] = block
        return block.address

    def deallocate(self, address: int, nbytes: int, stream: Any) -> None:
        """Free a block. RMM calls this in destructors, so errors only warn."""
        block = self._blocks.pop(address, None)
        if block is None:
            if nbytes:
                warn_unraisable(f"RMM freed {nbytes} bytes at {address:#x}, which forebay did not allocate for it")
            return
        try:
            record_use_on(self._opened, block, stream.__cuda_stream__()[1])
        except Exception as error:  # noqa: BLE001 -- see above
            warn_unraisable(f"a stream on which RMM freed memory is not known: {error}")
