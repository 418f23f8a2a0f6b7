"""A user's own allocator: two C functions that give memory and take it back, for all of a kind or for one MemPool.

void* allocate(ssize_t nbytes, int device, void* stream);
void release(void* address, ssize_t nbytes, int device, void* stream);
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay.errors import Unsupported, WrongState
from forebay.runtime.allocator.segment_sources import taken_from
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base import lazy_init

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["Plugged", "PluggedBlock", "change", "current", "forget_kind"]

_ALIGNED = 16  # what malloc gives, and what every element type does with

_current: dict[str, Plugged] = {}  # by kind: who serves instead of the native allocator

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_INIT = ctypes.CFUNCTYPE(None, ctypes.c_int)
_RESET = ctypes.CFUNCTYPE(None)
_FRACTION = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)
_RECORD = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _ignore(*_: object) -> None:
    pass


class Plugged:
    """Functions by their addresses; `library` stays loaded as long as anything of theirs is in use.

    They are called without the interpreter's lock, one call after the other only if they see to that themselves.
    """

    def __init__(
        self, allocate: int, release: int, library: object = None, name: str = "the plugged allocator"
    ) -> None:
        self._allocate, self._release = _ALLOCATE(allocate), _RELEASE(release)
        self._library = library
        self._name = name
        self.on_init: Callable[[int], object] = _ignore
        self.on_reset: Callable[[], object] = _ignore
        self.on_fraction: Callable[[float, int], object] = _ignore
        self.on_record: Callable[[int, int], object] = _ignore

    def reserve(self, nbytes: int, device: int, queue: int) -> int:
        """An address, or 0."""
        return self._allocate(nbytes, device, queue) or 0

    def release(self, address: int, nbytes: int, device: int, queue: int) -> None:
        self._release(address, nbytes, device, queue)

    # What a program may have it told as well, each by a function's address. (`torch._C._CUDAPluggableAllocator`)

    def set_init_fn(self, function: int) -> None:
        """`void f(int count)`: how many devices there are, before the first is used."""
        self.on_init = _INIT(function)

    def set_reset_fn(self, function: int) -> None:
        """`void f()`: the cache should be emptied."""
        self.on_reset = _RESET(function)

    def set_memory_fraction_fn(self, function: int) -> None:
        """`void f(double fraction, int device)`."""
        self.on_fraction = _FRACTION(function)

    def set_record_stream_fn(self, function: int) -> None:
        """`void f(void* address, void* stream)`: that stream uses the memory, too."""
        self.on_record = _RECORD(function)

    def set_base_alloc_fn(self, function: int) -> None:  # noqa: ARG002 -- it cannot be used
        """For sharing memory with other processes."""
        raise Unsupported("memory of a plugged allocator is not shared with other processes, so nobody would call this")

    def set_begin_allocate_to_pool(self, function: int) -> None:  # noqa: ARG002 -- it cannot be used
        """Takes a C++ std::function, which is no C function's to take."""
        raise Unsupported("a plugged allocator has no pools of its own here: give it to a MemPool")

    set_end_allocate_to_pool_fn = set_release_pool = set_begin_allocate_to_pool

    def __repr__(self) -> str:
        return self._name


class PluggedBlock(UncachedBlock):
    """Memory of a plugged allocator. Its end waits for all work on the device, then gives it back to that same one."""

    __slots__ = ("_source",)

    def __init__(self, source: Plugged, opened: OpenDevice, nbytes: int, queue: int) -> None:
        self._source = source
        super().__init__(opened.allocator, nbytes, queue)

    def _take(self) -> int:
        return taken_from(self._source, self.nbytes, self._port.props.index, self.queue, _ALIGNED)

    def _give_back(self) -> None:
        self._allocator.wait_for_all()
        self._source.release(self.address, self.nbytes, self._port.props.index, self.queue)

    def used_on(self, queue: int) -> None:
        super().used_on(queue)
        self._source.on_record(self.address, queue)


def current(kind: str) -> Plugged | None:
    """Who serves the kind, if not the native allocator."""
    return _current.get(kind)


def change(kind: str, plugged: Plugged | None) -> None:
    """Let it serve the kind from its first use on. WrongState after that, and where another is to serve already."""
    if lazy_init.of(kind).done or kind in _current:
        raise WrongState("Can't swap an already initialized allocator")
    if plugged is not None:
        _current[kind] = plugged


def forget_kind(kind: str) -> None:
    """The native one serves again: there are no devices of the kind any more."""
    _current.pop(kind, None)
