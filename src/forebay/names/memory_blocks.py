"""Raw allocations by address, private pools and pluggable allocators of one device kind, under PyTorch's names."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from forebay._base.byte_sizes import LIMIT
from forebay._base.device_spec import Device, DeviceLike
from forebay.errors import ForebayError, Unsupported
from forebay.names.kind import DeviceKind
from forebay.names.memory_statistics import find_open_device
from forebay.runtime.allocator import pluggable_allocator
from forebay.runtime.base.pool_ids import PoolId
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.history.torch_schema import snapshot_pool
from forebay.runtime.memory import mem_pool
from forebay.runtime.memory.storage import allocate_raw_block
from forebay.runtime.settings import process_settings
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.spi import Managed

__all__ = [
    "AllocatorHandle",
    "CachingAllocatorFunctions",
    "KindMemPool",
    "ManagedMemory",
    "PluggableAllocator",
    "recorded_segments",
]

_ADDRESSES = 1 << 64


class AllocatorHandle:
    """Handle of the allocator of a kind.

    As `torch.cuda.memory._CUDAAllocator`.

    Parameters
    ----------
    allocator : object or None
        The pluggable allocator; None is the native one.
    """

    def __init__(self, allocator: pluggable_allocator.AllocatorFunctions | None) -> None:
        self._allocator = allocator

    def allocator(self) -> pluggable_allocator.AllocatorFunctions | None:
        """Return the pluggable allocator; None for the native one."""
        return self._allocator


class PluggableAllocator(AllocatorHandle):
    """Allocator made of two C functions of a shared library.

    As `torch.cuda.CUDAPluggableAllocator`.

    Parameters
    ----------
    path_to_so_file : str
        Path of the shared library.
    alloc_fn_name : str
        Name of `void* alloc(ssize_t nbytes, int device, cudaStream_t)`.
    free_fn_name : str
        Name of `void free(void*, ssize_t nbytes, int device, cudaStream_t)`.

    Raises
    ------
    OSError
        If the library cannot be loaded.
    AttributeError
        If the library lacks a function.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(path_to_so_file)
        allocate, free = (_address_of(library, name) for name in (alloc_fn_name, free_fn_name))
        super().__init__(
            pluggable_allocator.AllocatorFunctions(allocate, free, library, f"{alloc_fn_name} of {path_to_so_file}")
        )


def _address_of(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


class KindMemPool(mem_pool.MemPool):
    """Private memory pool of one kind, whose methods refer to the current device.

    Initialises the kind.

    Parameters
    ----------
    allocator : object, optional
        Result of `CUDAPluggableAllocator(...).allocator()` that supplies the segments; the device by default.
    use_on_oom : bool, default False
        Let other allocations use the pool's cached memory before they fail.
    no_split : bool, default False
        Do not split segments.

    Raises
    ------
    TypeError
        If `allocator` is not a pluggable allocator, or a flag is not a bool.
    ForebayError
        If there is no device.
    Unsupported
        If the kind uses a pluggable allocator.
    """

    kind: ClassVar[DeviceKind]

    def __init__(
        self,
        allocator: pluggable_allocator.AllocatorFunctions | None = None,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        self.kind.initialisation.ensure()
        if allocator is not None and not isinstance(allocator, pluggable_allocator.AllocatorFunctions):
            raise TypeError(
                "allocator must be the result of CUDAPluggableAllocator(...).allocator(), "
                f"not {type(allocator).__name__}"
            )
        if pluggable_allocator.current(self.kind.name) is not None:
            raise Unsupported(
                "pluggable does not yet support createOrIncrefPool. "
                "If you need it, please file an issue describing your use case."
            )
        flags = {"use_on_oom": use_on_oom, "no_split": no_split}
        for name, flag in flags.items():
            if flag is not None and not hasattr(flag, "__bool__"):
                raise TypeError(f"MemPool(): argument {name!r} must be bool, not {type(flag).__name__}")
        home = self.kind.device_at(self.kind.current_index())
        super().__init__(use_on_oom=bool(use_on_oom), no_split=bool(no_split), source=allocator, home=home)
        if (opened := open_device.get_open_device(home)) is not None:
            self.register(opened)

    def use_count(self) -> int:  # type: ignore[override]  # PyTorch's has no device
        """Return the reference count of the pool on the device that was current when it was created.

        Does not open a device.

        Returns
        -------
        int
            1 for the object itself, and 1 for each active `use_mem_pool` and graph.
        """
        opened = None if self.home is None else open_device.get_open_device(self.home)
        return 1 if opened is None else self.users(opened)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:  # type: ignore[override]  # PyTorch's, of segments
        """Return the pool's segments on all devices, each as in `memory_snapshot`.

        Parameters
        ----------
        include_traces : bool, default True
            Ignored.

        Raises
        ------
        ForebayError
            If `include_traces` is not a bool.
        """
        if not isinstance(include_traces, bool):
            raise ForebayError("include_traces must be a boolean")
        return recorded_segments(self.kind, self.id)


def recorded_segments(kind: DeviceKind, pool: PoolId | None = None) -> list[dict[str, Any]]:
    """Return the segments of one pool, or of all, on all devices; each history then gets a "snapshot" entry."""
    rows = list[dict[str, Any]]()
    for opened in open_device.open_devices(kind.name).devices:
        allocator = opened.allocator
        found = snapshot_pool(allocator, pool)
        number = 0 if pool is None else allocator.private.number_of(pool)
        allocator.record_snapshot_event(number, sum(row["active_size"] for row in found))
        rows += found
    return rows


def _size_argument(size: Any) -> int:
    """Return a size as an int. Raises ValueError, in which PyTorch shows any value that is no C integer as -1."""
    number = size.__index__() if hasattr(size, "__index__") else -1
    if not 0 <= number < LIMIT:
        shown = number if -LIMIT <= number < LIMIT else -1
        raise ValueError(f"Invalid memory size: {shown}. caching_allocator_alloc requires a non-negative size.")
    return int(number)


class ManagedMemory:
    """Segment source that reserves managed memory, which the host can access. (`cudaMallocManaged`)"""

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind
        self._ports: dict[int, Managed] = {}  # by address: the emulation may end before the release

    def reserve(self, nbytes: int, device: int, queue: int) -> int:  # noqa: ARG002 -- the protocol's signature
        port = open_device.open_device(Device(self._kind.name, device)).port
        if not isinstance(port, Managed):
            raise Unsupported(f"{self._kind.name}:{device} has no managed memory", ability="Managed")
        address = port.reserve_managed(nbytes)
        self._ports[address] = port
        return address

    def release(self, address: int, nbytes: int, device: int, queue: int) -> None:  # noqa: ARG002 -- the protocol's signature
        self._ports[address].release_managed(address)
        del self._ports[address]


class CachingAllocatorFunctions:
    """Allocator functions of one kind."""

    def __init__(
        self, kind: DeviceKind, pool: type[KindMemPool], handle: type[AllocatorHandle] = AllocatorHandle
    ) -> None:
        self._kind = kind
        self._pool = pool
        self._handle = handle

    def caching_allocator_alloc(
        self, size: int, device: DeviceLike | None = None, stream: Stream | int | None = None
    ) -> int:
        """Allocate memory for another library and return its address.

        Initialises the kind and opens the device.

        Parameters
        ----------
        size : int
            Bytes.
        device : device or str or int, optional
            The device; the current one by default.
        stream : Stream or int, optional
            The stream that uses the memory, or the driver's handle of one; the current stream by default.

        Returns
        -------
        int
            The address; 0 if `size` is 0. Free it with `caching_allocator_delete`.

        Raises
        ------
        OutOfMemory
            If the device has too little memory.
        ValueError
            If `size` is invalid.
        TypeError
            If `stream` is not a stream or int.
        """
        if stream is not None and not isinstance(stream, (Stream, int)):
            if device is not None:  # its errors come first
                self._kind.index(device)
            self._kind.initialisation.ensure()
            raise TypeError(
                f"Invalid type for stream argument, must be `forebay.{self._kind.name}.Stream` or `int` "
                "representing a pointer to an existing stream"
            )
        opened = self._kind.known_by_index(device) or self._device_to_allocate_on(device, given=stream is not None)
        size = _size_argument(size)
        if size == 0:
            return 0
        queue = stream if isinstance(stream, int) else (stream or current_stream_for(opened)).handle
        block = allocate_raw_block(opened, size, queue)
        opened.raw_blocks[block.address] = block
        return block.address

    def _device_to_allocate_on(self, device: DeviceLike | None, *, given: bool) -> OpenDevice:
        """Return the device of an argument, opened. The errors depend on whether a stream was given."""
        kind = self._kind
        index = kind.current_index() if device is None else kind.index(device)
        if index == -1:
            index = kind.current_index()
        kind.initialisation.ensure()
        if not given:
            index = kind.check_range(kind.checked_index(index, "getCurrentStream"))
        elif (index := kind.checked_index(index, "exchangeDevice")) < 0:
            index = kind.current_index()
        return kind.open_device(index)

    def caching_allocator_delete(self, mem_ptr: int) -> None:
        """Free memory that `caching_allocator_alloc` returned.

        Parameters
        ----------
        mem_ptr : int
            The address; 0 does nothing.

        Raises
        ------
        ForebayError
            If the address is not that of such an allocation.
        TypeError
            If `mem_ptr` is not an int.
        """
        if not isinstance(mem_ptr, int):
            raise TypeError(f"mem_ptr must be an int, not {type(mem_ptr).__name__}")
        if mem_ptr == 0:
            return
        for opened in open_device.open_devices(self._kind.name).devices:
            if (block := opened.raw_blocks.pop(mem_ptr, None)) is not None:
                block.free()
                return
        if pluggable_allocator.current(self._kind.name) is not None:
            raise ForebayError("Trying to free a pointer not allocated here")
        raise ForebayError(f"invalid device pointer: {mem_ptr % _ADDRESSES:#x}")

    def caching_allocator_enable(self, value: bool = True) -> None:
        """Enable or disable caching of freed memory on the devices of all kinds.

        Does nothing before the kind's first use.

        Parameters
        ----------
        value : bool, default True
            True enables the cache.

        Raises
        ------
        ForebayError
            If `value` is not a bool.
        """
        if not self._kind.initialised:
            return
        if not isinstance(value, bool):
            raise ForebayError(f"cudaCachingAllocator_enable expects a bool, but got {type(value).__name__}")
        process_settings.enable_caching(value)

    @contextmanager
    def caching_allocator_disabled(self) -> Iterator[None]:
        """Disable the cache inside the context; every allocation is then reserved from the device.

        Yields
        ------
        None
            Exit restores the previous setting.
        """
        before = process_settings.caching
        self.caching_allocator_enable(False)
        try:
            yield
        finally:
            self.caching_allocator_enable(before)

    @contextmanager
    def use_mem_pool(self, pool: mem_pool.MemPool, device: DeviceLike | None = None) -> Iterator[None]:
        """Allocate this thread's memory on a device from a pool inside the context.

        Initialises the kind and opens the device. A graph captured inside keeps the pool's memory.

        Parameters
        ----------
        pool : MemPool
            The pool.
        device : device or str or int, optional
            The device; the current one by default.

        Yields
        ------
        None
            Contexts nest; the innermost pool is used.

        Raises
        ------
        TypeError
            If `pool` is not a MemPool.
        ForebayError
            If the pool is already in use or the device does not exist.
        """
        kind = self._kind
        index = kind.current_index() if device is None else int(kind.index(device))  # it may be True
        kind.initialisation.ensure()
        find_open_device(kind, index, "Invalid device argument")
        with mem_pool.use_mem_pool(pool, Device(kind.name, index)):
            capture = current_stream_for(kind.open_device(index)).capture
            graph = None if capture is None else capture.owner()
            if graph is not None:
                graph._retain_pool(pool)  # noqa: SLF001 -- PyTorch's name
            yield

    @contextmanager
    def use_uvm(self, device: DeviceLike | None = None) -> Iterator[KindMemPool]:
        """Allocate this thread's memory on a device as managed memory inside the context.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Yields
        ------
        MemPool
            The pool of the allocations. The host can access them, and they may exceed the device's memory.

        Raises
        ------
        Unsupported
            If the device has no managed memory.
        """
        pool = self._pool()
        pool.source = ManagedMemory(self._kind)
        with self.use_mem_pool(pool, device):
            yield pool

    def host_allocator(self) -> int:
        """Return an identifier of the pinned host memory allocator: the same number for every device of the kind.

        Initialises the kind and opens the current device.
        """
        return id(self._kind.open_device().pinned)

    @contextmanager
    def free_mutex(self) -> Iterator[None]:
        """Keep other threads from releasing segments to any open device inside the context.

        Yields
        ------
        None
            Holds the lock of each open device.
        """
        with ExitStack() as locks:
            for opened in open_device.open_devices(self._kind.name).devices:
                locks.enter_context(opened.allocator.pending_releases.lock)
            yield

    # Selection of the allocator

    def get_allocator_backend(self) -> str:
        """Return the name of the allocator backend: "native", or "pluggable" after `change_current_allocator`.

        Does not initialise the kind.
        """
        return "native" if pluggable_allocator.current(self._kind.name) is None else "pluggable"

    def change_current_allocator(self, allocator: AllocatorHandle) -> None:
        """Set the kind's allocator, effective from its first use.

        Parameters
        ----------
        allocator : CUDAPluggableAllocator
            The allocator.

        Raises
        ------
        WrongState
            After the kind's first use, or if another allocator is already set.
        """
        new_allocator = allocator.allocator()
        pluggable_allocator.set_current(self._kind.name, new_allocator)
        if new_allocator is not None:
            self._kind.initialisation.call(lambda: self._report_device_count(new_allocator))

    def _report_device_count(self, new_allocator: pluggable_allocator.AllocatorFunctions) -> None:
        if pluggable_allocator.current(self._kind.name) is new_allocator:
            new_allocator.on_init(self._kind.count())

    def current_allocator(self) -> AllocatorHandle:
        """Return the kind's allocator."""
        return self._handle(pluggable_allocator.current(self._kind.name))
