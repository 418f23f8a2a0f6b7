"""Tensors among the arguments and results of operators, which may be in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices._storage_owners import EmulatedMemory
from forebay.interop.torch.devices.emulated_memory import accessed_memory

__all__ = ["forget_values", "tensors_of"]


def tensors_of(argument: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument, in order."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, dict):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return [tensor for each in argument for tensor in tensors_of(each)]
    return []


def forget_values(argument: Any, find: Callable[[torch.Tensor], EmulatedMemory] = accessed_memory) -> None:
    """Note that the values of tensors are unknown from now on: Note [Known values].

    `find` returns the memory of a tensor, by default with the check that its elements can be accessed.
    """
    for each in tensors_of(argument):
        if each.is_cuda:
            memory = find(each)
            memory.known = memory.assumed = None
