"""States of generators as tensors: a uint8 tensor on the CPU per state, in memory that many states share."""

from __future__ import annotations

from itertools import count

import numpy as np

from forebay._base.layouts import size_of
from forebay.runtime.memory.storage import HostStorage
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["state_tensor"]

_PER_BUFFER = 64
_UINT8 = np.dtype(np.uint8)


class _Buffer:
    """Memory for states of one size. A state keeps its buffer alive; asking NumPy for an address takes longer."""

    def __init__(self, nbytes: int) -> None:
        array = np.empty(_PER_BUFFER * nbytes, np.uint8)
        self.array = array
        self.bytes = memoryview(array.data)
        self.address = array.__array_interface__["data"][0]
        self.shape = size_of((nbytes,))
        self.slots = count()


_buffers: dict[int, _Buffer] = {}  # by size of a state


def state_tensor(state: bytes) -> Tensor:
    """Return the bytes of a state as a tensor on the CPU, whose memory is in no allocator's statistics."""
    nbytes = len(state)
    buffer = _buffers.get(nbytes)
    if buffer is None or (slot := next(buffer.slots)) >= _PER_BUFFER:  # two threads may both replace a full buffer
        buffer = _buffers[nbytes] = _Buffer(nbytes)
        slot = next(buffer.slots)
    begin = slot * nbytes
    buffer.bytes[begin : begin + nbytes] = state
    address = buffer.address + begin
    return Tensor(HostStorage(nbytes, address, buffer.array), _UINT8, buffer.shape, (1,))
