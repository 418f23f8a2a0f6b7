"""Device memory that belongs to a captured graph: positions of random numbers, and temporary memory of its work."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.backends.nvidia._memory import obtain
from forebay.backends.nvidia._stream import Stream
from forebay.backends.nvidia.calls import check
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.graph_executables import HeldHandles, Launch
from forebay.errors import Unsupported
from forebay.vendor import Disposable

if TYPE_CHECKING:
    from forebay.backends.nvidia.queue import CudaQueue

__all__ = ["GraphMemory"]

_PAIR = struct.Struct("=2Q")  # a seed and an offset
_MOST_SOURCES = 256
_UINT64_MAX = (1 << 64) - 1


class GraphMemory(Disposable):
    """The memory of a graph. Each launch writes the seed and the offset of its sources of random numbers into it."""

    def __init__(self, context: PrimaryContext) -> None:
        self._context = context
        self._held = HeldHandles(context, self)  # its last launch may still read the pairs
        self._sources = 0  # address of the pairs
        self._most = 0  # number of pairs that are used

    @property
    def has_sources(self) -> bool:
        """True if launches write positions of random numbers."""
        return bool(self._sources)

    def allocate(self, nbytes: int) -> int:
        """Allocate memory that lives as long as the graph."""
        with self._context.current() as api:
            made = obtain(self._held.handles, "cuMemFree", api.cuMemAlloc, nbytes)
        return int(check(made, "cuMemAlloc", self._context.name))

    def source(self, number: int) -> int:
        """Return the address of the seed and the offset of a source of random numbers."""
        if not 0 <= number < _MOST_SOURCES:
            raise Unsupported(f"a graph has at most {_MOST_SOURCES} sources of random numbers", ability="Captures")
        if not self._sources:
            self._sources = self.allocate(_MOST_SOURCES * _PAIR.size)
        self._most = max(self._most, number + 1)
        return self._sources + number * _PAIR.size

    def write(self, queue: CudaQueue, sources: Sequence[tuple[int, int]]) -> None:
        """Queue the write of the seeds and offsets for one launch, after earlier launches that read them."""
        if not self._sources:
            return
        if self._held.last is not None:
            self._held.last.precede(queue)
        self._held.last = Launch(queue, None)
        used = sources[: self._most]
        packed = b"".join(_PAIR.pack(seed & _UINT64_MAX, offset & _UINT64_MAX) for seed, offset in used)
        if packed:
            buffer = ctypes.create_string_buffer(packed, len(packed))
            Stream.copy(queue, self._sources, ctypes.addressof(buffer), len(packed))  # has read it when it returns

    def launched(self, queue: CudaQueue) -> None:
        """Note the end of a launch for which `write` was called."""
        if self._sources:
            self._held.last = Launch(queue, Stream.signal(queue))

    def _dispose(self) -> None:
        if (context := vars(self).get("_context")) is not None:  # else `__init__` was interrupted
            context.has_discarded = True
