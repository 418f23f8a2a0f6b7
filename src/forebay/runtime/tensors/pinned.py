"""Arrays in pinned host memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.memory.storage import array_at
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator

__all__ = ["pinned_array"]


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[Any], allocator: PinnedAllocator) -> NDArray[Any]:
    """Return an uninitialised array in memory of the pinned allocator, which the array owns."""
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    block = allocator.allocate(count * dtype.itemsize)
    return array_at(block.address, (count,), (dtype.itemsize,), dtype, block).reshape(shape)
