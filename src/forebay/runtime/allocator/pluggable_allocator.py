"""Pluggable allocators: two user-supplied C functions that serve all devices of a kind, or one MemPool.

void* allocate(ssize_t nbytes, int device, void* stream);
void release(void* address, ssize_t nbytes, int device, void* stream);
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from forebay.errors import Unsupported, WrongState
from forebay.runtime.allocator.segment_sources import reserve_from
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base import lazy_init

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator

__all__ = ["AllocatorFunctions", "PluggableBlock", "current", "reset_kind", "set_current"]

_ALIGNMENT = 16  # as malloc's, which suffices for every element type

_current: dict[str, AllocatorFunctions] = {}  # by kind: the allocator used instead of the native one

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_INIT = ctypes.CFUNCTYPE(None, ctypes.c_int)
_RESET = ctypes.CFUNCTYPE(None)
_FRACTION = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)
_RECORD = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _ignore(*_: object) -> None:
    pass


class AllocatorFunctions:
    """A user's allocator, given by function addresses; keeps `library` loaded while its functions are in use.

    The functions are called without the GIL, and concurrently unless they lock themselves.
    """

    def __init__(
        self, allocate: int, release: int, library: object = None, name: str = "the pluggable allocator"
    ) -> None:
        self._allocate, self._release = _ALLOCATE(allocate), _RELEASE(release)
        self._library = library
        self._name = name
        self.on_init: Callable[[int], object] = _ignore
        self.on_reset: Callable[[], object] = _ignore
        self.on_fraction: Callable[[float, int], object] = _ignore
        self.on_record: Callable[[int, int], object] = _ignore

    def reserve(self, nbytes: int, device: int, queue: int) -> int:
        """Return an address, or 0 if out of memory."""
        return self._allocate(nbytes, device, queue) or 0

    def release(self, address: int, nbytes: int, device: int, queue: int) -> None:
        self._release(address, nbytes, device, queue)

    # Optional callbacks, each given by a function's address (`torch._C._CUDAPluggableAllocator`)

    def set_init_fn(self, function: int) -> None:
        """Set the callback `void f(int device_count)`, called before the first device is used.

        Parameters
        ----------
        function : int
            Address of the C function.
        """
        self.on_init = _INIT(function)

    def set_reset_fn(self, function: int) -> None:
        """Set the callback `void f()`, called to empty the cache.

        Parameters
        ----------
        function : int
            Address of the C function.
        """
        self.on_reset = _RESET(function)

    def set_memory_fraction_fn(self, function: int) -> None:
        """Set the callback `void f(double fraction, int device)`, called when the memory fraction is set.

        Parameters
        ----------
        function : int
            Address of the C function.
        """
        self.on_fraction = _FRACTION(function)

    def set_record_stream_fn(self, function: int) -> None:
        """Set the callback `void f(void* address, void* stream)`, called when another stream uses the memory.

        Parameters
        ----------
        function : int
            Address of the C function.
        """
        self.on_record = _RECORD(function)

    def set_base_alloc_fn(self, function: int) -> None:  # noqa: ARG002 -- it cannot be used
        """Raise Unsupported: PyTorch calls this function to share memory with other processes.

        Parameters
        ----------
        function : int
            Address of the C function.

        Raises
        ------
        Unsupported
            Always.
        """
        raise Unsupported("memory of a pluggable allocator cannot be shared with other processes")

    def set_begin_allocate_to_pool(self, function: int) -> None:  # noqa: ARG002 -- it cannot be used
        """Raise Unsupported: PyTorch expects a C++ `std::function`, which a C function cannot accept.

        Parameters
        ----------
        function : int
            Address of the C function.

        Raises
        ------
        Unsupported
            Always.
        """
        raise Unsupported("a pluggable allocator has no pools of its own: pass it to a MemPool instead")

    set_end_allocate_to_pool_fn: Final = set_begin_allocate_to_pool
    set_release_pool: Final = set_begin_allocate_to_pool

    def __repr__(self) -> str:
        return self._name


class PluggableBlock(UncachedBlock):
    """Memory of a pluggable allocator. `free` waits for all work on the device, then calls that allocator's release."""

    __slots__ = ("_source",)

    def __init__(self, source: AllocatorFunctions, allocator: Allocator, nbytes: int, queue: int) -> None:
        self._source = source
        super().__init__(allocator, nbytes, queue)

    @property
    def _reserve(self) -> Callable[[int], int]:
        return lambda nbytes: reserve_from(self._source, nbytes, self._port.props.index, self.queue, _ALIGNMENT)

    @property
    def _release(self) -> Callable[[], object]:
        return partial(self._source.release, self.address, self.nbytes, self._port.props.index, self.queue)

    def record_stream(self, queue: int) -> None:
        super().record_stream(queue)
        self._source.on_record(self.address, queue)


def current(kind: str) -> AllocatorFunctions | None:
    """Return the kind's pluggable allocator, or None if the native allocator is used."""
    return _current.get(kind)


def set_current(kind: str, plugged: AllocatorFunctions | None) -> None:
    """Serve the kind with a pluggable allocator. WrongState once the kind is initialised or has one already."""
    if lazy_init.get(kind).done or kind in _current:
        raise WrongState("Can't swap an already initialized allocator")
    if plugged is not None:
        _current[kind] = plugged


def reset_kind(kind: str) -> None:
    """Restore the native allocator for a kind whose devices are closed."""
    _current.pop(kind, None)
