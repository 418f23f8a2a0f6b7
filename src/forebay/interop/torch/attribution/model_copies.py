"""Copies of the parameters of a trained model: averages (EMA), target and reference models, saved states."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from forebay.interop.torch.attribution.marks import mark, records_of
from forebay.interop.torch.attribution.module_members import named_parameters
from forebay.interop.torch.attribution.weak_identity import WeakIdentityTable

__all__ = ["ModelCopies"]

_Key = tuple[str, tuple[int, ...]]  # the last two parts of a parameter's name, and its shape
_FEWEST = 2  # tensors of a container: fewer have the names and shapes of parameters by chance


class ModelCopies:
    """The modules that no optimizer updates and that have the names and shapes of one that an optimizer does.

    No more than this tells an average from the model itself: both are modules, or both are dicts of tensors.
    """

    def __init__(self) -> None:
        self._trained: set[_Key] = set()
        self._shapes: list[list[tuple[int, ...]]] = []
        # Those that were trained, also if their optimizers have ended.
        self._models: WeakIdentityTable[torch.nn.Module, bool] = WeakIdentityTable()
        self._copies: WeakIdentityTable[torch.nn.Module, bool] = WeakIdentityTable()

    def category(self, root: torch.nn.Module) -> str:
        """Return the category of the parameters of an outermost module."""
        return "copies of parameters" if root in self._copies else "parameters"

    def find(self, roots: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Learn what is trained, and find the modules that are copies."""
        updated = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
        others = []
        for root in roots:
            with suppress(RuntimeError, AttributeError):  # a module whose __init__ has failed
                names = [*named_parameters(root)]
                if any(id(each) in updated for _, each in names):
                    self._models.set(root, True)
                    self._copies.discard(root)
                    self._trained |= {_key(name, each) for name, each in names}
                    shapes = [tuple(each.shape) for _, each in names if id(each) in updated]
                    if shapes not in self._shapes:
                        self._shapes.append(shapes)
                elif names and root not in self._models:
                    others.append((root, {_key(name, each) for name, each in names}))
        for root, keys in others:
            if len(keys) >= _FEWEST and keys <= self._trained:
                self._copies.set(root, True)

    def mark_containers(self, values: Iterable[tuple[Any, list[tuple[Any, torch.Tensor]]]]) -> None:
        """Mark the tensors of dicts and lists that have the names and shapes of trained parameters."""
        for container, items in values:
            if len(items) < _FEWEST:
                continue
            if issubclass(type(container), dict):
                named = [(key, each) for key, each in items if type(key) is str]
                copied = [each for key, each in named if _key(key, each) in self._trained]
                is_copy = len(copied) >= max(_FEWEST, len(items) // 2)
            else:
                copied = [each for _, each in items]
                is_copy = [tuple(each.shape) for each in copied] in self._shapes
            if is_copy:
                for each in copied:
                    if not any(record.category or record.role for record in records_of(each)):
                        mark(each, "copies of parameters")


def _key(name: str, parameter: torch.Tensor) -> _Key:
    return ".".join(name.split(".")[-2:]), tuple(parameter.shape)
