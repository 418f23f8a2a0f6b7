"""Knowledge of the values of an operator's arguments: available now, when they are read, or never."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import assumed
from forebay.interop.torch.devices import host_values
from forebay.interop.torch.devices.emulated_memory import check_host, memory_of
from forebay.interop.torch.kernels import known_memory

__all__ = ["LATER", "NEVER", "NOW", "is_whole_number", "knowledge_of"]

NEVER, LATER, NOW = range(3)


def is_whole_number(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def knowledge_of(args: tuple[Any, ...], keywords: Mapping[str, Any], only_written: set[str]) -> int:
    """Return whether the values of all arguments are known now, can be computed later, or are unknown."""
    kinds = [_knows(each) for each in args]
    kinds += [_knows(each, empty=name in only_written) for name, each in keywords.items()]
    return min(kinds, default=NOW)


def _knows(argument: Any, *, empty: bool = False) -> int:
    if isinstance(argument, torch.Tensor):
        if argument.layout is not torch.strided or argument.is_nested:
            return NEVER
        is_small = argument.numel() * argument.itemsize <= known_memory.SMALL
        if argument.is_cuda:
            memory = memory_of(argument)
            if empty:
                return NOW if is_small else LATER
            if memory.known is None:
                return LATER if memory.assumed is not None and assumed(argument).is_exact else NEVER
            return NOW if is_small and memory.known.storage is not None else LATER
        if argument.device.type == "cpu":
            check_host(argument)
            if host_values.reads_as_zeros(argument):
                return NEVER
            return NOW if is_small else LATER if is_whole_number(argument) else NEVER
        return NEVER
    if isinstance(argument, (list, tuple)):
        return min((_knows(each, empty=empty) for each in argument), default=NOW)
    return NEVER if isinstance(argument, torch.Generator) else NOW
