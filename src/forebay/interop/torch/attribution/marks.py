"""Marks on the records of tensors: the categories of what modules, optimizers and calls show."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from forebay.errors import ForebayError
from forebay.interop.torch.attribution.module_members import named_buffers, named_parameters
from forebay.interop.torch.attribution.records import Record
from forebay.interop.torch.devices.emulated_memory import memory_of

__all__ = ["mark", "mark_arguments", "mark_module", "mark_parameters", "mark_state", "records_of", "tensors_in"]

_CACHE = re.compile(r"(?:.*[._])?(?:caches?|kv|past)(?:[._].*)?")  # a component of a name; not "cached", of positions
_WHOLE = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_TRACED = ("FakeTensor", "FunctionalTensor")  # of PyTorch's compiler: they have no memory, and a look at it warns
_NONE = (KeyError, RuntimeError, NotImplementedError, ForebayError)  # not on an emulated device, or without a storage


def records_of(tensor: torch.Tensor) -> Iterator[Record]:
    """Yield the records of the memory of a tensor; of one that consists of others, such as DTensor, of these."""
    if type(tensor).__name__ in _TRACED:
        return
    record: Record | None = None
    with suppress(*_NONE):
        record = memory_of(tensor).record
    if record is not None:
        yield record
    elif type(tensor) not in _WHOLE:
        for part in _parts(tensor):
            yield from records_of(part)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that an object of a subclass has as attributes, without a call of its code."""
    found = []
    for each in gc.get_referents(tensor):
        values = dict.values(each) if type(each) is dict else [each]
        found += [
            value for value in values if issubclass(type(value), torch.Tensor) and type(value) is not type(tensor)
        ]
    return found


def mark(tensor: torch.Tensor, category: str, module: str = "", *, only_unmarked: bool = False) -> Record | None:
    """Set the category of a tensor's memory, and its module. Tensors that have no memory on a device are ignored."""
    record = None
    for record in records_of(tensor):
        if only_unmarked and record.category:
            continue
        is_gathered = category == "parameters" and record.role == "gathered parameters"
        record.category = record.role if is_gathered else category
        if module:
            record.module = module
    return record


def mark_module(root: torch.nn.Module, category: str = "parameters") -> None:
    """Mark the parameters, gradients and buffers of an outermost module; `category` is that of its parameters."""
    kind = type(root).__name__
    with suppress(RuntimeError, AttributeError):  # a module whose __init__ has failed
        for name, parameter in named_parameters(root):
            if parameter.is_cuda:
                module = f"{kind}.{name}".rpartition(".")[0]
                mark(parameter, category, module)
                if type(parameter) not in _WHOLE:
                    _mark_attributes(parameter, category, module)
                if parameter.grad is not None:
                    mark(parameter.grad, "gradients", module)
        for name, buffer in named_buffers(root):
            if buffer.is_cuda:
                is_cache = _CACHE.fullmatch(name) is not None
                mark(buffer, "caches" if is_cache else "buffers", f"{kind}.{name}".rpartition(".")[0])


def _mark_attributes(parameter: torch.Tensor, category: str, module: str) -> None:
    """Mark what a quantized parameter has besides its elements, such as scales in an object."""
    seen = [vars(parameter)]
    for names in seen[:]:
        for value in [*names.values()]:
            fields = getattr(value, "__dict__", None) if type(value).__module__.startswith("bitsandbytes") else None
            for each in (value, *(fields or {}).values()):
                inner = getattr(each, "__dict__", None) if type(each).__module__.startswith("bitsandbytes") else None
                for tensor in (each, *(inner or {}).values()):
                    if issubclass(type(tensor), torch.Tensor):
                        mark(tensor, category, module, only_unmarked=True)


def mark_arguments(arguments: Any, root: str) -> None:
    """Mark what an outermost module receives: inputs, and caches that its previous call without gradients has made."""
    for tensor in tensors_in(arguments):
        for record in records_of(tensor):
            if not record.category and record.phase == "other":  # else another module has made it
                record.category = "inputs"
    nested = [each for each in arguments if issubclass(type(each), (list, tuple, dict))]
    for tensor in tensors_in(nested):
        for record in records_of(tensor):
            is_own = record.phase == "forward" and not record.grad and record.module.partition(".")[0] == root
            if is_own and record.category in ("", "outputs"):
                record.category = "caches"


def mark_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Mark what an optimizer updates, and its gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            record = mark(parameter, "parameters", only_unmarked=True)
            if parameter.grad is not None:
                mark(parameter.grad, "gradients", record.module if record is not None else "")


def mark_state(optimizer: torch.optim.Optimizer) -> None:
    """Mark the state of an optimizer, with the modules of its parameters."""
    for parameter, state in optimizer.state.items():
        module = ""
        if issubclass(type(parameter), torch.Tensor):
            module = next((record.module for record in records_of(parameter)), "")
        for tensor in tensors_in(state):
            mark(tensor, "optimizer state", module)


def tensors_in(value: Any, depth: int = 4) -> Iterable[torch.Tensor]:
    """Yield the tensors in a value, also those in lists and dicts."""
    kind = type(value)  # isinstance would ask the object for its class
    if issubclass(kind, torch.Tensor):
        yield value
    elif depth and issubclass(kind, dict):
        for each in [*dict.values(value)]:
            yield from tensors_in(each, depth - 1)
    elif depth and issubclass(kind, (list, tuple)):
        for each in [*(list if issubclass(kind, list) else tuple).__iter__(value)]:
            yield from tensors_in(each, depth - 1)
