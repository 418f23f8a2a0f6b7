"""Memory straight from the port and straight back, uncached and uncounted: it shows a program's mistakes sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.errors import ForebayError, complain

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator

__all__ = ["UncachedBlock"]


class UncachedBlock:
    """Like a Block, whose end gives the memory back to the port, after waiting for all work on the device."""

    __slots__ = ("__weakref__", "_allocator", "_port", "address", "freed", "nbytes", "queue")

    def __init__(self, allocator: Allocator, nbytes: int, queue: int) -> None:
        self.freed = True
        if nbytes <= 0:
            raise ValueError(f"cannot take {nbytes} bytes: a block has at least 1")
        self._allocator, self._port = allocator, allocator.port
        self.nbytes, self.queue = nbytes, queue
        self.address = self._take()
        self.freed = False

    @property
    def size(self) -> int:
        return self.nbytes

    def used_on(self, queue: int) -> None:  # noqa: ARG002 -- as a Block has it
        """Nothing to note: its end waits for every queue."""
        if self.freed:
            raise ValueError(f"the block at {self.address:#x} was given back already")

    def free(self) -> None:
        if not self.freed:
            self.freed = True
            if self._allocator.port is not self._port:  # a forked child's copy of its parent's memory
                return
            self._give_back()

    def _take(self) -> int:
        return self._port.reserve(self.nbytes)

    def _give_back(self) -> None:
        self._allocator.wait_for_all()
        self._port.release(self.address)

    def __del__(self) -> None:
        try:
            self.free()
        except ForebayError as error:
            complain(f"a block without a cache could not be given back: {error}")

    def __repr__(self) -> str:
        state = "given back" if self.freed else f"{self.nbytes} bytes"
        return f"<UncachedBlock at {self.address:#x}, {state}>" if hasattr(self, "address") else "<UncachedBlock>"
