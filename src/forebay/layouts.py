"""Shapes, layouts and memory formats under PyTorch's names."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex, overload

__all__ = ["Size", "contiguous_format", "layout", "memory_format", "preserve_format", "strided"]


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple of its dimensions.

    Notes
    -----
    As `torch.Size`.

    Examples
    --------
    >>> import forebay
    >>> forebay.empty(2, 3).shape
    forebay.Size([2, 3])
    """

    __slots__ = ()

    def numel(self) -> int:
        """Return the number of elements of a tensor of this shape."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Size: ...
    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, other))

    def __repr__(self) -> str:
        return f"forebay.Size([{', '.join(map(str, self))}])"


class _Constant:
    """A constant that prints as its public name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"forebay.{self._name}"

    def __reduce__(self) -> str:
        return self._name


class layout(_Constant):  # noqa: N801 - PyTorch's name
    """The layout of a tensor in memory; `forebay.strided` is the only one.

    Parameters
    ----------
    name : str
        The public name.

    Notes
    -----
    As `torch.layout`.
    """


class memory_format(_Constant):  # noqa: N801 - PyTorch's name
    """The order of a tensor's dimensions in memory.

    Parameters
    ----------
    name : str
        The public name.

    Notes
    -----
    As `torch.memory_format`.
    """


strided = layout("strided")
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")

for _type in (Size, layout, memory_format):
    _type.__module__ = "forebay"
