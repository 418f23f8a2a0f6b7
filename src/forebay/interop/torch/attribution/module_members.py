"""Modules, parameters and buffers of a module by name, without a call of its methods.

PyTorch's own `named_parameters` puts modules into sets, which calls `__hash__` and `__eq__` of the program, and
programs override it. A search of all modules that are alive must execute neither.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

__all__ = ["named_buffers", "named_modules", "named_parameters"]


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a module and those that it contains, each once, with PyTorch's names."""
    seen: set[int] = set()
    pending = [("", root)]
    while pending:
        name, module = pending.pop()
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
