"""Modules, parameters and buffers of a module by name, without a call of its methods.

PyTorch's own `named_parameters` puts modules into sets, which calls `__hash__` and `__eq__` of the program, and
programs override it. A search of all modules that are alive must execute neither.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

__all__ = ["is_traced", "named_buffers", "named_modules", "named_parameters", "original_module"]


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that `torch.compile` was given, if a module is its result; else the module itself."""
    if type(module).__name__ != "OptimizedModule":  # a class of Dynamo, which need not be imported
        return module
    found = _names(module, "_modules").get("_orig_mod")
    return module if found is None else original_module(found)


def is_traced(module: torch.nn.Module) -> bool:
    """Return True for a graph of Dynamo, which has the parameters of the program's modules as its own."""
    if type(module).__name__ != "GraphModule":
        return False
    meta = object.__getattribute__(module, "__dict__").get("meta")
    return type(meta) is dict and any(type(each) is str and each.startswith("dynamo_") for each in meta)


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a module and those that it contains, each once, with PyTorch's names, and those of compiled ones."""
    seen: set[int] = set()
    pending = [("", root)]
    while pending:
        name, module = pending.pop()
        module = original_module(module)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        start = f"{name}." if name else ""
        children = [*dict.items(_names(module, "_modules"))]
        pending += [(f"{start}{key}", each) for key, each in reversed(children) if each is not None]


def named_parameters(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a module and of those that it contains, each once."""
    return _named_tensors(root, "_parameters")


def named_buffers(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers of a module and of those that it contains, each once."""
    return _named_tensors(root, "_buffers")


def _named_tensors(root: torch.nn.Module, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for name, module in named_modules(root):
        for key, each in [*dict.items(_names(module, kind))]:
            if issubclass(type(each), torch.Tensor) and id(each) not in seen:
                seen.add(id(each))
                yield f"{name}.{key}" if name else key, each


def _names(module: torch.nn.Module, kind: str) -> dict[str, torch.nn.Module]:
    """Return a table of a module; an empty one if its `__init__` has failed."""
    found = object.__getattribute__(module, "__dict__").get(kind)
    return found if issubclass(type(found), dict) else {}
