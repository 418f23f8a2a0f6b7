"""Calls of operators that are computed when a result is read: Note [Values computed when they are read]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import assumed
from forebay.interop.torch.kernels.known_memory import Captured, captured, layout_of

__all__ = ["RecordedCall"]

_Call = Callable[[Sequence[Any], dict[str, Any]], Any]


class RecordedCall:
    """A call of an operator with the values that its arguments have now.

    Parameters
    ----------
    call : callable
        Calls the operator with positional and named arguments on the CPU.
    args, keywords
        Its arguments.
    only_written : set of str
        The named arguments whose values are not read.
    """

    def __init__(self, call: _Call, args: tuple[Any, ...], keywords: Mapping[str, Any], only_written: set[str]) -> None:
        self._call = call
        self._tensors: dict[int, Captured | None] = {}  # by the id of the argument
        self._args = [self._take(each) for each in args]
        self._keywords = {name: self._take(each, empty=name in only_written) for name, each in keywords.items()}
        self.is_complete = all(each is not None for each in self._tensors.values())
        self._records = sum(each.records for each in self._tensors.values() if each is not None)
        self._done: tuple[list[torch.Tensor], dict[int, torch.Tensor]] | None = None

    def _take(self, argument: Any, *, empty: bool = False) -> Any:
        if isinstance(argument, torch.Tensor):
            if id(argument) not in self._tensors:
                self._tensors[id(argument)] = _empty(argument) if empty else _taken(argument)
            return _Place(id(argument))
        if isinstance(argument, (list, tuple)):
            return [self._take(each, empty=empty) for each in argument]
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    def result(self, at: int) -> Captured:
        """Return the values of the result with an index."""
        return Captured(lambda: self._compute()[0][at], self._records)

    def written(self, tensor: torch.Tensor) -> Captured:
        """Return the values of an argument after the call."""
        key = id(tensor)
        return Captured(lambda: self._compute()[1][key], self._records)

    def _compute(self) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
        if self._done is None:
            copies = {key: each().clone() for key, each in self._tensors.items() if each is not None}
            args = [_filled(each, copies) for each in self._args]
            keywords = {name: _filled(each, copies) for name, each in self._keywords.items()}
            with torch.no_grad():
                found = self._call(args, keywords)
            self._done = [*_flat(found)], copies
            self._tensors.clear()  # which may hold much
        return self._done


class _Place:
    """The place of a tensor in the arguments."""

    __slots__ = ("key",)

    def __init__(self, key: int) -> None:
        self.key = key


def _taken(tensor: torch.Tensor) -> Captured | None:
    found = assumed(tensor) if tensor.is_cuda else None
    return captured(tensor, found.value if found is not None and found.is_exact else None)


def _empty(tensor: torch.Tensor) -> Captured:
    layout = layout_of(tensor)
    return Captured(lambda: torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="cpu"))


def _filled(argument: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(argument, _Place):
        return copies[argument.key]
    return [_filled(each, copies) for each in argument] if isinstance(argument, list) else argument


def _flat(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for each in found for tensor in _flat(each)] if isinstance(found, (list, tuple)) else []
