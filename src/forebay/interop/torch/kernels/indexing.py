"""Indexed additions on emulated devices: the sort of the indices, by which the GPU adds in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import assumed
from forebay.interop.torch.assumptions.sizes import assumed_count
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of, mixed_devices
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.known_values import known_values
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of
from forebay.interop.torch.kernels.selection import selected_count, take_places
from forebay.interop.torch.kernels.sorting import take_index_sort

__all__ = ["INDEXING_KERNELS", "masks_select_all"]

_aten = torch.ops.aten
_compute_put = generic_kernel(_aten._index_put_impl_.default, values.device)
_compute_index = generic_kernel(_aten.index.Tensor, values.device)
_masks_select_all: ContextVar[bool] = ContextVar("_masks_select_all", default=False)


@contextmanager
def masks_select_all() -> Iterator[None]:
    """Assume, where no values are computed, that all elements of a mask are True."""
    token = _masks_select_all.set(True)
    try:
        yield
    finally:
        _masks_select_all.reset(token)


def _index_put(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], source: torch.Tensor, accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:  # fmt: skip
    used = [each for each in indices if each is not None]
    _check_values(target, indices, source, accumulate=accumulate)
    is_sorted = (accumulate or torch.are_deterministic_algorithms_enabled()) and used and source.numel()
    with Scratch(target.device) as scratch:
        if not is_sorted:
            _take_wide(scratch, indices)
        if accumulate or source.is_cuda or source.numel() != 1:  # else it fills by the mask itself
            _take_masks(scratch, indices)
        if not accumulate:
            _take_expanded(scratch, indices)
        result: torch.Tensor = _compute_put(target, indices, source, accumulate, unsafe)
    kept = target.numel()
    for at, each in enumerate(indices):
        if each is not None:
            kept //= max(1, target.shape[at])
    if is_sorted:
        with Scratch(target.device) as scratch:
            scratch.contiguous(target)
            _take_wide(scratch, indices)
            moved = nbytes_of(target) if _moves_dimensions(target, indices) else 0
            _take_sort(scratch, used, source, kept, (target.numel() - 1) // max(1, kept), moved, checks=not unsafe)
    return result


def _check_values(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], source: torch.Tensor, *, accumulate: bool
) -> None:
    """Raise PyTorch's errors for values of another device, and for those that do not fit without counting a mask."""
    if not target.is_cuda:
        return
    used = [each for each in indices if each is not None]
    is_mask = [each.dtype in (torch.bool, torch.uint8) for each in used]
    fills = len(used) == 1 and is_mask[0] and source.numel() == 1 and not source.is_cuda and not accumulate
    if source.device != target.device and not fills and (source.is_cuda or source.dim()):
        raise mixed_devices(target.device, source.device)
    if values.is_computed() or any(is_mask):
        return
    if len(indices) > target.dim():
        raise IndexError(f"too many indices for tensor of dimension {target.dim()} (got {len(indices)})")
    try:
        broadcast = torch.broadcast_shapes(*(each.shape for each in used))
    except RuntimeError:  # the operator refuses them, too
        return
    places = [at for at, each in enumerate(indices) if each is not None]
    others = [length for at, length in enumerate(target.shape) if at not in places]
    begin = places[0] if places and places == [*range(places[0], places[-1] + 1)] else 0
    shape = (*others[:begin], *broadcast, *others[begin:])
    pairs = zip(reversed(shape), reversed(source.shape), strict=False)
    if source.dim() > len(shape) or any(one not in (1, length) for length, one in pairs):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(source.shape)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        )


def _take_wide(scratch: Scratch, indices: Sequence[torch.Tensor | None]) -> None:
    """Take the copies of indices of 32 bits in 64."""
    for each in indices:
        if each is not None and each.is_cuda and each.dtype == torch.int32:
            scratch.take(nbytes_of(each, torch.int64))


def _moves_dimensions(target: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> bool:
    """Return True if others are between the indexed dimensions, which are moved to the front of a copy."""
    used = [at for at, each in enumerate(indices) if each is not None]
    if used == [*range(used[0], used[-1] + 1)]:
        return False
    others = [at for at in range(target.dim()) if at not in used]
    return not torch.empty(target.shape, device="meta").permute(used + others).is_contiguous()


def _take_masks(scratch: Scratch, indices: Sequence[torch.Tensor | None]) -> None:
    """Take the places of the elements of masks."""
    for each in indices:
        if each is not None and each.dtype in (torch.bool, torch.uint8) and each.numel():
            count = each.numel() if _masks_select_all.get() and each.dim() == 1 else selected_count(each)
            if each.is_cuda:
                take_places(scratch, each, each.shape, count)
            else:
                for _ in range(each.dim()):
                    scratch.take(count * 8)


def _take_expanded(scratch: Scratch, indices: Sequence[torch.Tensor | None]) -> None:
    """Take the indices of all elements if several tensors of indices differ in their layouts."""
    used = [each for each in indices if each is not None]
    if len(used) < 2 or any(each.dtype in (torch.bool, torch.uint8) or not each.is_cuda for each in used):
        return
    try:
        shape = torch.broadcast_shapes(*(each.shape for each in used))
    except RuntimeError:  # the operator refuses them, too
        return
    if len({each.expand(shape).stride() for each in used}) > 1:
        for each in used:
            if not each.expand(shape).is_contiguous():
                scratch.take(shape.numel() * each.itemsize)


def _take_sort(
    scratch: Scratch,
    indices: Sequence[torch.Tensor],
    source: torch.Tensor,
    kept: int,
    largest: int,
    moved: int,
    *,
    checks: bool,
) -> None:
    shape = torch.broadcast_shapes(*(each.shape for each in indices))
    bytes_of_all = shape.numel() * 8
    linear = -1
    for each in indices:
        if each.dtype == torch.bool:
            return  # its indices depend on values
        if checks and each.is_cuda:
            with Scratch(scratch.opened) as bounds:
                for _ in range(2):
                    bounds.take(8)
                if each.shape != shape:
                    bounds.take(bytes_of_all)
                for _ in range(2):
                    bounds.free(bounds.take(1))
                bounds.free(0)
        if each.is_cuda:
            wrapped = scratch.take(bytes_of_all)
            strided = scratch.take(bytes_of_all)
            scratch.free(wrapped)
        else:  # computed on the CPU, then copied
            strided = scratch.take(nbytes_of(each))
        if linear >= 0:
            scratch.free(strided)
        else:
            linear = strided
    if source.numel() != shape.numel() * kept or not source.is_contiguous():
        scratch.take(shape.numel() * kept * source.itemsize)
    if moved:
        scratch.take(moved)
    for _ in range(3):
        scratch.take(bytes_of_all)
    take_index_sort(scratch, shape.numel(), 8, largest)


def _index(given: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the elements. Indices on the CPU are copied."""
    if any(each is not None and each.is_cuda and each.device != given.device for each in indices):
        place = given.device
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({place})")
    with Scratch(given.device) as scratch:
        for each in indices:
            if each is not None and not each.is_cuda and each.dtype != torch.bool:
                scratch.take(nbytes_of(each))
        _take_wide(scratch, indices)
        _take_masks(scratch, indices)
        _take_expanded(scratch, indices)
        if not values.is_computed():
            indices = _without_known_masks(given, indices)
        result: torch.Tensor = _compute_index(given, indices)
    return result


def _without_known_masks(
    given: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:  # fmt: skip
    """Return the indices of the elements of known masks, one for each dimension, in place of the masks."""
    found: list[torch.Tensor | None] = []
    for each in indices:
        if each is None or each.dtype not in (torch.bool, torch.uint8):
            found.append(each)
            continue
        at = len(found)
        if each.shape != given.shape[at : at + each.dim()]:
            raise IndexError(
                f"The shape of the mask {list(each.shape)} at index {at} does not match the shape of the indexed "
                f"tensor {list(given.shape)} at index {at}"
            )
        is_known = not each.is_cuda or memory_of(each).known is not None
        known = known_values(each) if each.is_cuda and is_known else each
        if known is not None and is_known:
            found += known.nonzero().unbind(1)
        elif _masks_select_all.get() and each.dim() == 1:
            found.append(torch.arange(each.shape[0]))
        elif values.is_strict() and not assumed(each).is_exact:
            found.append(each)
        else:  # without the indices themselves, for which the host may have no memory
            count = assumed_count(each, "index")
            found += [torch.empty(count, dtype=torch.int64, device="meta") for _ in range(each.dim())]
    return found


INDEXING_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_index_put_impl_": _index_put,
    "aten::index.Tensor": _index,
}
