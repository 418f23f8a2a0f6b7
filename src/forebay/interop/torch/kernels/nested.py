"""Nested tensors with strides, which emulated devices do not have: transformers keep their padding."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from forebay.errors import ForebayWarning

__all__ = ["NESTED_KERNELS"]


def _is_left_aligned(given: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return False, with which `torch.nn.TransformerEncoder` does not drop the padding."""
    warnings.warn(
        "emulated devices have no nested tensors with strides: a transformer that would drop its padding in evaluation "
        "computes it, which takes more memory than on a GPU",
        ForebayWarning,
        stacklevel=2,
    )
    return False


NESTED_KERNELS: dict[str, Callable[..., Any]] = {"aten::_nested_tensor_from_mask_left_aligned": _is_left_aligned}
