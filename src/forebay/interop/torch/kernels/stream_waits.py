"""Operators for which the host waits on a GPU, and which cannot be captured: it needs a value, or copies memory.

A copy that the program lets run on does not wait, but can only be captured if the host's memory is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.runtime.base import capture_state
from forebay.runtime.streams.stream import current_stream_for

__all__ = ["waits_for_stream"]

_WAITING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_UNPINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
_MASKS = (torch.bool, torch.uint8)


def waits_for_stream(operator: Any) -> Callable[..., bool] | None:
    """Return the function that says for arguments whether an operator waits for the current stream, or None."""
    name = operator._schema.name.partition("::")[2]
    if name == "copy_":
        return _copies_pageable
    if name == "index":
        return _reads_indices
    if name == "_index_put_impl_":
        return _puts_at_mask
    if name == "repeat_interleave":
        return _has_no_size
    return _always if any(tag in operator.tags for tag in _WAITING) else None


def _always(*_: Any, **__: Any) -> bool:
    return True


def _copies_pageable(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> bool:
    """Return True unless the copy runs on. Raises PyTorch's error in a capture if the host's memory is not pinned."""
    if target.is_cuda == source.is_cuda:
        return False
    host = source if target.is_cuda else target
    if host.device.type != "cpu":
        return False
    if capture_state.active:
        stream = current_stream_for(open_torch_device(target.device if target.is_cuda else source.device))
        if stream.is_capturing() and not host.is_pinned():
            raise RuntimeError(_UNPINNED)
    return not non_blocking


def _reads_indices(given: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: Any, **__: Any) -> bool:
    """Return True if an index is a mask, whose elements are counted, or is copied from the host."""
    return any(each is not None and (each.dtype in _MASKS or not each.is_cuda) for each in indices)


def _puts_at_mask(
    given: torch.Tensor, indices: Sequence[torch.Tensor | None], source: torch.Tensor, accumulate: bool = False,
    unsafe: bool = False,
) -> bool:  # fmt: skip
    """Return True unless a number of the host is written at a mask, for which no indices are needed."""
    is_number = source.numel() == 1 and not source.is_cuda and sum(each is not None for each in indices) == 1
    is_mask = is_number and any(each is not None and each.dtype in _MASKS for each in indices)
    return _reads_indices(given, indices) and (accumulate or not is_mask)


def _has_no_size(repeats: torch.Tensor, *_: Any, output_size: int | None = None, **__: Any) -> bool:
    return output_size is None
