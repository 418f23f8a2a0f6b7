"""Operators on emulated devices whose results have as many elements as values decide: nonzero(), unique(), bincount().

CUDA's kernels count first, or allocate the largest possible result, of which the rest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.sizes import expected_count, sized_result
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, alias, memory_of, open_torch_device
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.known_memory import Known, has_room
from forebay.interop.torch.kernels.known_values import known_values
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, nbytes_of
from forebay.interop.torch.kernels.temporary_storage import count_bytes, selection_bytes, sort_bytes
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["SELECTION_KERNELS", "Selecting", "elements_of", "selected_count", "take_places"]

_aten = torch.ops.aten


class Selecting:
    """The buffers of a count and of a selection of elements; the result is allocated between them."""

    def __init__(self, given: torch.Tensor, opened: OpenDevice) -> None:
        self._count = given.numel()
        self._scratch = Scratch(opened)
        self._scratch.take(4)
        self._scratch.free(self._scratch.take(count_bytes(self._scratch.opened, self._count)))

    def finish(self) -> None:
        """Take the buffer of the selection, and free all."""
        self._scratch.free(self._scratch.take(selection_bytes(self._count, 1)))
        self._scratch.close()


def _nonzero(given: torch.Tensor) -> torch.Tensor:
    if not given.numel():
        return _compute_nonzero(given)
    selecting = Selecting(given, open_torch_device(given.device))
    known = elements_of(given)
    result: torch.Tensor = _compute_nonzero(given) if known is None else _give(_aten.nonzero(known), given)
    selecting.finish()
    return result


def elements_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the elements as a tensor of the CPU, or None if they are not known.

    What is selected by known elements has a known size, which these kernels use themselves: they need it for buffers.
    """
    if not tensor.is_cuda:
        return tensor
    if values.is_computed():
        return alias(tensor)
    return known_values(tensor) if memory_of(tensor).known is not None else None


def _give(found: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return a result on the device of an argument."""
    return adopt(found.to(values.device()), open_torch_device(given.device))


def _unique(
    given: torch.Tensor, is_sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the unique elements, in memory for all elements."""
    if not given.numel():
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _compute_unique(
            given, is_sorted, return_inverse, return_counts
        )
        return found
    opened, count = open_torch_device(given.device), given.numel()
    known = elements_of(given)
    if known is not None:
        found = _aten._unique2(known, is_sorted, return_inverse, return_counts)
        results = [each.to(values.device()) for each in found]
    else:
        results = _assumed_unique("_unique2", given, return_inverse, return_counts)
    if given.dtype == torch.bool:
        return _unique_bool(results, opened, count, return_counts=return_counts)
    with Scratch(opened) as scratch:
        scratch.contiguous(given)
        if return_inverse:
            scratch.take(count * 8)
        scratch.take(nbytes_of(given))
        value, floating = 8 if return_inverse else 0, given.is_floating_point()
        scratch.free(scratch.take(sort_bytes(opened, count, given.itemsize, value, floating=floating)))
        elements = adopt(_with_room(results[0], count), opened)
        scratch.take(8)
        inverse = adopt(results[1], opened)
        counts = adopt(_with_room(results[2], count), opened) if return_counts else adopt(results[2], opened)
        scratch.free(scratch.take(selection_bytes(count, given.itemsize)))
    if known is not None and not values.is_computed():  # a part of a memory can be known if all of it is
        for each in (elements, counts):
            memory = memory_of(each)
            if has_room(memory.nbytes):
                memory.known = Known(memory.nbytes, torch.zeros(memory.nbytes, dtype=torch.uint8).untyped_storage())
    return elements, inverse, counts


def _assumed_unique(name: str, given: torch.Tensor, return_inverse: bool, return_counts: bool) -> list[torch.Tensor]:
    """Return results of assumed sizes, which are no tensors of the device yet."""
    found = sized_result(name, {"self": given, "return_inverse": return_inverse, "return_counts": return_counts})
    if found is None:
        raise values.needs_values(f"{name}()")
    return [*found]


def _unique_bool(
    results: Sequence[torch.Tensor], opened: OpenDevice, count: int, *, return_counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return which of False and True there are, by a count: memory for both, and always for their counts."""
    with Scratch(opened) as scratch:
        scratch.take(4)
        scratch.free(scratch.take(count_bytes(opened, count)))
        elements = adopt(_with_room(results[0], 2), opened)
        if return_counts:
            counts = adopt(_with_room(results[2], 2), opened)
        else:
            counts = adopt(results[2], opened)
            scratch.take(2 * 8)
        return elements, adopt(results[1], opened), counts


def _unique_consecutive(
    given: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the elements that differ from the one before, in memory for all elements."""
    if not given.numel() or dim is not None or return_inverse:
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _compute_consecutive(
            given, return_inverse, return_counts, dim
        )
        return found
    opened, count = open_torch_device(given.device), given.numel()
    if (known := elements_of(given)) is not None:
        results = [*_aten.unique_consecutive(known, return_inverse, return_counts, dim)]
    else:
        results = _assumed_unique("unique_consecutive", given, return_inverse, return_counts)
    found_values = [each.to(values.device()) for each in results]
    with Scratch(opened) as scratch:
        scratch.contiguous(given)
        elements = adopt(_with_room(found_values[0], count), opened)
        scratch.take(8)
        counts = adopt(_with_room(found_values[2], count) if return_counts else found_values[2], opened)
        scratch.free(scratch.take(selection_bytes(count, given.itemsize)))
    return elements, adopt(found_values[1], opened), counts


def _with_room(found: torch.Tensor, count: int) -> torch.Tensor:
    """Return elements at the begin of a storage for `count` of them."""
    room = torch.empty(count, dtype=found.dtype, device=found.device)[: found.numel()]
    return room.copy_(found)


def _nonzero_static(given: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Return places, a column for each dimension, with the counts of the blocks and where each begins to write."""
    blocks = -(-given.numel() // _BLOCK)
    if not blocks or not given.dim():
        return _compute_static(given, size=size, fill_value=fill_value)
    opened = open_torch_device(given.device)
    found = _aten.nonzero_static(alias(given), size=size, fill_value=fill_value)
    result = adopt(found.t().contiguous().t(), opened)
    with Scratch(opened) as scratch:
        scratch.take(4 * blocks)
        scratch.take(8 * blocks)
    return result


def _masked_select(given: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the elements of a mask. The GPU finds their places first."""
    check_devices(given, mask)
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = torch.broadcast_shapes(given.shape, mask.shape)
    if not shape.numel():
        return _compute_masked(given, mask)
    count = selected_count(mask)
    with Scratch(given.device) as scratch:
        selected = count * shape.numel() // max(1, mask.numel())
        take_places(scratch, mask, shape, selected)
        if values.is_computed() or elements_of(mask) is None:
            return _compute_masked(given, mask)
        return _give(torch.empty(selected, dtype=given.dtype, device="meta"), given)


def selected_count(mask: torch.Tensor) -> int:
    """Return how many elements of a mask are True, or are assumed to be."""
    known = elements_of(mask)
    return expected_count(mask) if known is None else int(known.count_nonzero())


def take_places(scratch: Scratch, mask: torch.Tensor, shape: Sequence[int], count: int) -> None:
    """Take the places of the elements of a mask of a shape, as nonzero() does."""
    scratch.contiguous(mask)
    selecting = Selecting(torch.empty(shape, dtype=mask.dtype, device="meta"), scratch.opened)
    scratch.take(count * len(shape) * 8)
    selecting.finish()


def _bincount(given: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if weights is not None and weights.shape != given.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if not given.numel() or given.dim() != 1 or given.dtype.is_floating_point or given.is_complex():
        return _compute_bincount(given, weights, minlength)
    least, largest = given.min(), given.max()
    if values.is_computed() or (known := elements_of(given)) is None:
        result: torch.Tensor = _compute_bincount(given, weights, minlength)
    else:
        size = _aten.bincount(known, None, minlength).numel()  # or the operator's error
        dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
        result = _give(torch.empty(size, dtype=dtype, device="meta"), given)
    del largest
    del least
    return result


_BLOCK = 8192  # elements whose places one block of threads finds
_compute_nonzero = generic_kernel(_aten.nonzero.default, values.device)
_compute_static = generic_kernel(_aten.nonzero_static.default, values.device)
_compute_masked = generic_kernel(_aten.masked_select.default, values.device)
_compute_bincount = generic_kernel(_aten.bincount.default, values.device)
_compute_consecutive = generic_kernel(_aten.unique_consecutive.default, values.device)
_compute_unique = generic_kernel(_aten._unique2.default, values.device)
SELECTION_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_unique2": _unique, "aten::unique_consecutive": _unique_consecutive,
    "aten::bincount": _bincount, "aten::masked_select": _masked_select,
    "aten::nonzero": _nonzero, "aten::nonzero_static": _nonzero_static,
}  # fmt: skip
