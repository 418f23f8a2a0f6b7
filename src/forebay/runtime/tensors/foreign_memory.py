"""Tensors over device memory that belongs to another library."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay._base.byte_sizes import LIMIT
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["tensor_over_memory"]


def tensor_over_memory(
    opened: OpenDevice,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: object,
) -> Tensor:
    """Return a tensor of the elements from `address` on, strides in bytes.

    The owner is kept alive until the work that is queued on the tensor has completed. Raises RuntimeError if there
    is no such memory.
    """
    if any(length < 0 for length in shape):
        least = min(shape)
        raise RuntimeError(f"Trying to create tensor with negative dimension {least}: {list(shape)}")
    if any(length >= LIMIT for length in shape):
        raise RuntimeError(f"a tensor cannot have the shape {list(shape)}")
    if 0 in shape:
        return Tensor(Storage(opened, 0, 0, None), dtype, shape, strides)
    if not address:
        raise RuntimeError(f"elements of shape {list(shape)} have no address")
    spans = [(length - 1) * step for length, step in zip(shape, strides, strict=True)]
    before, after = -sum(span for span in spans if span < 0), sum(span for span in spans if span > 0) + dtype.itemsize
    if not (before < address and address + after <= LIMIT):
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(shape)} and "
            f"strides={[step // dtype.itemsize for step in strides]}"
        )
    return Tensor(Storage(opened, before + after, address - before, owner), dtype, shape, strides, before)
