"""Choice of the implementation of scaled dot product attention, by the rules of PyTorch's CUDA build."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.kernels.scratch_memory import by_capability

__all__ = ["Implementation", "can_use", "choose", "needs_logsumexp", "replace_questions"]

_HALVES = (torch.float16, torch.bfloat16)
_NEWEST = (12, 1)  # compute capability up to which the kernels are built


class Implementation(IntEnum):
    """torch.nn.attention.SDPBackend."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


def needs_logsumexp(*tensors: torch.Tensor) -> bool:
    """Return True if a gradient will be computed."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def choose(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    is_causal: bool, enable_gqa: bool = False,
) -> Implementation:  # fmt: skip
    """Return the implementation that PyTorch chooses. Raises RuntimeError if there is none."""
    return by_capability(
        open_torch_device(query.device),
        lambda capability: _choose(capability, query, key, value, mask, dropout, is_causal, enable_gqa),
    )


def _choose(
    architecture: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    mask: torch.Tensor | None, dropout: float, is_causal: bool, enable_gqa: bool,
) -> Implementation:  # fmt: skip
    order = list(torch._C._get_sdp_priority_order())
    if order[:3] == [1, 2, 0] and _prefers_cudnn(architecture):
        order = [3, *(each for each in order if each != 3)]
    for each in [Implementation(each) for each in order if each in [*Implementation]]:  # there are others, not of CUDA
        if each == Implementation.MATH:
            if torch._C._get_math_sdp_enabled():
                return each
        elif _can_use(architecture, each, query, key, value, mask, dropout, is_causal, enable_gqa):
            return each
    raise RuntimeError("No available kernel. Aborting execution.")


def can_use(
    fused: Implementation, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout: float, is_causal: bool, enable_gqa: bool,
) -> bool:  # fmt: skip
    """Return True if a fused implementation is enabled, and fits the arguments and the device."""
    return by_capability(
        open_torch_device(query.device),
        lambda capability: _can_use(capability, fused, query, key, value, mask, dropout, is_causal, enable_gqa),
    )


def _can_use(
    architecture: tuple[int, int], fused: Implementation, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    mask: torch.Tensor | None, dropout: float, is_causal: bool, enable_gqa: bool,
) -> bool:  # fmt: skip
    grouped = key.dim() == 4 and query.dim() == 4 and query.shape[1] != key.shape[1]
    if not (5, 0) <= architecture <= _NEWEST or not _has_usable_shapes(query, key, value):
        return False
    if grouped and not enable_gqa:
        return False
    if fused == Implementation.CUDNN:
        return bool(torch._C._get_cudnn_sdp_enabled()) and _fits_cudnn(architecture, query, key, value, dropout)
    if fused == Implementation.FLASH:
        enabled = bool(torch._C._get_flash_sdp_enabled()) and mask is None
        return enabled and _fits_flash(architecture, query, key, value, dropout, is_causal)
    enabled = bool(torch._C._get_mem_efficient_sdp_enabled()) and not grouped
    return enabled and _fits_efficient(architecture, query, key, value)


def replace_questions(names: NameReplacements) -> None:
    """Let the functions of torch.backends.cuda that ask for fused attention answer for the emulated device."""
    names.replace(torch._C, "_is_flash_attention_available", lambda: True)
    for name, fused in (
        ("_can_use_flash_attention", Implementation.FLASH),
        ("_can_use_mem_efficient_attention", Implementation.EFFICIENT),
        ("_can_use_cudnn_attention", Implementation.CUDNN),
    ):
        names.replace(torch._C, name, _question(fused))


def _question(fused: Implementation) -> Callable[..., bool]:
    def can_use_it(params: Any, debug: bool = False) -> bool:
        return can_use(
            fused, params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal,
            params.enable_gqa,
        )  # fmt: skip

    return can_use_it


def _prefers_cudnn(architecture: tuple[int, int]) -> bool:
    """Return True where PyTorch prefers cuDNN, 9.15 of which is assumed."""
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "") == "1"
    return not deprioritized and architecture in ((9, 0), (10, 0), (10, 3))


def _has_usable_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    same = query.dtype == key.dtype == value.dtype
    if not (same and query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]):
        return False
    heads, others = query.shape[1], key.shape[1]
    if others != value.shape[1] or not others or heads % others:
        return False
    return bool(query.shape[2] and key.shape[2] and key.shape[2] == value.shape[2])


def _has_dense_rows(*tensors: torch.Tensor) -> bool:
    return all(each.stride(-1) == 1 for each in tensors)


def _fits_cudnn(
    architecture: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float
) -> bool:
    size, other = query.shape[3], value.shape[3]
    limit = 256 if architecture == (9, 0) else 192 if architecture[0] == 10 and (size, other) == (192, 128) else 128
    deterministic = (
        torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    )
    return (
        architecture >= (8, 0)
        and query.dtype in _HALVES
        and max(size, other) <= limit
        and not size % 8
        and not other % 8
        and key.shape[2] != 1
        and not (query.shape[2] == 1 and dropout)
        and not deterministic
        and (_has_dense_rows(query, key, value) or size == 1)
    )


def _fits_flash(
    architecture: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float,
    is_causal: bool,
) -> bool:  # fmt: skip
    size = query.shape[3]
    is_small = (8, 6) <= architecture <= (8, 9) or (12, 0) <= architecture <= _NEWEST
    too_large = 192 < size <= 224 or (size > 224 and bool(dropout))
    if is_small and too_large and needs_logsumexp(query, key, value):
        return False
    return (
        architecture >= (8, 0)
        and query.dtype in _HALVES
        and size == key.shape[3] == value.shape[3]
        and size <= 256
        and not (is_causal and query.shape[2] != key.shape[2])
        and (_has_dense_rows(query, key, value) or size == 1)
    )


def _fits_efficient(architecture: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    is_half = query.dtype in _HALVES
    alignment = 4 if architecture[0] >= 8 else 1
    if architecture[0] >= 8 or (architecture[0] == 7 and is_half):
        alignment = max(alignment, 8 if is_half else 4)
    types = (torch.float16, torch.float32, torch.bfloat16) if architecture[0] >= 8 else (torch.float16, torch.float32)
    size, other = query.shape[3], value.shape[3]
    fits = size == key.shape[3] and size > 0 and other > 0 and not size % alignment and not other % alignment
    return fits and query.dtype in types and _has_dense_rows(query, key, value)
