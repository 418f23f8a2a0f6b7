"""Blocks allocated from the port without cache or statistics, so that memory errors show at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from forebay.backends.common._disposal import Disposable
from forebay.errors import ForebayError, warn_unraisable
from forebay.runtime.allocator._reservations import free_into, reserve_into

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator

__all__ = ["UncachedBlock"]


class UncachedBlock(Disposable):
    """A Block without a cache: `free` waits for all work on the device, then releases the memory to the port."""

    nbytes: int
    queue: int

    __slots__ = ("__weakref__", "_allocator", "_port", "address", "freed", "nbytes", "queue")

    address: int

    def __init__(self, allocator: Allocator, nbytes: int, queue: int) -> None:
        self.freed: bool = True
        if nbytes <= 0:
            raise ValueError(f"cannot take {nbytes} bytes: a block has at least 1")
        self._allocator, self._port = allocator, allocator.port
        self.nbytes, self.queue = nbytes, queue
        reserve_into(self, self._reserve, nbytes)

    @property
    def size(self) -> int:
        return self.nbytes

    def record_stream(self, queue: int) -> None:  # noqa: ARG002 -- as a Block has it
        """Do nothing for a live block: `free` waits for every queue."""
        if self.freed:
            raise ValueError(f"the block at {self.address:#x} was already freed")

    def free(self) -> None:
        """Free the block. Repeatable; a call after an interrupted one continues it."""
        if hasattr(self, "address"):  # else it has no memory
            free_into(self._allocator.uncached_releases, self, self._release)
            self._allocator.release_uncached()

    @property
    def _reserve(self) -> Callable[[int], int]:
        return self._port.reserve

    @property
    def _release(self) -> Callable[[], object]:
        return partial(self._port.release, self.address)

    def _dispose(self) -> None:
        try:
            self.free()
        except ForebayError as error:
            warn_unraisable(f"an uncached block could not be released: {error}")

    def __repr__(self) -> str:
        state = "freed" if self.freed else f"{self.nbytes} bytes"
        return f"<UncachedBlock at {self.address:#x}, {state}>" if hasattr(self, "address") else "<UncachedBlock>"
