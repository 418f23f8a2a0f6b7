"""Choice of the implementation of scaled dot product attention, by the rules of PyTorch's CUDA build."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.kernels.attention_reasons import Call, cudnn_reasons, efficient_reasons, flash_reasons
from forebay.interop.torch.kernels.scratch_memory import by_capability
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["Implementation", "can_use", "choose", "needs_logsumexp", "replace_questions"]

_FOREBAY = f"{Path(__file__).parents[3]}/"


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
    """Return the implementation that PyTorch chooses. Raises RuntimeError if there is none, after its warnings."""
    call = partial(Call, query, key, value, mask, dropout, is_causal, enable_gqa)
    opened = open_torch_device(query.device)
    found = by_capability(opened, lambda capability: _choose(call(capability)))
    if found is not None:
        return found
    if not any(_SWITCHES[each]() for each in Implementation):
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the "
            "math kernel and the fused kernels."
        )
    for name, fused in _REPORTED:
        _warn(f"{name} kernel not used because:")
        for reason in filter(None, _reason(opened, fused, call)):
            _warn(reason)
    raise RuntimeError("No available kernel. Aborting execution.")


def _choose(call: Call) -> Implementation | None:
    order = list(torch._C._get_sdp_priority_order())
    if order[:3] == [1, 2, 0] and _prefers_cudnn(call.capability):
        order = [3, *(each for each in order if each != 3)]
    for each in [Implementation(each) for each in order if each in [*Implementation]]:  # there are others, not of CUDA
        if torch._C._get_math_sdp_enabled() if each == Implementation.MATH else not _first_reason(each, call):
            return each
    return None


def can_use(
    fused: Implementation, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout: float, is_causal: bool, enable_gqa: bool, debug: bool = False,
) -> bool:  # fmt: skip
    """Return True if a fused implementation is enabled, and fits the arguments and the device.

    `debug` warns of what prevents it, as PyTorch does.
    """
    call = partial(Call, query, key, value, mask, dropout, is_causal, enable_gqa)
    opened = open_torch_device(query.device)
    usable = by_capability(opened, lambda capability: not _first_reason(fused, call(capability)))
    if debug and not usable:
        for reason in filter(None, _reason(opened, fused, call)):
            _warn(reason)
    return usable


def _reason(opened: OpenDevice, fused: Implementation, call: Callable[[tuple[int, int]], Call]) -> list[str]:
    return by_capability(opened, lambda capability: _first_reason(fused, call(capability)))


def _first_reason(fused: Implementation, call: Call) -> list[str]:
    return [*islice(_REASONS[fused](call), 1)]


def _warn(text: str) -> None:
    """Warn at the line of the program that calls attention, as PyTorch does."""
    frame: FrameType | None = sys._getframe(1)  # the documented way to walk the stack
    level = 2
    while frame is not None and frame.f_code.co_filename.startswith(_FOREBAY):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


_REASONS: dict[Implementation, Callable[[Call], Iterator[str]]] = {
    Implementation.FLASH: flash_reasons,
    Implementation.EFFICIENT: efficient_reasons,
    Implementation.CUDNN: cudnn_reasons,
}
_REPORTED = (
    ("Memory efficient", Implementation.EFFICIENT),
    ("Flash attention", Implementation.FLASH),
    ("cuDNN attention", Implementation.CUDNN),
)
_SWITCHES: dict[Implementation, Callable[[], bool]] = {
    Implementation.MATH: torch._C._get_math_sdp_enabled,
    Implementation.FLASH: torch._C._get_flash_sdp_enabled,
    Implementation.EFFICIENT: torch._C._get_mem_efficient_sdp_enabled,
    Implementation.CUDNN: torch._C._get_cudnn_sdp_enabled,
}


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
            params.enable_gqa, debug,
        )  # fmt: skip

    return can_use_it


def _prefers_cudnn(architecture: tuple[int, int]) -> bool:
    """Return True where PyTorch prefers cuDNN, 9.15 of which is assumed."""
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "") == "1"
    return not deprioritized and architecture in ((9, 0), (10, 0), (10, 3))
