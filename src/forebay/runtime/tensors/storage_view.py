"""Views of a storage by size, stride and offset in elements, with PyTorch's checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay._base.layouts import Size
from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor
    from forebay.runtime.tensors.untyped_storage import UntypedStorage

__all__ = ["set_storage"]


def _contiguous_strides(size: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    steps = [1]
    for length in size[:0:-1]:
        steps.append(steps[-1] * max(length, 1))
    return tuple(steps[: len(size)][::-1])


def set_storage(
    tensor: Tensor, source: UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int] | None
) -> None:
    """Make the tensor a view of the storage, which is enlarged if needed; lengths and offset in elements.

    Raises ForebayError for an invalid one.
    """
    steps = _contiguous_strides(size) if stride is None else tuple(stride)
    if source.device != tensor.device:
        raise ForebayError(
            f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage on different device '
            f'"{source.device}".  This is no longer allowed; the devices must match.'
        )
    if len(size) != len(steps):
        raise ForebayError(f"unequal size length ({len(size)}) and stride length ({len(steps)})")
    if offset < 0:
        raise ForebayError(f"Tensor: invalid storage offset {offset}")
    if min(size, default=0) < 0 or min(steps, default=0) < 0:
        raise ForebayError(f"Storage size calculation overflowed with sizes={[*size]} and strides={[*steps]}")
    last = offset + sum((length - 1) * step for length, step in zip(size, steps, strict=True))
    if math.prod(size) and (last + 1) * tensor.itemsize > source.nbytes():
        source.resize_((last + 1) * tensor.itemsize)
    tensor.version_counter()  # that of the previous memory, which the tensor and its views keep
    tensor.raw_storage = source.for_tensor()
    tensor.shape = Size(size)
    tensor.byte_strides = tuple(step * tensor.itemsize for step in steps)
    tensor.byte_offset = offset * tensor.itemsize
