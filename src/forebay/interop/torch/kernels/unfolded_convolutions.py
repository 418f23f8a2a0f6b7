"""Transposed convolutions that cuDNN refuses on emulated devices: PyTorch's own kernels, which compute with columns.

cuDNN refuses an output padding that is not less than the stride. The columns of an image are a product of matrices with
the weight, and are added to the result, one image after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from forebay.interop.torch.devices.emulated_memory import adopt
from forebay.interop.torch.kernels.reductions import take_reduction
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of
from forebay.interop.torch.kernels.workspaces import blas_workspace
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["give_gradients_of_columns", "give_result_of_columns", "uses_columns"]

_Optional: TypeAlias = torch.Tensor | None


def uses_columns(transposed: bool, output_padding: Sequence[int], stride: Sequence[int]) -> bool:
    """Return True if PyTorch does not ask cuDNN for a convolution."""
    if not transposed:
        return False
    strides = [*stride] * len(output_padding) if len(stride) == 1 else stride
    return any(one >= other for one, other in zip(output_padding, strides, strict=False))


def give_result_of_columns(
    opened: OpenDevice, given: torch.Tensor, weight: torch.Tensor, bias: _Optional, found: torch.Tensor, groups: int
) -> torch.Tensor:  # fmt: skip
    """Return the result as a tensor of the device, with the buffers of the kernel."""
    with Scratch(opened) as scratch:
        for _ in range(groups if groups > 1 else 0):
            part = scratch.take(_bytes_of_part(given, groups))
            _take_result(scratch, given, weight, bias, found, groups)
            scratch.free(part)
        if groups > 1:
            return adopt(found.contiguous(), opened)
        scratch.contiguous(given)
        scratch.contiguous(weight)
        return _give_one(scratch, given, weight, bias, found)


def _bytes_of_part(tensor: torch.Tensor, groups: int) -> int:
    """Return the bytes of a copy of the channels of a group; 0 if they are contiguous."""
    part = tensor.narrow(1, 0, tensor.shape[1] // groups)
    return 0 if part.is_contiguous() else nbytes_of(part)


def _take_result(
    scratch: Scratch, given: torch.Tensor, weight: torch.Tensor, bias: _Optional, found: torch.Tensor, groups: int
) -> None:  # fmt: skip
    """Take the result of a group, which is kept until all are joined."""
    nbytes, first = nbytes_of(found) // groups, nbytes_of(given) // groups
    if given.dim() != 5:
        scratch.take(nbytes)
    else:  # a result of the size of the input, which is replaced if it is too small
        begun = scratch.take(first)
        if nbytes > first:
            scratch.take(nbytes)
            scratch.free(begun)
    _take_products(scratch, given, weight, bias, found)


def _give_one(
    scratch: Scratch, given: torch.Tensor, weight: torch.Tensor, bias: _Optional, found: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    found = found.contiguous()
    if given.dim() == 5 and given.numel() >= found.numel():  # see _take_result()
        room = torch.empty(given.numel(), dtype=found.dtype, device=found.device)
        result = adopt(room[: found.numel()].view(found.shape).copy_(found), scratch.opened)
    else:
        begun = scratch.take(nbytes_of(given)) if given.dim() == 5 else None
        result = adopt(found, scratch.opened)
        if begun is not None:
            scratch.free(begun)
    _take_products(scratch, given, weight, bias, found)
    return result


def _take_products(
    scratch: Scratch, given: torch.Tensor, weight: torch.Tensor, bias: _Optional, found: torch.Tensor
) -> None:  # fmt: skip
    """Take and free the columns of an image, ones for the bias, and the workspaces of the products of each image."""
    with Scratch(scratch.opened) as columns:
        columns.take(_bytes_of_columns(given, weight))
        if bias is not None:
            columns.take(found.shape[2:].numel() * found.itemsize)
        _take_workspaces(columns, given.shape[0] * (1 if bias is None else 2))


def _bytes_of_columns(given: torch.Tensor, weight: torch.Tensor) -> int:
    return int(weight.shape[1:].numel() * given.shape[2:].numel() * given.itemsize)


def _take_workspaces(scratch: Scratch, count: int) -> None:
    for _ in range(count):
        with Scratch(scratch.opened) as products:
            blas_workspace(products)


def _take_column_products(
    scratch: Scratch, given: torch.Tensor, weight: torch.Tensor, *, multiplies: bool = True
) -> None:  # fmt: skip
    """Take and free the columns of an image, and the workspaces of the products of each."""
    with Scratch(scratch.opened) as columns:
        columns.take(_bytes_of_columns(given, weight))
        _take_workspaces(columns, given.shape[0] if multiplies else 0)


def give_gradients_of_columns(
    opened: OpenDevice, gradient: torch.Tensor, given: torch.Tensor, weight: torch.Tensor,
    found: Sequence[_Optional], groups: int,
) -> list[_Optional]:  # fmt: skip
    """Return gradients as tensors of the device, with the buffers of the kernels."""
    if groups > 1:
        return _of_groups(opened, gradient, given, weight, found, groups)
    results: list[_Optional] = [None, None, None]
    with Scratch(opened) as scratch:
        scratch.contiguous(given)
        scratch.contiguous(weight)
        if found[0] is not None:
            with Scratch(opened) as copies:
                copies.contiguous(gradient)
                results[0] = adopt(found[0].contiguous(), opened)
                _take_column_products(copies, given, weight)
        for at in (1, 2):
            if (each := found[at]) is not None:
                results[at] = adopt(each.contiguous(), opened)
        if found[1] is not None or found[2] is not None:
            with Scratch(opened) as copies:
                copies.contiguous(gradient)
                copies.take(_bytes_of_columns(given, weight))
                if found[1] is not None:
                    _take_workspaces(copies, given.shape[0])
                if found[2] is not None:
                    dense = torch.empty(gradient.shape, dtype=gradient.dtype, device="meta")
                    take_reduction(opened, dense, [0, *range(2, gradient.dim())], gradient.dtype)
    return results


def _of_groups(
    opened: OpenDevice, gradient: torch.Tensor, given: torch.Tensor, weight: torch.Tensor,
    found: Sequence[_Optional], groups: int,
) -> list[_Optional]:  # fmt: skip
    """Return the gradients of groups, which are computed one after another and then joined."""
    results: list[_Optional] = [None, None, None]
    with Scratch(opened) as of_given, Scratch(opened) as of_weight, Scratch(opened) as of_bias:
        parts = of_given, of_weight, of_bias

        def take_part(at: int) -> bool:
            if (each := found[at]) is None:
                return False
            parts[at].take(nbytes_of(each) // groups)
            return True

        for _ in range(groups):
            with Scratch(opened) as copies:
                copies.take(_bytes_of_part(gradient, groups))
                copies.take(_bytes_of_part(given, groups))
                if take_part(0):
                    _take_column_products(copies, given, weight)
                has_weight, has_bias = take_part(1), take_part(2)
                if has_weight or has_bias:
                    _take_column_products(copies, given, weight, multiplies=has_weight)
        for at, each in enumerate(found):
            if each is not None:
                results[at] = adopt(each.contiguous(), opened)
    return results
