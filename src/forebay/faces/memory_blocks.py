"""Taking and giving back a kind's memory by address, its private pools, and who serves: PyTorch's names."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from forebay.device_spec import Device
from forebay.errors import ForebayError, Unsupported
from forebay.faces.kind import Kind
from forebay.faces.memory_statistics import opened_or_none
from forebay.runtime.allocator import pluggable_allocator
from forebay.runtime.allocator.pluggable_allocator import Plugged
from forebay.runtime.devices import open_device
from forebay.runtime.history.torch_schema import of_pool
from forebay.runtime.memory import mem_pool
from forebay.runtime.memory.storage import allocate_block
from forebay.runtime.settings import process_settings
from forebay.runtime.streams.stream import Stream, stream_of
from forebay.spi import Managed

__all__ = ["AllocatorHandle", "KindPool", "ManagedMemory", "MemoryBlocks", "PluggableAllocator"]


class AllocatorHandle:
    """Who serves a kind: None stands for the native allocator. (`torch.cuda.memory._CUDAAllocator`)"""

    def __init__(self, allocator: Plugged | None) -> None:
        self._allocator = allocator

    def allocator(self) -> Plugged | None:
        return self._allocator


class PluggableAllocator(AllocatorHandle):
    """Two functions of a shared library. (`torch.cuda.CUDAPluggableAllocator`)

    `void* alloc(ssize_t nbytes, int device, cudaStream_t)` and `void free(void*, ssize_t nbytes, int device,
    cudaStream_t)`. Raises OSError for a library that cannot be loaded, AttributeError for a function it lacks.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(path_to_so_file)
        allocate, release = (_address_of(library, name) for name in (alloc_fn_name, free_fn_name))
        super().__init__(Plugged(allocate, release, library, f"{alloc_fn_name} of {path_to_so_file}"))


def _address_of(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


class KindPool(mem_pool.MemPool):
    """A pool whose questions go to the kind's current device."""

    kind: ClassVar[Kind]

    def __init__(self, allocator: Plugged | None = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None and not isinstance(allocator, Plugged):
            raise TypeError(
                "the allocator of a pool is what CUDAPluggableAllocator(...).allocator() gives, "
                f"not {type(allocator).__name__}"
            )
        if pluggable_allocator.current(self.kind.name) is not None:
            raise Unsupported(
                "pluggable does not yet support createOrIncrefPool. "
                "If you need it, please file an issue describing your use case."
            )
        super().__init__(use_on_oom=bool(use_on_oom), no_split=bool(no_split), source=allocator)

    def use_count(self) -> int:  # type: ignore[override]  # PyTorch's has no device
        """How many use it on the current device: itself, and each `use_mem_pool` or graph under way. Opens nothing."""
        opened = self.kind.opened_if()
        return 1 if opened is None else self.users(opened)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:  # type: ignore[override]  # noqa: ARG002 -- as above; PyTorch's, of segments
        """Its segments on all devices, as `memory_snapshot`."""
        return [
            row
            for opened in open_device.opened_of(self.kind.name).devices
            for row in of_pool(opened.allocator, self.id)
        ]


class ManagedMemory:
    """Memory that the host reads as well, and that does not count as the device's. (`cudaMallocManaged`)"""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._ports: dict[int, Managed] = {}  # by address: its emulation may have ended since

    def reserve(self, nbytes: int, device: int, queue: int) -> int:  # noqa: ARG002 -- as every source
        port = open_device.open_device(Device(self._kind.name, device)).port
        if not isinstance(port, Managed):
            raise Unsupported(f"{self._kind.name}:{device} has no managed memory", ability="Managed")
        address = port.reserve_managed(nbytes)
        self._ports[address] = port
        return address

    def release(self, address: int, nbytes: int, device: int, queue: int) -> None:  # noqa: ARG002 -- as every source
        self._ports[address].release_managed(address)
        del self._ports[address]


class MemoryBlocks:
    """Of one kind."""

    def __init__(self, kind: Kind, pool: type[KindPool], handle: type[AllocatorHandle] = AllocatorHandle) -> None:
        self._kind = kind
        self._pool = pool
        self._handle = handle

    def caching_allocator_alloc(self, size: int, device: Any = None, stream: Any = None) -> int:
        """The address of so many bytes, for other libraries; 0 for none. `caching_allocator_delete` gives them back.

        They belong to that stream, a Stream or the driver's handle, or to the current one. Initialises the kind and
        opens the device. Raises OutOfMemory, ValueError for a size that is none, TypeError for what is no stream.
        """
        kind = self._kind
        index = kind.current_index() if device is None else kind.index(device)
        if stream is not None and not isinstance(stream, (Stream, int)):
            raise TypeError(
                f"Invalid type for stream argument, must be `forebay.{kind.name}.Stream` or `int` "
                "representing a pointer to an existing stream"
            )
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"Invalid memory size: {size!r}. caching_allocator_alloc requires a non-negative size.")
        opened = kind.opened(kind.ranged(index))
        if size == 0:
            return 0
        queue = stream if isinstance(stream, int) else (stream or stream_of(opened)).handle
        block = allocate_block(opened, size, queue)
        opened.raw[block.address] = block
        return block.address

    def caching_allocator_delete(self, mem_ptr: int) -> None:
        """Give back what `caching_allocator_alloc` gave; 0 is nothing. RuntimeError for any other address."""
        if not isinstance(mem_ptr, int):
            raise TypeError(f"an address is an int, not {type(mem_ptr).__name__}")
        if mem_ptr == 0:
            return
        for opened in open_device.opened_of(self._kind.name).devices:
            if (block := opened.raw.pop(mem_ptr, None)) is not None:
                block.free()
                return
        if pluggable_allocator.current(self._kind.name) is not None:
            raise ForebayError("Trying to free a pointer not allocated here")
        raise ForebayError(f"invalid device pointer: {mem_ptr:#x}")

    def caching_allocator_enable(self, value: bool = True) -> None:
        """Whether memory given back is kept for later, on the devices of all kinds. Nothing before the first use.

        ForebayError for what is no bool.
        """
        if not self._kind.initialised:
            return
        if not isinstance(value, bool):
            raise ForebayError(f"cudaCachingAllocator_enable expects a bool, but got {type(value).__name__}")
        process_settings.enable_caching(value)

    @contextmanager
    def caching_allocator_disabled(self) -> Iterator[None]:
        """Every allocation is the device's own meanwhile."""
        before = process_settings.caching
        self.caching_allocator_enable(False)
        try:
            yield
        finally:
            self.caching_allocator_enable(before)

    @contextmanager
    def use_mem_pool(self, pool: mem_pool.MemPool, device: Any = None) -> Iterator[None]:
        """What this thread allocates on the device comes from the pool meanwhile. Initialises the kind, and opens it.

        Uses nest, and the innermost counts; a graph that is being captured keeps the pool's memory. Raises
        ForebayError for a pool that is in use already.
        """
        kind = self._kind
        index = kind.current_index() if device is None else kind.index(device)
        kind.initialisation.ensure()
        opened_or_none(kind, index, "Invalid device argument")
        with mem_pool.use_mem_pool(pool, Device(kind.name, index)):
            capture = stream_of(kind.opened(index)).capture
            graph = None if capture is None else capture.owner()
            if graph is not None:
                graph._retain_pool(pool)  # noqa: SLF001 -- PyTorch's name
            yield

    @contextmanager
    def use_uvm(self, device: Any = None) -> Iterator[KindPool]:
        """What this thread allocates meanwhile is managed: the host reads it too, and it may exceed the device's.

        Gives the pool it is in. Raises Unsupported where the device has no such memory.
        """
        pool = self._pool()
        pool.source = ManagedMemory(self._kind)
        with self.use_mem_pool(pool, device):
            yield pool

    def host_allocator(self) -> int:
        """A number that names the allocator of pinned host memory. Initialises the kind, opens the current device."""
        return id(self._kind.opened().pinned)

    @contextmanager
    def free_mutex(self) -> Iterator[None]:
        """No segment goes back to a device that is open meanwhile, but from this thread."""
        with ExitStack() as held:
            for opened in open_device.opened_of(self._kind.name).devices:
                held.enter_context(opened.allocator.leaving.releasing)
            yield

    # Who serves

    def get_allocator_backend(self) -> str:
        """One of "native" and "pluggable", where a program brought its own allocator. Initialises nothing."""
        return "native" if pluggable_allocator.current(self._kind.name) is None else "pluggable"

    def change_current_allocator(self, allocator: AllocatorHandle) -> None:
        """Let it serve the kind from its first use on. WrongState after that, and where another is to serve already."""
        serving = allocator.allocator()
        pluggable_allocator.change(self._kind.name, serving)
        if serving is not None:
            self._kind.initialisation.call(lambda: self._tell_count(serving))

    def _tell_count(self, serving: Plugged) -> None:
        if pluggable_allocator.current(self._kind.name) is serving:
            serving.on_init(self._kind.count())

    def current_allocator(self) -> AllocatorHandle:
        """Who serves the kind."""
        return self._handle(pluggable_allocator.current(self._kind.name))
