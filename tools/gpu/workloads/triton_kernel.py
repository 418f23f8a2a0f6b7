"""A kernel of Triton, which needs the source of the function in a file."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["add_one"]

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]  # Triton may be installed or not
def _add_one(at, count, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 -- Triton reads the annotations
    index = tl.program_id(0) * block + tl.arange(0, block)
    inside = index < count
    tl.store(at + index, tl.load(at + index, mask=inside) + 1, mask=inside)


def add_one(tensor: Any) -> None:
    """Add 1 to the elements of a tensor."""
    _add_one[(triton.cdiv(tensor.numel(), _BLOCK),)](tensor, tensor.numel(), _BLOCK)
    torch.cuda.synchronize()
