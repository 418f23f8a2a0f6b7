"""Knowledge of the values of an operator's arguments: available now, when they are read, or never."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import assumed
from forebay.interop.torch.devices import host_values
from forebay.interop.torch.devices.emulated_memory import accessed_memory, check_host, memory_of
from forebay.interop.torch.kernels import known_memory

__all__ = ["BY_INDEX", "LATER", "NEVER", "NOW", "is_overwritten", "is_whole_number", "knowledge_of"]

# Operators that write by an index, and the place of this argument.
BY_INDEX = {"scatter_": 2, "index_copy_": 2, "index_put_": 1, "_index_put_impl_": 1}
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


def is_overwritten(
    name: str, args: Sequence[Any], keywords: Mapping[str, Any], read: Callable[[torch.Tensor], torch.Tensor | None]
) -> bool:  # fmt: skip
    """Return True if an operator writes each place of a small vector once, as to make an inverse permutation.

    Parameters
    ----------
    name : str
        The operator, one of `BY_INDEX`.
    args, keywords : sequence, mapping of str
        Its arguments.
    read : Callable
        Returns the values of a tensor of the device, or None.
    """
    target, index = args[0], args[BY_INDEX[name]]
    if isinstance(index, (list, tuple)):
        index = index[0] if len(index) == 1 else None
    if not isinstance(index, torch.Tensor) or index.dtype == torch.bool:
        return False
    if "reduce" in keywords or any(each is True for each in args[3:4]):  # what was there counts
        return False
    if not target.is_cuda or not target.dim() == index.dim() == 1 or len(target) != len(index):
        return False
    if not len(target) or accessed_memory(target).nbytes > known_memory.SMALL:
        return False
    places = read(index) if index.is_cuda else index
    return places is not None and not places.is_meta and torch.equal(places.sort()[0], torch.arange(len(target)))
