"""Bilinear forms on emulated devices: products of slices, which PyTorch adds one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["BILINEAR_KERNELS"]


def _trilinear(
    first: torch.Tensor, second: torch.Tensor, third: torch.Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Return the products of three tensors with added dimensions, summed over some, for each slice of one dimension."""
    count = first.dim() + len(expand1)
    tensors = [_expanded(*each) for each in ((first, expand1), (second, expand2), (third, expand3))]
    sizes = [max(each.shape[at] for each in tensors) if min(each.shape[at] for each in tensors) else 0
             for at in range(count)]  # fmt: skip
    summed = [at for at in sumdim if at != unroll_dim]
    early = [at for at in summed if at in expand3]
    late = [at for at in summed if at not in expand3]
    output = torch.zeros(
        [1 if at in sumdim else size for at, size in enumerate(sizes)], dtype=first.dtype, device=first.device
    )
    if first.numel() and second.numel() and third.numel():
        for at in range(sizes[unroll_dim]):
            slices = [_slice(each, unroll_dim, at) for each in tensors]
            part = _sum_of_products(slices[0], slices[1], early)
            part = _sum_of_products(part, slices[2], late)
            target = output if unroll_dim in sumdim else output.narrow(unroll_dim, at, 1)
            target.add_(part)
            del slices, target, part
    return output.squeeze_(tuple(sumdim)) if sumdim else output


def _expanded(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for at in sorted(dims):
        tensor = tensor.unsqueeze(at)
    return tensor


def _slice(tensor: torch.Tensor, dim: int, at: int) -> torch.Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, at, 1)


def _sum_of_products(left: torch.Tensor, right: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return the sums of products over dimensions, which stay with one element, by a product of matrices."""
    if not dims:
        return left * right
    in_both: list[int] = []
    of_left: list[int] = []
    of_right: list[int] = []
    length = 1
    for at in range(left.dim()):
        in_left, in_right = left.shape[at] != 1, right.shape[at] != 1
        if at in dims:
            if in_left and in_right:
                length *= left.shape[at]
            elif in_left:
                left = left.sum(at, True)
            elif in_right:
                right = right.sum(at, True)
        else:
            (in_both if in_left and in_right else of_left if in_left else of_right).append(at)
    shape = [
        *(left.shape[at] for at in (*in_both, *of_left)),
        *(1 for _ in dims),
        *(right.shape[at] for at in of_right),
    ]
    order = [*in_both, *of_left, *dims, *of_right]
    batch, rows, columns = (
        torch.Size([tensor.shape[at] for at in each]).numel()
        for tensor, each in ((left, in_both), (left, of_left), (right, of_right))
    )
    matrices = left.permute(order).reshape(batch, rows, length)
    others = right.permute([*in_both, *dims, *of_right, *of_left]).reshape(batch, length, columns)
    return torch.bmm(matrices, others).view(shape).permute([order.index(at) for at in range(len(order))])


BILINEAR_KERNELS: dict[str, Callable[..., Any]] = {"aten::_trilinear": _trilinear}
